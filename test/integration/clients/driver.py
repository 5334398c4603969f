# A program of NVIDIA's Python driver bindings: takes memory, moves bytes there and back, launches, asks what there is.
# Prints one JSON object. Knows nothing of Cotenant.
import ctypes
import json
import random
import sys

from cuda.bindings import driver


def call(name, *arguments):
    result, *values = getattr(driver, name)(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {result}")
    return values[0] if len(values) == 1 else values


call("cuInit", 0)
device = call("cuDeviceGet", 0)
name = call("cuDeviceGetName", 64, device).split(b"\0")[0].decode()
context = call("cuDevicePrimaryCtxRetain", device)
call("cuCtxSetCurrent", context)
answer = {
    "gpus": call("cuDeviceGetCount"),
    "name": name,
    "total": call("cuDeviceTotalMem", device),
    "info": call("cuMemGetInfo"),
}

size = 1 << 20
data = random.Random(7).randbytes(size)
first, second = call("cuMemAlloc", size), call("cuMemAlloc", size)
call("cuMemcpyHtoD", first, data, size)
call("cuMemcpyDtoD", second, first, size)
back = bytearray(size)
call("cuMemcpyDtoH", back, second, size)
answer["same"] = back == data

text = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work(.param .u64 a)\n{ ret; }\n\0"
module = call("cuModuleLoadData", text)
function = call("cuModuleGetFunction", module, b"work")
stream = call("cuStreamCreate", 0)
start, end = call("cuEventCreate", 0), call("cuEventCreate", 0)
call("cuEventRecord", start, stream)
for _ in range(20):
    call("cuLaunchKernel", function, 4, 1, 1, 32, 1, 1, 0, stream, ((first,), (ctypes.c_void_p,)), 0)
call("cuEventRecord", end, stream)
call("cuStreamSynchronize", stream)
answer["milliseconds"] = call("cuEventElapsedTime", start, end)

pooled = call("cuMemAllocAsync", size, stream)
call("cuMemFreeAsync", pooled, stream)
call("cuStreamSynchronize", stream)
result, _ = driver.cuMemAlloc(int(sys.argv[1]))
answer["big"] = result.name
answer["after"] = call("cuMemGetInfo")
print(json.dumps(answer))
