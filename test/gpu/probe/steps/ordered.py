"""Linear memory that is freed in the order of a busy stream: when has the GPU it back, and may a request have it before?"""

import ctypes
import os
import time

import cuda
import nvml
from step import Answer, Context, Step

SIZE = 64 * cuda.MIB
SPIN_US = 200_000
STREAMS = ("created", "default")


class Trial:
    """A kernel of SPIN_US on a stream, and a block that is freed behind it."""

    def __init__(self, kind: str, spin: cuda.Spin, size: int):
        self.size, self.stream, self.event = size, ctypes.c_void_p(), ctypes.c_void_p()
        if kind == "created":
            cuda.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        cuda.call("cuEventCreate", ctypes.byref(self.event), 2)
        at = cuda.allocate(size)
        cuda.call("cuCtxSynchronize")
        self.before = figures()
        spin.launch(self.stream)
        self.since = time.monotonic()
        self.code = code("cuMemFreeAsync", at, self.stream)
        cuda.call("cuEventRecord", self.event, self.stream)
        self.freed_s = time.monotonic() - self.since

    def given_back(self) -> dict:
        """By CUDA's figure and by NVML's; None where no list names this process."""
        now = figures()
        taken = None if None in (now["process"], self.before["process"]) else self.before["process"] - now["process"]
        return {"free": now["free"] - self.before["free"], "process": taken}

    def is_back(self) -> bool:
        return self.given_back()["free"] >= self.size

    def is_surely_busy(self) -> bool:
        return time.monotonic() - self.since < SPIN_US / 1e6

    def wait(self) -> None:
        """Until the stream has surely ended, with no call of the driver."""
        time.sleep(max(0.0, self.since + 2 * SPIN_US / 1e6 - time.monotonic()))

    def end(self) -> None:
        cuda.call("cuCtxSynchronize")
        cuda.call("cuEventDestroy_v2", self.event)
        if self.stream:
            cuda.call("cuStreamDestroy_v2", self.stream)


def code(name: str, *arguments) -> int:
    try:
        cuda.call(name, *arguments)
    except cuda.CudaError as refused:
        return refused.code
    return 0


def figures() -> dict:
    _, listed = nvml.listed(nvml.gpu())
    return {"process": (listed or {}).get(os.getpid()), "free": cuda.free_bytes()}


def allocate(size: int) -> dict:
    """A request, its answer and how long that took."""
    at, since = cuda.pointer(), time.monotonic()
    answer = code("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
    seconds = round(time.monotonic() - since, 4)
    if answer == 0:
        cuda.release(at)
    return {"code": answer, "seconds": seconds}


#: What may give it back once the stream has ended, asked one by one.
ACTS = {
    "time": lambda trial: None,
    "eventQuery": lambda trial: code("cuEventQuery", trial.event),
    "streamQuery": lambda trial: code("cuStreamQuery", trial.stream),
    "allocation": lambda trial: allocate(2 * cuda.MIB),
    "eventSynchronize": lambda trial: code("cuEventSynchronize", trial.event),
    "streamSynchronize": lambda trial: code("cuStreamSynchronize", trial.stream),
    "contextSynchronize": lambda trial: code("cuCtxSynchronize"),
}


def life(kind: str, spin: cuda.Spin) -> dict:
    seen = {"givenBackBy": {}}
    for name, act in ACTS.items():
        trial = Trial(kind, spin, SIZE)
        busy = trial.given_back()
        if name == "time":
            seen.update(code=trial.code, callS=round(trial.freed_s, 4), givenBackWhileBusy=busy,
                        wasBusy=trial.is_surely_busy())
        trial.wait()
        act(trial)
        seen["givenBackBy"][name] = trial.is_back()
        trial.end()
    return seen


def full(spin: cuda.Spin) -> dict:
    """A request that fits only into what was freed: while the stream is busy, when it has ended, and once it was
    synchronized."""
    free = cuda.free_bytes() // cuda.MIB
    block, request = free * 2 // 5 * cuda.MIB, free * 4 // 5 * cuda.MIB
    trial = Trial("created", spin, block)
    seen = {"blockBytes": block, "requestBytes": request, "whileBusy": allocate(request)}
    seen["whileBusy"]["wasBusy"] = trial.is_surely_busy()
    trial.end()
    trial = Trial("created", spin, block)
    trial.wait()
    seen["ended"] = allocate(request)
    cuda.call("cuStreamSynchronize", trial.stream)
    seen["synchronized"] = allocate(request)
    trial.end()
    return seen


def managed() -> dict:
    """Managed memory is not documented to be freed so."""
    at = cuda.pointer()
    cuda.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(cuda.MIB), 1)
    answer = code("cuMemFreeAsync", at, None)
    cuda.call("cuCtxSynchronize")
    if answer != 0:
        cuda.release(at)
    return {"code": answer}


def ordered(context: Context) -> Answer:
    cuda.start()
    spin = cuda.Spin(SPIN_US)
    spin.launch()
    cuda.call("cuCtxSynchronize")
    data = {"bytes": SIZE}
    for kind in STREAMS:
        data[kind] = life(kind, spin)
        context.note(data)
    data["full"] = full(spin)
    if context.managed:
        data["managed"] = managed()

    def said(kind: str) -> str:
        seen = data[kind]
        busy = "back" if seen["givenBackWhileBusy"]["free"] >= SIZE else "not back"
        first = next((name for name, back in seen["givenBackBy"].items() if back), "nothing that was asked")
        return f"on a {kind} stream it answers {seen['code']}, {busy} while that is busy, given back first by: {first}"

    requests = ", ".join(f"{name} {data['full'][name]['code']}" for name in ("whileBusy", "ended", "synchronized"))
    return Answer(
        f"{'; '.join(said(kind) for kind in STREAMS)}; a request that needs it answers: {requests}",
        f"cuMemFreeAsync of {SIZE // cuda.MIB} MiB of cuMemAlloc behind a kernel of {SPIN_US // 1000} ms: the difference of "
        "cuMemGetInfo meanwhile, and after each of the calls alone",
        data,
    )


STEPS = (Step("rounding.ordered", ("interposer 7.4",), "linear memory that is freed in stream order", 25, ordered),)
