"""What the driver counts for a process and for the card, by NVML."""

import ctypes

import nvml

_MOST = 256
_FILL = 0xAA


class _Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("pad", ctypes.c_uint)] + [
        (name, ctypes.c_uint64) for name in ("total", "reserved", "free", "used")
    ]


def used_bytes() -> int:
    """Of the whole card, without what the driver keeps for itself."""
    memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
    nvml.call("nvmlDeviceGetMemoryInfo_v2", nvml.card(), ctypes.byref(memory))
    return memory.used


def processes() -> dict:
    """Bytes per process of the compute list; None where the driver does not say."""
    text = (ctypes.c_ubyte * (32 * _MOST))(*[_FILL] * (32 * _MOST))
    count = ctypes.c_uint(_MOST)
    nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", nvml.card(), ctypes.byref(count), text)
    end = len(text)
    while end > 0 and text[end - 1] == _FILL:
        end -= 1
    # Entries have had 24 and 32 bytes under this name: they end where the filling begins.
    stride = 32 if end > count.value * 24 else 24
    held = {}
    for i in range(count.value):
        pid = ctypes.c_uint.from_buffer(text, i * stride).value
        value = ctypes.c_uint64.from_buffer(text, i * stride + 8).value
        held[pid] = None if value == nvml.NOT_AVAILABLE else value
    return held


def of(pid: int, before: dict):
    """Bytes of a process of ours. In a PID namespace the list may name it by another number: then it is the only one
    that was not there before."""
    now = processes()
    if pid in now:
        return now[pid]
    new = [number for number in now if number not in before]
    return now[new[0]] if len(new) == 1 else None
