"""NVML by ctypes: only what steps call. The layouts are those of native/abi/nvml.h."""

import ctypes
import os

NOT_AVAILABLE = (1 << 64) - 1
_library = None


class NvmlError(Exception):
    def __init__(self, name: str, code: int):
        super().__init__(f"{name} answered {code}")
        self.code = code


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        loaded = ctypes.CDLL("libnvidia-ml.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        code = loaded.nvmlInit_v2()
        if code != 0:
            raise NvmlError("nvmlInit_v2", code)
        _library = loaded
    return _library


def call(name: str, *arguments) -> None:
    code = getattr(library(), name)(*arguments)
    if code != 0:
        raise NvmlError(name, code)


def driver_version() -> str:
    text = ctypes.create_string_buffer(80)
    call("nvmlSystemGetDriverVersion", text, len(text))
    return text.value.decode()


def card(index: int = 0) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    return handle
