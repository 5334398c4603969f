"""Whether launches can be charged by event pairs: what a pair costs, how fine its time is, and whether the union of
intervals over several streams is the time that the GPU was busy."""

import ctypes
import importlib.util
import pathlib
import sys
import tempfile
import time

import arbiter
import cuda
import grants
import tools
from step import Answer, Context, NotHere, Step

STREAMS, KERNELS, SPIN_US = 4, 6, 5000
#: Of PyTorch: matrix products per stream, and their size.
OPERATIONS, SIZE = 60, 2048
SLICE = 8 << 30


def cost(context: Context) -> Answer:
    seen = tools.run([context.program("probe", "events")], tools.environment(), 15)
    if not seen.pop("ran"):
        raise RuntimeError(seen["why"])
    seen.pop("begunNs")
    batch, each = seen["perBatchNs"] - seen["launchNs"], seen["perLaunchNs"] - seen["launchNs"]
    return Answer(
        f"a launch takes {seen['launchNs']:.0f} ns; a pair around each {seen['batch']} adds {batch:.0f} ns per launch, "
        f"a pair around each one {each:.0f} (until all has run {seen['wholeLaunchNs']:.0f}, "
        f"{seen['wholePerBatchNs'] - seen['wholeLaunchNs']:+.0f} and {seen['wholePerLaunchNs'] - seen['wholeLaunchNs']:+.0f}); event times differ by {seen['smallestStepNs']:.0f} ns at least",
        "medians over 60 rounds in turns of 512 launches of an empty kernel",
        {**seen, "addedPerBatchNs": round(batch, 1), "addedPerLaunchNs": round(each, 1)},
    )


def event() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    cuda.call("cuEventCreate", ctypes.byref(handle), 0)
    return handle


def seconds_between(first: ctypes.c_void_p, second: ctypes.c_void_p) -> float:
    ms = ctypes.c_float()
    cuda.call("cuEventElapsedTime", ctypes.byref(ms), first, second)
    return ms.value / 1e3


def union(intervals: list) -> float:
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def measure(streams: int) -> dict:
    """So many streams of spinning kernels at once, a pair of events around each kernel."""
    spin = cuda.Spin(SPIN_US)
    handles = [ctypes.c_void_p() for _ in range(streams)]
    for handle in handles:
        cuda.call("cuStreamCreate", ctypes.byref(handle), 1)
    pairs = [(event(), event()) for _ in range(streams * KERNELS)]
    base = event()
    spin.launch(handles[0])
    cuda.call("cuCtxSynchronize")
    begun = time.monotonic()
    cuda.call("cuEventRecord", base, handles[0])
    for i, (first, second) in enumerate(pairs):
        stream = handles[i % streams]
        cuda.call("cuEventRecord", first, stream)
        spin.launch(stream)
        cuda.call("cuEventRecord", second, stream)
    cuda.call("cuCtxSynchronize")
    wall = time.monotonic() - begun
    intervals = [(seconds_between(base, first), seconds_between(base, second)) for first, second in pairs]
    for handle in handles:
        cuda.call("cuStreamDestroy_v2", handle)
    return {
        "streams": streams, "kernels": len(pairs), "spinSeconds": SPIN_US / 1e6, "wallSeconds": round(wall, 6),
        "unionSeconds": round(union(intervals), 6),
        "sumSeconds": round(sum(end - begin for begin, end in intervals), 6),
        "shortestSeconds": round(min(end - begin for begin, end in intervals), 6),
        "longestSeconds": round(max(end - begin for begin, end in intervals), 6),
    }


def intervals(context: Context) -> Answer:
    cuda.start()
    one, several = measure(1), measure(STREAMS)
    return Answer(
        f"one stream: {one['kernels']} kernels of {SPIN_US / 1e3:g} ms, union {one['unionSeconds'] * 1e3:.1f} ms of "
        f"{one['wallSeconds'] * 1e3:.1f} ms; {STREAMS} streams: {several['kernels']} kernels, union "
        f"{several['unionSeconds'] * 1e3:.1f} ms, sum {several['sumSeconds'] * 1e3:.1f} ms of "
        f"{several['wallSeconds'] * 1e3:.1f} ms",
        "a pair of events around each kernel, all against one first event, beside the host's clock",
        {"oneStream": one, "severalStreams": several},
    )


def torch_streams(context: Context) -> Answer:
    if context.simulated:
        raise NotHere("cuBLAS computes on real GPUs alone")
    if importlib.util.find_spec("torch") is None:
        raise NotHere("there is no PyTorch")
    cuda.library()
    program = [sys.executable, str(tools.PROGRAMS / "streams.py"), str(STREAMS), str(OPERATIONS), str(SIZE)]
    data = {}

    def observe(**env: str) -> dict:
        seen = tools.run(program, tools.environment(**env), 40)
        if not seen["ran"]:
            raise RuntimeError(seen["why"])
        spans = seen["intervals"]
        return {"operations": len(spans), "wallSeconds": round(seen["wallSeconds"], 6),
                "wholeSeconds": round(seen["wholeSeconds"], 6), "unionSeconds": round(union(spans), 6),
                "sumSeconds": round(sum(end - begin for begin, end in spans), 6), "torch": seen["torch"]}

    data["bare"] = observe()
    context.note(data)
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, grants.calibrate(context), cores=100)
        judge = arbiter.Arbiter(context)
        try:
            judge.plan([(grant, 100)])
            data["granted"] = observe(LD_PRELOAD=grant.both)
            judge.report()  # which may be from before the end
            charged = judge.report()["pages"][0]
        finally:
            judge.end()
    data["granted"].update(chargedSeconds=round(charged["chargedNs"] / 1e9, 6), launches=charged["launches"])
    bare, granted = data["bare"], data["granted"]
    return Answer(
        f"{bare['operations']} matrix products on {STREAMS} streams: union {bare['unionSeconds'] * 1e3:.1f} ms, sum "
        f"{bare['sumSeconds'] * 1e3:.1f} ms of {bare['wholeSeconds'] * 1e3:.1f} ms by the GPU; in a grant of the whole "
        f"GPU {granted['unionSeconds'] * 1e3:.1f} ms, {granted['chargedSeconds'] * 1e3:.1f} ms charged for it and the "
        f"rest of the program, {granted['launches']} launches",
        "PyTorch's own events around each product, bare, and under our arbiter with all of the GPU",
        data,
    )


QUESTION = ("interposer 7.7",)
STEPS = (
    Step("events.cost", QUESTION, "what event pairs cost and how fine they are", 30, cost),
    Step("events.intervals", QUESTION, "whether the union of event intervals is the busy time", 15, intervals),
    Step("events.pytorch", QUESTION, "the union of event intervals of PyTorch on several streams", 60, torch_streams),
)
