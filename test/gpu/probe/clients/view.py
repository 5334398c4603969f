"""What NVML tells this process, which may give up rights before it asks."""

import ctypes
import os
import time

import nvml

KINDS = ("Compute", "Graphics", "MPSCompute")


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def capabilities() -> int:
    """The effective ones, a bit each."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))


def drop(keep: list = (), user: int = 0) -> None:
    """Keeps of its capabilities only those of these numbers, or becomes an ordinary user. NVML is started after it."""
    ctypes.CDLL("libnvidia-ml.so.1")  # may lie where others cannot look
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        return
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their high halves
    for number in (number for number in keep if capabilities() >> number & 1):
        for which in (0, 1):
            sets[3 * (number // 32) + which] |= 1 << number % 32
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(_Header(0x20080522, 0)), sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def lists(seconds: float) -> dict:
    """The three lists, and which processes used the GPU in the last seconds, with the PIDs that this process gets."""
    device, answer = nvml.gpu(), {"own": os.getpid()}
    for kind in KINDS:
        try:
            found = nvml.processes(device, kind)
            answer[kind] = {"code": 0, "bytes": {str(pid): taken for pid, taken in found.items()}}
        except nvml.NvmlError as refused:
            answer[kind] = {"code": refused.code, "bytes": {}}
    code, rows = nvml.utilization(device, int((time.time() - seconds) * 1e6))
    return {**answer, "utilization": {"code": code, "pids": sorted({row["pid"] for row in rows})}}


def _accounting(device, pid: int) -> dict:
    mode, stats = ctypes.c_int(), (ctypes.c_uint64 * 7)()
    return {
        "nvmlDeviceGetAccountingMode": {
            "code": nvml.attempt("nvmlDeviceGetAccountingMode", device, ctypes.byref(mode)), "on": bool(mode.value)},
        "nvmlDeviceGetAccountingStats": {
            "code": nvml.attempt("nvmlDeviceGetAccountingStats", device, ctypes.c_uint(pid), stats)},
    }


def _gpm(device) -> dict:
    code, supported = nvml.gpm_support(device)
    answer = {"nvmlGpmQueryDeviceSupport": {"code": code, "supported": supported}}
    if code != 0 or not supported:
        return answer
    try:
        counters = nvml.Gpm(device)
        try:
            counters.take(0)
            time.sleep(0.2)
            counters.take(1)
            values = counters.between((nvml.GPM_GRAPHICS,))
            answer["nvmlGpmMetricsGet"] = {"code": 0, "graphicsPercent": values[nvml.GPM_GRAPHICS]}
        finally:
            counters.close()
    except nvml.NvmlError as refused:
        answer["nvmlGpmMetricsGet"] = {"code": refused.code}
    return answer


def calls(pid: int) -> dict:
    """The code of each call (None: the library does not have it), and whether it reports a process of another user."""
    try:
        device = nvml.gpu()
    except nvml.NvmlError as refused:
        return {"calls": {str(refused).split()[0]: {"code": refused.code}}}
    answer = {}
    for kind in KINDS:
        try:
            found = nvml.processes(device, kind)
            answer[f"{kind} list"] = {"code": 0, "listed": pid in found, "memoryKnown": found.get(pid) is not None}
        except nvml.NvmlError as refused:
            answer[f"{kind} list"] = {"code": refused.code}
    since = int((time.time() - 2) * 1e6)
    for name, ask in (("nvmlDeviceGetProcessUtilization", nvml.utilization),
                      ("nvmlDeviceGetProcessesUtilizationInfo", nvml.utilization_info)):
        code, rows = ask(device, since)
        answer[name] = {"code": code, "named": any(row["pid"] == pid for row in rows)}
    name = ctypes.create_string_buffer(256)
    answer["nvmlSystemGetProcessName"] = {
        "code": nvml.attempt("nvmlSystemGetProcessName", ctypes.c_uint(pid), name, len(name)), "named": bool(name.value)}
    answer["nvmlDeviceGetUtilizationRates"] = {"code": nvml.rates(device)[0]}
    answer["nvmlDeviceGetSamples"] = {"code": nvml.gpu_samples(device)[0]}
    return {"calls": {**answer, **_accounting(device, pid), **_gpm(device)}}


DO = {"drop": drop, "lists": lists, "calls": calls, "capabilities": lambda: {"mask": capabilities()}}
