"""What the driver counts for a process and for the card, by NVML."""

import nvml


def used_bytes() -> int:
    """Of the whole card, without what the driver keeps for itself."""
    return nvml.memory(nvml.card())["used"]


def processes() -> dict:
    """Bytes per process of the compute list; None where the driver does not say."""
    return nvml.processes(nvml.card())


def of(pid: int, before: dict):
    """Bytes of a process of ours. In a PID namespace the list may name it by another number: then it is the only one
    that was not there before."""
    now = processes()
    if pid in now:
        return now[pid]
    new = [number for number in now if number not in before]
    return now[new[0]] if len(new) == 1 else None
