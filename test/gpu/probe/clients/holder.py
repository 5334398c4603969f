"""A process that holds memory of the card and runs kernels, as it is told: one JSON request per line on standard input,
one answer per line on standard output. It ends when its input does."""

import json
import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import cuda  # noqa: E402
import forms  # noqa: E402
import kernels  # noqa: E402
import view  # noqa: E402

_work = None


def prepare(us: int, measured=None, batch=None) -> dict:
    """Makes a kernel of about so many microseconds and measures it, on a card that nobody else uses; or makes it as
    another process `measured` it, which is what that one was answered here."""
    global _work
    _work = kernels.Load(us, measured, batch)
    return {"kernelS": _work.kernel_s, "turns": _work.turns}


def busy() -> None:
    """Runs the prepared kernel again and again until `idle`."""
    _work.run()


def progress() -> dict:
    """How many kernels have ended since `busy`."""
    return {"kernels": _work.done}


def idle() -> dict:
    return _work.stop()


def churn(bytes: int, seconds: float) -> dict:
    """Allocates and releases in a loop; how long one turn took."""
    turns, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = time.perf_counter()
        cuda.release(cuda.allocate(bytes))
        turns.append(time.perf_counter() - before)
    turns.sort()
    return {"turns": len(turns), "medianS": turns[len(turns) // 2], "p99S": turns[len(turns) * 99 // 100],
            "worstS": turns[-1]}


def fork() -> dict:
    """A child that does nothing, with all descriptors of this process; it ends by itself after 30 s."""
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    return {"pid": pid}


DO = {
    "start": lambda: cuda.start() and {}, "prepare": prepare, "busy": busy, "progress": progress, "idle": idle,
    "churn": churn, "fork": fork,
    **forms.DO, **view.DO,
}


def main() -> None:
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = DO[given.pop("do")](**given) or {}
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}", "code": getattr(problem, "code", None)}
        print(json.dumps({"at": time.monotonic(), **answer}), flush=True)
    os._exit(0)  # without the driver's own leave-taking, which can wait for a kernel


main()
