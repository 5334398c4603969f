"""Keeps a GPU busy with kernels that do a fixed amount of work, and says when each ended:

    python3 busy.py SIMULATED KERNEL_US KERNELS [TURNS]

TURNS of a kernel's loop are found out unless given. Prints them when it is ready, begins when a line comes, and prints one line of JSON: how long all of it took, the ends
of kernels by events, and the gaps that a kernel saw in the GPU's clock while it ran (it was off the GPU then)."""

import ctypes
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cuda  # noqa: E402

GAPS = 500
WARM_S = 0.3
#: A gap shorter than this is a slow turn of the loop, not another process's slice.
LEAST_GAP_NS = 100_000

#: Words of `out`: gaps seen, a sum that keeps the work from being left out, then begin and length of each gap. The
#: work is turns of a loop, not time: a loop that waits for the clock would not notice that it was off the GPU.
BUSY = """.version 7.0
.target sm_50
.address_size 64
// cotenant-sim: duration_us=%d error=0
.visible .entry busy(.param .u64 out, .param .u64 turns)
{
 .reg .u64 %%a<9>;
 .reg .u32 %%x<2>;
 .reg .pred %%p<4>;
 ld.param.u64 %%a0, [out];
 cvta.to.global.u64 %%a0, %%a0;
 ld.param.u64 %%a1, [turns];
 ld.global.u64 %%a2, [%%a0];
 mov.u32 %%x0, 1;
 mov.u64 %%a3, %%globaltimer;
again:
 mad.lo.u32 %%x0, %%x0, 1664525, 1013904223;
 mov.u64 %%a4, %%globaltimer;
 sub.u64 %%a5, %%a4, %%a3;
 setp.lt.u64 %%p0, %%a5, %d;
 @%%p0 bra quiet;
 setp.ge.u64 %%p1, %%a2, %d;
 @%%p1 bra quiet;
 shl.b64 %%a6, %%a2, 4;
 add.u64 %%a6, %%a6, %%a0;
 st.global.u64 [%%a6+16], %%a3;
 st.global.u64 [%%a6+24], %%a5;
 add.u64 %%a2, %%a2, 1;
quiet:
 mov.u64 %%a3, %%a4;
 sub.u64 %%a1, %%a1, 1;
 setp.ne.u64 %%p2, %%a1, 0;
 @%%p2 bra again;
 st.global.u64 [%%a0], %%a2;
 cvt.u64.u32 %%a7, %%x0;
 st.global.u64 [%%a0+8], %%a7;
 ret;
}
"""


def event() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    cuda.call("cuEventCreate", ctypes.byref(handle), 0)
    return handle


def seconds(first, second) -> float:
    ms = ctypes.c_float()
    cuda.call("cuEventElapsedTime", ctypes.byref(ms), first, second)
    return ms.value / 1e3


class Busy:
    def __init__(self, us: int):
        self.words = 2 + 2 * GAPS
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        text = (BUSY % (us, LEAST_GAP_NS, GAPS)).encode() + b"\0"
        cuda.call("cuModuleLoadData", ctypes.byref(module), text)
        cuda.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"busy")
        self.out, self.turns = cuda.allocate(8 * self.words), ctypes.c_uint64(1000)
        self.parameters = (ctypes.c_void_p * 2)(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in (self.out, self.turns)))
        self.clear()

    def clear(self) -> None:
        cuda.call("cuMemsetD8_v2", self.out, ctypes.c_ubyte(0), ctypes.c_size_t(8 * self.words))

    def launch(self) -> None:
        cuda.call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, None, self.parameters, None)

    def calibrate(self, us: int) -> None:
        """Turns for so many microseconds, alone on the GPU and warm: clocks of an idle GPU need a while to rise."""
        first, second = event(), event()
        warm = time.monotonic() + WARM_S
        rounds = 0
        while rounds < 4:
            rounds += time.monotonic() > warm
            cuda.call("cuEventRecord", first, None)
            self.launch()
            cuda.call("cuEventRecord", second, None)
            cuda.call("cuCtxSynchronize")
            took = max(seconds(first, second), 1e-6)
            self.turns.value = max(1, min(1 << 32, int(self.turns.value * us / 1e6 / took)))

    def gaps(self) -> list:
        words = (ctypes.c_uint64 * self.words)()
        cuda.call("cuMemcpyDtoH_v2", words, self.out, ctypes.c_size_t(8 * self.words))
        return [words[3 + 2 * i] for i in range(min(words[0], GAPS))]


def main() -> None:
    simulated, us, kernels, *turns = (int(word) for word in sys.argv[1:])
    cuda.start()
    busy = Busy(us)
    if turns:
        busy.turns.value = turns[0]
    elif not simulated:
        busy.calibrate(us)
    busy.clear()
    base, ends = event(), [event() for _ in range(kernels)]
    print(busy.turns.value, flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    cuda.call("cuEventRecord", base, None)
    for end in ends:
        busy.launch()
        cuda.call("cuEventRecord", end, None)
    cuda.call("cuCtxSynchronize")
    done = time.monotonic()
    print(json.dumps({
        "begun": begun, "done": done, "ends": [seconds(base, end) for end in ends],
        "gaps": [] if simulated else [length / 1e9 for length in busy.gaps()],
    }), flush=True)


if __name__ == "__main__":
    main()
