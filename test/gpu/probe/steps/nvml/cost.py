"""What the calls of our sampler (native/sampler/nvml/nvml.cc) cost, and what they cost others."""

import ctypes
import os
import statistics
import threading
import time

import nvml
from children import Child, ChildError, family
from step import Answer, Context, Step

CLIENTS = (1, 20, 100)
START_S = 45
#: Host memory that a process with a context may need, with a real driver and with the simulated one.
HOST_BYTES = {False: 400 << 20, True: 40 << 20}
CHURN_S = 1.0
CHURN_BYTES = 2 << 20
RATES_HZ = (0, 1, 10, 100)


def sampler_calls(device) -> dict:
    """The calls of one round, by name."""
    number, more, wide = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
    at, beside, far = ctypes.byref(number), ctypes.byref(more), ctypes.byref(wide)
    since = int((time.time() - 1) * 1e6)

    def plain(name, *arguments):
        return lambda: nvml.attempt(name, device, *arguments)

    buffer = (ctypes.c_ubyte * (32 * nvml.MOST_PROCESSES))()

    def listed(kind):
        def ask():
            count = ctypes.c_uint(nvml.MOST_PROCESSES)
            return nvml.attempt(nvml.list_name(kind, 3), device, ctypes.byref(count), buffer)
        return ask

    calls = {nvml.list_name(kind, 3): listed(kind) for kind in ("Compute", "Graphics", "MPSCompute")}
    calls.update({
        "nvmlDeviceGetMemoryInfo_v2": lambda: nvml.memory(device) and 0,
        "nvmlDeviceGetUtilizationRates": lambda: nvml.rates(device)[0],
        "nvmlDeviceGetProcessUtilization": lambda: nvml.utilization(device, since)[0],
        "nvmlDeviceGetProcessesUtilizationInfo": lambda: nvml.utilization_info(device, since)[0],
        "nvmlDeviceGetEncoderUtilization": plain("nvmlDeviceGetEncoderUtilization", at, beside),
        "nvmlDeviceGetDecoderUtilization": plain("nvmlDeviceGetDecoderUtilization", at, beside),
        "nvmlDeviceGetTemperature": plain("nvmlDeviceGetTemperature", 0, at),
        "nvmlDeviceGetPowerUsage": plain("nvmlDeviceGetPowerUsage", at),
        "nvmlDeviceGetEnforcedPowerLimit": plain("nvmlDeviceGetEnforcedPowerLimit", at),
        "nvmlDeviceGetTotalEnergyConsumption": plain("nvmlDeviceGetTotalEnergyConsumption", far),
        "nvmlDeviceGetClockInfo": plain("nvmlDeviceGetClockInfo", 1, at),
        "nvmlDeviceGetMaxClockInfo": plain("nvmlDeviceGetMaxClockInfo", 1, at),
    })
    return calls


def cost(calls: dict) -> dict:
    """Seconds of each call: the first one aside, 20 of each or as many as fit into a tenth of a second."""
    answer = {}
    for name, ask in calls.items():
        code, times, began = ask(), [], time.perf_counter()
        while len(times) < 20 and (not times or time.perf_counter() - began < 0.1):
            before = time.perf_counter()
            ask()
            times.append(time.perf_counter() - before)
        answer[name] = {"code": code, "medianS": statistics.median(times), "worstS": max(times), "calls": len(times)}
    return answer


def host_available() -> int:
    with open("/proc/meminfo") as info:
        return next(int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable"))


def grow(members: list, to: int, deadline: float) -> None:
    """Starts processes with a context, some at a time, until there are so many or time or memory ends."""
    at_once = max(2, min(10, os.cpu_count() or 2))
    while len(members) < to and time.monotonic() < deadline:
        fresh = [Child() for _ in range(min(at_once, to - len(members)))]
        members += fresh
        for one in fresh:
            one.tell("start")
        for one in fresh:
            try:
                one.hear(max(1, deadline + 10 - time.monotonic()))
            except ChildError:
                one.end()
                members.remove(one)
                to = 0


class Sampling(threading.Thread):
    """Rounds of the sampler so many times a second, in this process."""

    def __init__(self, calls: dict, hertz: int):
        super().__init__(daemon=True)
        self.calls, self.hertz, self.rounds, self._end = calls, hertz, [], threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            for ask in self.calls.values():
                ask()
            took = time.monotonic() - began
            self.rounds.append(took)
            self._end.wait(max(0, 1 / self.hertz - took))

    def finish(self) -> None:
        self._end.set()
        self.join()


def effect(calls: dict, who: Child) -> dict:
    """A loop of cuMemAlloc and cuMemFree beside sampling of each rate."""
    answer = {}
    who.ask("churn", bytes=CHURN_BYTES, seconds=0.1)  # the first turns are slower
    for hertz in RATES_HZ:
        sampling = Sampling(calls, hertz) if hertz else None
        if sampling:
            sampling.start()
        try:
            answer[str(hertz)] = who.ask("churn", bytes=CHURN_BYTES, seconds=CHURN_S)
        finally:
            if sampling:
                sampling.finish()
        del answer[str(hertz)]["at"]
        if sampling:
            answer[str(hertz)]["rounds"] = len(sampling.rounds)
            answer[str(hertz)]["roundMedianS"] = statistics.median(sampling.rounds)
    return answer


def measure(context: Context) -> Answer:
    device = nvml.gpu()
    deadline = time.monotonic() + START_S
    by_clients, effects = {}, {}
    before = nvml.memory(device)["free"]
    with family() as members:
        most = max(CLIENTS)
        for wanted in CLIENTS:
            grow(members, min(wanted, most), deadline)
            if len(members) == 1:
                one = max(1, before - nvml.memory(device)["free"])
                host = int(host_available() * 0.8) // HOST_BYTES[context.simulated]
                most = max(1, min(most, int(before * 0.9) // one, host))
            if str(len(members)) in by_clients:
                break
            calls = sampler_calls(device)
            by_clients[str(len(members))] = cost(calls)
            effects[str(len(members))] = effect(calls, members[0])
            context.note({"callsByClients": by_clients, "churnByClients": effects})
    counts, name = list(by_clients), nvml.list_name("Compute", 3)
    rounds = {count: sum(call["medianS"] for call in by_clients[count].values()) for count in counts}
    lists = " / ".join(f"{by_clients[count][name]['medianS'] * 1e6:.0f}" for count in counts)
    whole = " / ".join(f"{rounds[count] * 1e3:.2f}" for count in counts)
    turns = " / ".join(str(round(effects[counts[-1]][str(hertz)]["turns"] / CHURN_S)) for hertz in RATES_HZ)
    return Answer(
        f"the compute list takes {lists} us with {' / '.join(counts)} processes, a whole round {whole} ms; allocations "
        f"of another process per second while sampled at 0 / 1 / 10 / 100 Hz: {turns}",
        f"medians of 20 calls each; cuMemAlloc and cuMemFree of {CHURN_BYTES >> 20} MiB in a loop for {CHURN_S:g} s",
        {"callsByClients": by_clients, "roundSByClients": rounds, "churnByClients": effects,
         "wantedClients": list(CLIENTS), "churnBytes": CHURN_BYTES},
    )


STEPS = (Step("nvml.cost", ("exporter 9.e",), "what sampling costs, also others", 110, measure),)
