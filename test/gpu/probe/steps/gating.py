"""Questions that need two cards: each is listed with what it would need, so that none is forgotten."""

import cuda
from step import Answer, Context, NotHere, Step


def lacking(what: str) -> Answer:
    """What a step would need besides cards; where there are two, it says that it still has to be written."""
    import ctypes

    count = ctypes.c_int()
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    cards = f"this machine has {count.value}"
    if count.value > 1:
        cards += ": the step is not written yet, and now can be"
    raise NotHere(f"needs two cards of one machine ({cards}), {what}")


def nccl(context: Context) -> Answer:
    return lacking(
        "PyTorch with NCCL and two processes that run all-reduces while one of them is held back at the gate: do peers "
        "spin in NCCL's kernels meanwhile, and does the pair go on when the gate opens?"
    )


def vllm(context: Context) -> Answer:
    return lacking(
        "vLLM and a small model served with tensor parallelism of two, both in grants whose shares are held at different "
        "moments: is the text the same, and what does the slower card cost?"
    )


QUESTION = ("interposer 7.10",)
STEPS = (
    Step("gating.nccl", QUESTION, "gating while NCCL kernels wait for each other", 5, nccl),
    Step("gating.vllm", QUESTION, "gating under vLLM with tensor parallelism of two", 5, vllm),
)
