"""How a GPU is shared by two processes that both have work: shares, and how long each stays on the GPU."""

import contextlib
import json
import select
import statistics
import subprocess
import sys

import cuda
import tools
from step import Answer, Context, Step

WAIT_S = 15
#: Kernel length, and how many: about half a second of work each.
LOADS = ((100, 4000), (20_000, 25))


class Worker:
    def __init__(self, context: Context, us: int, kernels: int, turns: list):
        program = [sys.executable, str(tools.PROGRAMS / "busy.py"), str(int(context.simulated)), str(us), str(kernels),
                   *turns]
        self.child = subprocess.Popen(program, env=tools.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, bufsize=1)

    def line(self) -> str:
        if not select.select([self.child.stdout], [], [], WAIT_S)[0]:
            raise TimeoutError(f"nothing from a worker within {WAIT_S} s")
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with {self.child.wait()}")
        return line

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def together(context: Context, us: int, kernels: int, workers: int, turns: list) -> list:
    """`turns` of a kernel's loop, as text: the first worker of all finds them out alone, and all others do the same work."""
    with contextlib.ExitStack() as undo:
        started = []
        for _ in range(workers):
            started.append(Worker(context, us, kernels, turns))
            undo.callback(started[-1].end)
            turns[:] = [started[-1].line().strip()]
        for worker in started:
            worker.child.stdin.write("\n")
        return [json.loads(worker.line()) for worker in started]


def summary(seen: dict) -> dict:
    """From the ends of kernels: how long the process was off the GPU in between, and on it in one go."""
    ends = seen["ends"]
    steps = [after - before for before, after in zip(ends, ends[1:])]
    kernel = statistics.median(steps)
    off, stretches, on = [], [], 0.0
    for step in steps:
        # Half a millisecond more than a kernel takes: it waited for work of another process.
        if step > kernel + 0.5e-3:
            off.append(step - kernel)
            stretches.append(on)
            on = kernel
        else:
            on += step
    return {
        "wallSeconds": round(seen["done"] - seen["begun"], 4), "kernelSeconds": round(kernel, 6),
        "interruptions": len(off), "medianOffSeconds": round(statistics.median(off), 6) if off else None,
        # The first and last stretch are cut by begin and end.
        "medianOnSeconds": round(statistics.median(stretches[1:]), 6) if len(stretches) > 2 else None,
        "gapsInKernels": len(seen["gaps"]),
        "medianGapSeconds": round(statistics.median(seen["gaps"]), 6) if seen["gaps"] else None,
    }


def overlap(pair: list) -> float:
    """Share of the first one's kernels that ended while both ran, of all that did."""
    begin, end = max(seen["begun"] for seen in pair), min(seen["done"] for seen in pair)
    counts = [sum(1 for at in seen["ends"] if begin <= seen["begun"] + at <= end) for seen in pair]
    return round(counts[0] / max(1, sum(counts)), 4)


def timeslice(context: Context) -> Answer:
    cuda.library()
    data, parts = {}, []
    for us, kernels in LOADS:
        turns = []
        alone = together(context, us, kernels, 1, turns)[0]
        pair = together(context, us, kernels, 2, turns)
        first, second = (summary(seen) for seen in pair)
        entry = {"kernels": kernels, "alone": summary(alone), "first": first, "second": second,
                 "firstShare": overlap(pair)}
        entry["slowdown"] = round(max(first["wallSeconds"], second["wallSeconds"]) / entry["alone"]["wallSeconds"], 3)
        data[f"kernels{us}us"] = entry
        context.note(data)
        length = first["medianGapSeconds"] or first["medianOffSeconds"]
        said = f"the other's slice is about {length * 1e3:.2f} ms" if length else "slices do not show in kernels' ends"
        parts.append(f"kernels of {us} us: {entry['slowdown']:g} times as long together as alone, the first one's "
                     f"share {entry['firstShare']:.0%}, {said}")
    return Answer(
        "; ".join(parts),
        "two processes with the same work at once: ends of kernels by events, and gaps in the GPU's clock that a "
        "kernel saw itself",
        data,
    )


STEPS = (
    Step("timeslice", ("interposer 7.8",), "shares and slices of two processes that are busy at once", 45, timeslice),
)
