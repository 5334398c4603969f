"""Allocates GPU memory, 64 MiB at a time, until the driver refuses, and prints how much it got."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
PIECE = 64 << 20

context, pointer, total, free = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
device = ctypes.c_int()
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(f"GPU memory: {total.value >> 20} MiB, free: {free.value >> 20} MiB")

got = 0
while (error := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(PIECE))) == 0:
    got += PIECE
print(f"allocated {got >> 20} MiB, then cuMemAlloc answered {error} (2 is CUDA_ERROR_OUT_OF_MEMORY)")
