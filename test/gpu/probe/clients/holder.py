"""A process that holds memory of the GPU and runs kernels, on request."""

import ctypes
import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import cuda  # noqa: E402
import forms  # noqa: E402
import grants  # noqa: E402
import kernels  # noqa: E402
import served  # noqa: E402
import view  # noqa: E402

_work = None


def gpus() -> dict:
    """Identifier, name and architecture of each GPU that CUDA shows."""
    count = ctypes.c_int()
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    return {"gpus": [{"uuid": grants.uuid_of(device), **cuda.kind(device)} for device in range(count.value)]}


def prepare(us: int, measured=None, batch=None) -> dict:
    """Makes a kernel of about so many microseconds and measures it, on a GPU that no other process uses; or makes it as
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
    "start": lambda: cuda.start() and {}, "gpus": gpus, "prepare": prepare, "busy": busy,
    "progress": progress, "idle": idle, "churn": churn, "fork": fork,
    **forms.DO, **view.DO,
}


served.serve(DO)
