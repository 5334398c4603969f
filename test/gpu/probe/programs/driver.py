"""A program of the driver API: python3 driver.py WITHIN ABOVE KERNELS. Takes WITHIN bytes, then asks for ABOVE, and
says in one line of JSON what it saw. KERNELS 0: the GPU runs none, so only copies are checked."""

import ctypes
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cuda  # noqa: E402

COUNT = 1 << 16
DOUBLE = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 at)
{
 .reg .u64 %a<4>;
 .reg .u32 %r<6>;
 ld.param.u64 %a0, [at];
 cvta.to.global.u64 %a1, %a0;
 mov.u32 %r0, %ctaid.x;
 mov.u32 %r1, %ntid.x;
 mov.u32 %r2, %tid.x;
 mad.lo.u32 %r3, %r0, %r1, %r2;
 mul.wide.u32 %a2, %r3, 4;
 add.u64 %a3, %a1, %a2;
 ld.global.u32 %r4, [%a3];
 add.u32 %r5, %r4, %r4;
 st.global.u32 [%a3], %r5;
 ret;
}
\0"""


def attempt(size: int):
    """The result of asking for so many bytes, and what was given."""
    at = cuda.pointer()
    try:
        cuda.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    except cuda.CudaError as error:
        return error.code, None
    return 0, at


def main() -> None:
    within, above, kernels = (int(word) for word in sys.argv[1:])
    cuda.start()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), DOUBLE)
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"twice")
    at = cuda.allocate(4 * COUNT)
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(at), ctypes.c_void_p))
    numbers = (ctypes.c_uint32 * COUNT)(*range(COUNT))
    back = (ctypes.c_uint32 * COUNT)()
    cuda.call("cuMemcpyHtoD_v2", at, numbers, ctypes.c_size_t(4 * COUNT))
    cuda.call("cuLaunchKernel", function, COUNT // 256, 1, 1, 256, 1, 1, 0, None, parameters, None)
    cuda.call("cuMemcpyDtoH_v2", back, at, ctypes.c_size_t(4 * COUNT))
    started = time.monotonic_ns()
    factor = 2 if kernels else 1
    correct = all(back[i] == factor * i for i in range(COUNT))
    total = ctypes.c_size_t()
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
    free, seen = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(seen))
    first, block = attempt(within)
    second, large = attempt(above)
    if large is not None:
        cuda.release(large)
    if block is not None:
        cuda.release(block)
    third, _ = attempt(1 << 20)
    print(json.dumps({
        "startedNs": started, "correct": correct, "totalBytes": seen.value, "propertiesTotalBytes": total.value,
        "freeBytes": free.value, "withinResult": first, "aboveResult": second, "afterResult": third,
    }))


if __name__ == "__main__":
    main()
