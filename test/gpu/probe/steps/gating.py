"""Questions that one card cannot answer: each is listed with what it would need, so that none is forgotten."""

from step import Answer, Context, NotHere, Step


def nccl(context: Context) -> Answer:
    raise NotHere(
        "needs two cards of one machine, PyTorch with NCCL and two processes that run all-reduces while one of them is "
        "held back at the gate: do peers spin in NCCL's kernels meanwhile, and does the pair go on when the gate opens?"
    )


def vllm(context: Context) -> Answer:
    raise NotHere(
        "needs two cards of one machine, vLLM and a small model served with tensor parallelism of two, both in "
        "grants whose shares are held at different moments: is the text the same, and what does the slower card cost?"
    )


QUESTION = ("interposer 7.10",)
STEPS = (
    Step("gating.nccl", QUESTION, "gating while NCCL kernels wait for each other", 5, nccl),
    Step("gating.vllm", QUESTION, "gating under vLLM with tensor parallelism of two", 5, vllm),
)
