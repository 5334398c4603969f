"""How much of the card an allocation really takes, per form and size."""

import cuda
from step import Answer, Context, Step

SIZES = (1, 512, 4096, 65536, 1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 1, 3 << 20, 16 << 20, 64 << 20)


def linear(context: Context) -> Answer:
    cuda.start()
    # Small blocks may share a granule, so each size is taken often enough to fill several.
    taken = {}
    for size in SIZES:
        count = max(1, min(512, (32 << 20) // size))
        before = cuda.free_bytes()
        blocks = [cuda.allocate(size) for _ in range(count)]
        taken[str(size)] = {"blocks": count, "bytes": before - cuda.free_bytes()}
        for block in blocks:
            cuda.release(block)
    one = {size: entry["bytes"] / entry["blocks"] for size, entry in taken.items()}
    granules = sorted({entry["bytes"] for entry in taken.values() if entry["bytes"] > 0})
    return Answer(
        f"one MiB and one byte takes {one[str((1 << 20) + 1)] / cuda.MIB:g} MiB; the smallest step seen is "
        f"{granules[0] / cuda.MIB:g} MiB",
        "difference of cuMemGetInfo before and after so many cuMemAlloc of one size",
        {"linear": taken},
    )


STEPS = (Step("rounding.linear", ("interposer 7.4",), "what cuMemAlloc takes of the card", 20, linear),)
