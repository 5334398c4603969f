"""What the driver counts for a process and for the GPU, by NVML."""

import nvml


def used_bytes() -> int:
    """Of the whole GPU, without what the driver keeps for itself."""
    return nvml.memory(nvml.gpu())["used"]


def processes() -> dict:
    """Bytes per process of the compute list; None where the driver does not say."""
    return nvml.processes(nvml.gpu())


def of(pid: int, before: dict):
    """Bytes of a process of ours. In a PID namespace the list may name it by another number: then it is the only one
    that was not there before."""
    now = processes()
    if pid in now:
        return now[pid]
    new = [number for number in now if number not in before]
    return now[new[0]] if len(new) == 1 else None
