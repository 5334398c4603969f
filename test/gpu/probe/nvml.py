"""NVML by ctypes: only what steps call. The layouts are those of native/abi/nvml.h."""

import ctypes
import os
import struct

SUCCESS = 0
NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13
NOT_AVAILABLE = (1 << 64) - 1
MOST_PROCESSES = 1024
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


def attempt(name: str, *arguments):
    """The code that an entry point answers; None where the library does not have it."""
    return getattr(library(), name)(*arguments) if hasattr(library(), name) else None


def call(name: str, *arguments) -> None:
    code = getattr(library(), name)(*arguments)
    if code != 0:
        raise NvmlError(name, code)


def driver_version() -> str:
    text = ctypes.create_string_buffer(80)
    call("nvmlSystemGetDriverVersion", text, len(text))
    return text.value.decode()


def gpu() -> ctypes.c_void_p:
    """The GPU that is asked: the one that machine.py names, which is CUDA's first; NVML's first where none is named."""
    handle, uuid = ctypes.c_void_p(), os.environ.get("COTENANT_PROBE_GPU")
    if uuid is None:
        call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle))
        return handle
    # CUDA gives instances of a divided GPU identifiers, too, and NVML gives those another prefix.
    code = library().nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    if code == NOT_FOUND:
        code = library().nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1).encode(), ctypes.byref(handle))
    if code != SUCCESS:
        raise NvmlError(f"nvmlDeviceGetHandleByUUID of {uuid}", code)
    return handle


class Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("total", ctypes.c_uint64),
                ("reserved", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64)]


def memory(device) -> dict:
    """The GPU's bytes in the second form, in which `used` does not contain what the driver keeps for itself."""
    out = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
    call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(out))
    return {"total": out.total, "reserved": out.reserved, "used": out.used, "free": out.free}


def list_name(kind: str, version: int) -> str:
    return f"nvmlDeviceGet{kind}RunningProcesses" + (f"_v{version}" if version > 1 else "")


#: Nominal bytes of an entry by version of the call; real drivers differed (exporter.md 2.2).
NOMINAL = {1: 16, 2: 24, 3: 24}


def raw_list(device, name: str, room: int, filling: int = 0xAA):
    """One call into a buffer full of `filling`, with space behind the announced room: (code, count, bytes)."""
    buffer = (ctypes.c_ubyte * (max(room, 1) * 64))()
    ctypes.memset(buffer, filling, len(buffer))
    count = ctypes.c_uint(room)
    code = attempt(name, device, ctypes.byref(count), buffer)
    return code, count.value, bytes(buffer)


def written(content: bytes, filling: int) -> int:
    """Bytes up to the last that differs from the filling."""
    return len(content.rstrip(bytes([filling])))


def entry_bytes(content: bytes, count: int, filling: int, nominal: int) -> int:
    """Size of an entry, from where `count` of them end."""
    end = written(content, filling)
    for size in (16, 24, 32):
        if count > 0 and (count - 1) * size < end <= count * size:
            return size
    return nominal


def processes(device, kind: str = "Compute") -> dict:
    """What a list says now: bytes by pid, None where the driver does not report them."""
    for version in (3, 2, 1):
        code, count, content = raw_list(device, list_name(kind, version), MOST_PROCESSES)
        if code in (None, FUNCTION_NOT_FOUND):
            continue
        if code != 0:
            raise NvmlError(list_name(kind, version), code)
        size = entry_bytes(content, count, 0xAA, NOMINAL[version])
        entries = (struct.unpack_from("<I4xQ", content, i * size) for i in range(count))
        return {pid: None if taken == NOT_AVAILABLE else taken for pid, taken in entries}
    raise NvmlError(list_name(kind, 3), FUNCTION_NOT_FOUND)


def listed(device, kind: str = "Compute") -> tuple:
    """The driver's code, and the same; None in its place where the driver refuses the list, which does not mean that a process is
    not there."""
    try:
        return SUCCESS, processes(device, kind)
    except NvmlError as refused:
        return refused.code, None


class Utilization(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("at_us", ctypes.c_uint64),
                ("sm", ctypes.c_uint32), ("memory", ctypes.c_uint32), ("encoder", ctypes.c_uint32),
                ("decoder", ctypes.c_uint32)]


def utilization(device, last_seen_us: int):
    """(code, rows) of what each process used since a time on the wall clock."""
    rows = (Utilization * MOST_PROCESSES)()
    count = ctypes.c_uint(MOST_PROCESSES)
    code = attempt("nvmlDeviceGetProcessUtilization", device, rows, ctypes.byref(count),
                   ctypes.c_ulonglong(last_seen_us))
    if code != 0:
        return code, []
    return code, [{"pid": row.pid, "atUs": row.at_us, "sm": row.sm, "memory": row.memory}
                  for row in rows[: min(count.value, MOST_PROCESSES)]]


class UtilizationInfo(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_uint64)] + [(name, ctypes.c_uint32) for name in (
        "pid", "sm", "memory", "encoder", "decoder", "jpeg", "ofa", "pad")]


class UtilizationRequest(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("count", ctypes.c_uint32), ("last_seen_us", ctypes.c_uint64),
                ("entries", ctypes.POINTER(UtilizationInfo))]


def utilization_info(device, last_seen_us: int):
    """The same from the newer call: (code, rows)."""
    rows = (UtilizationInfo * MOST_PROCESSES)()
    request = UtilizationRequest(ctypes.sizeof(UtilizationRequest) | 1 << 24, MOST_PROCESSES, last_seen_us, rows)
    code = attempt("nvmlDeviceGetProcessesUtilizationInfo", device, ctypes.byref(request))
    if code != 0:
        return code, []
    return code, [{"pid": row.pid, "atUs": row.at_us, "sm": row.sm, "memory": row.memory}
                  for row in rows[: min(request.count, MOST_PROCESSES)]]


def rates(device):
    """(code, percent of time in which a kernel ran)."""
    out = (ctypes.c_uint32 * 2)()
    code = attempt("nvmlDeviceGetUtilizationRates", device, out)
    return code, out[0]


class Sample(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_uint64), ("value", ctypes.c_uint64)]


def gpu_samples(device):
    """(code, time stamps in µs) of the GPU's own utilization samples that the driver still has."""
    kind, count = ctypes.c_int(), ctypes.c_uint(0)
    arguments = (device, 1, ctypes.c_ulonglong(0), ctypes.byref(kind), ctypes.byref(count))
    code = attempt("nvmlDeviceGetSamples", *arguments, None)
    if code != 0 or count.value == 0:
        return code, []
    found = (Sample * count.value)()
    code = attempt("nvmlDeviceGetSamples", *arguments, found)
    return code, [sample.at_us for sample in found[: count.value]] if code == 0 else []


GPM_GRAPHICS, GPM_SM = 1, 2


def gpm_support(device):
    """(code, supported)."""
    out = (ctypes.c_uint32 * 2)(1, 0)
    return attempt("nvmlGpmQueryDeviceSupport", device, out), bool(out[1])


class Gpm:
    """Percent of time from one moment to another, by the GPU's own counters."""

    def __init__(self, device):
        self.device, self.samples = device, (ctypes.c_void_p(), ctypes.c_void_p())
        for sample in self.samples:
            call("nvmlGpmSampleAlloc", ctypes.byref(sample))

    def take(self, which: int) -> None:
        call("nvmlGpmSampleGet", self.device, self.samples[which])

    def between(self, metrics) -> dict:
        # Room for the longest form of the structure, of which the driver reads as many metrics as it is asked for.
        request = ctypes.create_string_buffer(24 + 40 * 333)
        struct.pack_into("<IIQQ", request, 0, 1, len(metrics), *(sample.value for sample in self.samples))
        for i, metric in enumerate(metrics):
            struct.pack_into("<I", request, 24 + 40 * i, metric)
        call("nvmlGpmMetricsGet", request)
        answers = (struct.unpack_from("<Iid", request, 24 + 40 * i) for i in range(len(metrics)))
        return {metric: value if code == 0 else None for metric, code, value in answers}

    def close(self) -> None:
        for sample in self.samples:
            call("nvmlGpmSampleFree", sample)
