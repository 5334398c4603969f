"""The CUDA driver API by ctypes: only what steps call. Results are checked; handles are plain integers."""

import ctypes
import os

INVALID_VALUE, OUT_OF_MEMORY, NOT_FOUND = 1, 2, 500
MIB = 1 << 20

_library = None


class CudaError(Exception):
    def __init__(self, name: str, code: int):
        super().__init__(f"{name} answered {code}")
        self.code = code


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    return _library


def call(name: str, *arguments) -> None:
    """Calls an entry point by its exported name; raises CudaError for any result but success, and where there is none."""
    code = getattr(library(), name)(*arguments) if hasattr(library(), name) else NOT_FOUND
    if code != 0:
        raise CudaError(name, code)


def pointer() -> ctypes.c_uint64:
    return ctypes.c_uint64()


def version() -> int:
    value = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(value))
    return value.value


def start(device: int = 0) -> int:
    """Starts CUDA and makes the primary context of a device current."""
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    return context.value


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def allocate(size: int) -> ctypes.c_uint64:
    at = pointer()
    call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    return at


def release(at: ctypes.c_uint64) -> None:
    call("cuMemFree_v2", at)


#: Turns until so many microseconds of the GPU's clock have passed; a simulated driver reads the comment instead.
_SPIN = """.version 7.0
.target sm_50
.address_size 64
// cotenant-sim: duration_us={us} error=0
.visible .entry spin(.param .u64 ns)
{{
 .reg .u64 %t<4>;
 .reg .pred %p;
 ld.param.u64 %t0, [ns];
 mov.u64 %t1, %globaltimer;
 add.u64 %t2, %t1, %t0;
again:
 mov.u64 %t3, %globaltimer;
 setp.lt.u64 %p, %t3, %t2;
 @%p bra again;
 ret;
}}
"""


class Spin:
    """A kernel of one thread that runs for about so many microseconds."""

    def __init__(self, us: int):
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        text = _SPIN.format(us=us).encode() + b"\0"
        call("cuModuleLoadData", ctypes.byref(self.module), text)
        call("cuModuleGetFunction", ctypes.byref(self.function), self.module, b"spin")
        self._ns = ctypes.c_uint64(us * 1000)
        self._parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(self._ns), ctypes.c_void_p))

    def launch(self, stream=None) -> None:
        call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, stream, self._parameters, None)


def kind(device: int = 0) -> dict:
    """Name and architecture of a GPU."""
    name, values = ctypes.create_string_buffer(128), []
    call("cuInit", 0)
    call("cuDeviceGetName", name, len(name), device)
    for attribute in (75, 76):  # compute capability, major and minor
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        values.append(value.value)
    return {"name": name.value.decode(), "compute": "{}.{}".format(*values)}


def facts() -> dict:
    """Driver and GPU, for the head of a report."""
    import nvml

    if any(hasattr(loaded, "cotenant_interposer") for loaded in (ctypes.CDLL(None), library())):
        raise RuntimeError("Cotenant's interposer is in this process, and would be asked instead of the driver")
    first = kind()
    total = ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
    try:
        driver = nvml.driver_version()
    except (OSError, nvml.NvmlError) as problem:
        driver = f"not reported: {problem}"  # what is asked of CUDA alone can be answered all the same
    return {
        "driver": driver,
        "cuda": version(),
        "gpu": {**first, "totalBytes": total.value},
    }
