"""A process whose kernel on one stream waits on the GPU for one that is launched later on another stream, behind a
kernel that works: many times over, all launched before the first wait."""

import ctypes
import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import cuda  # noqa: E402
import kernels  # noqa: E402
import served  # noqa: E402

#: A kernel that waits gives up after it, so that nothing hangs for good.
PATIENCE_NS = 5_000_000_000
NON_BLOCKING = 1
#: A simulated driver keeps the flag itself, by its number, and the value that it waits for.
KERNELS = """.version 7.0
.target sm_50
.address_size 64
// cotenant-sim: duration_us=1 await=1
.visible .entry consume(.param .u32 flag, .param .u32 value, .param .u64 shared, .param .u64 ns)
{
 .reg .u64 %a<4>;
 .reg .u32 %r<4>;
 .reg .pred %p<2>;
 ld.param.u32 %r0, [value];
 ld.param.u64 %a0, [shared];
 ld.param.u64 %a1, [ns];
 cvta.to.global.u64 %a0, %a0;
 mov.u64 %a2, %globaltimer;
 add.u64 %a2, %a2, %a1;
again:
 ld.volatile.global.u32 %r1, [%a0];
 setp.ge.u32 %p0, %r1, %r0;
 @%p0 bra met;
 mov.u64 %a3, %globaltimer;
 setp.lt.u64 %p1, %a3, %a2;
 @%p1 bra again;
 ld.global.u32 %r2, [%a0+4];
 add.u32 %r2, %r2, 1;
 st.global.u32 [%a0+4], %r2;
met:
 ret;
}
// cotenant-sim: duration_us=1 signal=1
.visible .entry produce(.param .u32 flag, .param .u32 value, .param .u64 shared, .param .u64 ns)
{
 .reg .u64 %a<1>;
 .reg .u32 %r<1>;
 ld.param.u32 %r0, [value];
 ld.param.u64 %a0, [shared];
 cvta.to.global.u64 %a0, %a0;
 st.volatile.global.u32 [%a0], %r0;
 membar.gl;
 ret;
}
"""


class Waiter:
    def __init__(self, us: int, measured=None):
        cuda.start()
        module, self.consume, self.produce = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), KERNELS.encode() + b"\0")
        cuda.call("cuModuleGetFunction", ctypes.byref(self.consume), module, b"consume")
        cuda.call("cuModuleGetFunction", ctypes.byref(self.produce), module, b"produce")
        self.streams = [ctypes.c_void_p(), ctypes.c_void_p()]
        for stream in self.streams:
            cuda.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        self.shared, self.value, self.launches = cuda.allocate(8), 0, 0
        cuda.call("cuMemcpyHtoD_v2", self.shared, (ctypes.c_uint32 * 2)(), ctypes.c_size_t(8))
        self.flag = ctypes.c_uint32(os.getpid() % 65536)
        self.work = kernels.Load(us, measured, blocks=1)

    def launch(self, function: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        values = (self.flag, ctypes.c_uint32(self.value), self.shared, ctypes.c_uint64(PATIENCE_NS))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p)
                                                     for value in values))
        cuda.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def pair(self) -> None:
        self.value += 1
        self.launch(self.consume, self.streams[0])
        self.work.put(self.streams[1])
        self.launch(self.produce, self.streams[1])
        self.launches += 3


_waiter = None


def start(us: int, measured=None) -> dict:
    global _waiter
    _waiter = Waiter(us, measured)
    return {"kernelS": _waiter.work.kernel_s, "turns": _waiter.work.turns}


def pairs(count: int) -> dict:
    began = time.perf_counter()
    for _ in range(count):
        _waiter.pair()
    cuda.call("cuCtxSynchronize")
    took, both = time.perf_counter() - began, (ctypes.c_uint32 * 2)()
    cuda.call("cuMemcpyDtoH_v2", both, _waiter.shared, ctypes.c_size_t(8))
    return {"seconds": took, "gaveUp": both[1], "launches": _waiter.launches}


if __name__ == "__main__":
    served.serve({"start": start, "pairs": pairs})
