"""Processes that need each other at each step, on two GPUs, while both are held at the gate: NCCL's all-reduces, a model
split over two GPUs, and a stand-in that needs nothing but the driver."""

import importlib.util
import socket

import cuda
import machine
import ranks
from step import Answer, Context, NotHere, Step

#: Of the stand-in, the kernel that works.
KERNEL_US = 2000
#: PyTorch's start, with NCCL's.
START_S = 45
HOW = ("a pair of processes bare, one in a grant of 50 % of each GPU, and two beside each other with 30 and 60 %, under "
       "our arbiter: what was charged by windows of a second, and time per step beside that of the bare pair")


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def standin(context: Context) -> Answer:
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",)):
        context.program(*program)

    def begin(folder: str):
        return lambda rank, device: {"rank": rank, "device": device, "folder": folder}

    def observe(env: dict) -> dict:
        return ranks.observe(context, env, "peers.py", begin, 20, prepare={"us": KERNEL_US})

    if context.simulated:
        with machine.simulated_node("h100", "h100") as env:  # the node of the other steps has one GPU
            data = observe(env)
        kind = "simulated GPUs run no code: the processes exchanged their numbers themselves after each step"
    else:
        data = observe({})
        kind = "kernels waited on their GPUs for those of the other process"
    data["allLaunchesCounted"] = all(one["made"] == one["counted"] for one in data["launches"])
    return Answer(
        f"{ranks.said(data)}; {'all' if data['allLaunchesCounted'] else 'NOT all'} launches were counted; {kind}",
        f"a stand-in for NCCL: {HOW}",
        data,
    )


def needed(context: Context) -> None:
    """NotHere, unless two GPUs can be asked with PyTorch and NCCL."""
    import ctypes

    if context.simulated:
        raise NotHere("NCCL's kernels and cuBLAS compute on real GPUs alone; the stand-in ran on the simulated ones")
    count = ctypes.c_int()
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    if count.value < ranks.SIZE:
        raise NotHere(f"needs two GPUs of one machine, and CUDA shows {count.value}")
    if importlib.util.find_spec("torch") is None:
        raise NotHere("there is no PyTorch")
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",), ("libcotenant-nvml.so",)):
        context.program(*program)


def distributed(context: Context, kind: str) -> dict:
    needed(context)

    def begin(folder: str):
        port = free_port()
        return lambda rank, device: {"kind": kind, "rank": rank, "device": device, "port": port}

    return ranks.observe(context, {}, "distributed.py", begin, START_S)


def nccl(context: Context) -> Answer:
    data = distributed(context, "all-reduce")
    return Answer(
        f"{ranks.said(data)}; PyTorch {data['started']['torch']}, NCCL {data['started']['nccl']}",
        f"a matrix product and an all-reduce of 16 MiB a step: {HOW}",
        data,
    )


def parallel(context: Context) -> Answer:
    data = distributed(context, "parallel")
    return Answer(
        f"{ranks.said(data)}; PyTorch {data['started']['torch']}, NCCL {data['started']['nccl']}; vLLM itself was not "
        "tried",
        f"layers split by columns, then rows, with an all-reduce behind each, in a CUDA graph: {HOW}",
        data,
    )


QUESTION = ("interposer 7.10",)
STEPS = (
    Step("gating.standin", QUESTION, "gating of processes that need each other at each step, without NCCL", 75, standin),
    Step("gating.nccl", QUESTION, "gating while NCCL kernels wait for each other", 120, nccl),
    Step("gating.parallel", QUESTION, "gating of a model split over two GPUs, as vLLM splits it", 120, parallel),
)
