"""PyTorch: python3 pytorch.py WITHIN ABOVE. Multiplies matrices through cuBLAS and checks them, takes WITHIN bytes,
then asks for ABOVE, and says in one line of JSON what it saw."""

import json
import sys
import time

import torch


def attempt(size: int):
    """2 where PyTorch's allocator says that there is no memory, and the tensor."""
    try:
        return 0, torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return 2, None


def main() -> None:
    within, above = (int(word) for word in sys.argv[1:])
    torch.manual_seed(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    product = (a.cuda() @ b.cuda()).cpu()
    started = time.monotonic_ns()
    correct = torch.allclose(product.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-2)
    free, total = torch.cuda.mem_get_info()
    first, block = attempt(within)
    second, large = attempt(above)
    held = torch.cuda.memory_reserved()
    del block, large
    torch.cuda.empty_cache()
    third, _ = attempt(1 << 20)
    again = torch.allclose((a.cuda() @ b.cuda()).cpu(), product)
    print(json.dumps({
        "startedNs": started, "correct": bool(correct and again), "totalBytes": total,
        "propertiesTotalBytes": torch.cuda.get_device_properties(0).total_memory, "freeBytes": free,
        "withinResult": first, "aboveResult": second, "afterResult": third, "reservedBytes": held,
        "torch": torch.__version__,
    }))


main()
