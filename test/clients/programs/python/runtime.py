# Asks a CUDA runtime, given by its path, for devices and for memory, and prints what it answers as one JSON object.
import ctypes
import json
import sys

runtime = ctypes.CDLL(sys.argv[1])
count, address = ctypes.c_int(-1), ctypes.c_void_p()
answer = {
    "devices": [runtime.cudaGetDeviceCount(ctypes.byref(count)), count.value],
    "memory": runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 20)),
}
print(json.dumps(answer))
