"""One rank of PyTorch's distributed processes: all-reduces in a loop, or a block of a model that is split over the ranks
(columns of its first matrix, rows of its second, an all-reduce behind it, in a CUDA graph), as servers of language models
run it with tensor parallelism. Where PyTorch has no CUDA the same runs on the processor, without graphs, by gloo."""

import datetime
import os
import pathlib
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import served  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

WAIT = datetime.timedelta(seconds=60)
ON_GPU = torch.cuda.is_available()
NUMBERS = 1 << 22 if ON_GPU else 1 << 12
ROWS, WIDTH, INNER = (256, 2048, 8192) if ON_GPU else (8, 64, 256)
LAYERS = 4
_kind = None


class AllReduce:
    """A matrix product, then an all-reduce of 16 MiB whose sum is known to the last bit."""

    def __init__(self, rank: int, size: int, place):
        self.rank, self.size, self.done = rank, size, 0
        self.matrix = torch.ones(WIDTH, WIDTH, device=place) / WIDTH
        self.numbers = torch.empty(NUMBERS, device=place)
        self.wrong = torch.zeros((), dtype=torch.int64, device=place)

    def step(self) -> None:
        base = self.done % 1000
        self.done += 1
        product = self.matrix @ self.matrix
        self.numbers.fill_(base + self.rank)
        self.numbers[:WIDTH] += (product[0] > 2)  # none is: the sum waits for the product
        dist.all_reduce(self.numbers)
        self.wrong += (self.numbers != self.size * base + self.size * (self.size - 1) // 2).sum()

    def right(self) -> bool:
        return int(self.wrong) == 0


class Parallel:
    """Layers of a model, split over the ranks; the whole is reckoned by each rank on its processor, in double precision."""

    def __init__(self, rank: int, size: int, place):
        torch.manual_seed(1)
        self.given = torch.randn(ROWS, WIDTH)
        layers = [(torch.randn(WIDTH, INNER) / WIDTH**0.5, torch.randn(INNER, WIDTH) / INNER**0.5)
                  for _ in range(LAYERS)]
        whole = self.given.double()
        for first, second in layers:
            whole = whole + torch.relu(whole @ first.double()) @ second.double()
        self.whole = whole
        mine = slice(rank * INNER // size, (rank + 1) * INNER // size)
        self.layers = [(first[:, mine].contiguous().to(place), second[mine].contiguous().to(place))
                       for first, second in layers]
        self.input, self.graph = self.given.to(place), None
        if place.type != "cuda":
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # so that nothing is made for the first time within the capture
                self.forward()
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # Threads of NCCL look at events meanwhile, which only this thread must not.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.forward()

    def forward(self) -> None:
        x = self.input
        for first, second in self.layers:
            part = torch.relu(x @ first) @ second
            dist.all_reduce(part)
            x = x + part
        self.output = x

    def step(self) -> None:
        if self.graph:
            self.graph.replay()
        else:
            self.forward()

    def right(self) -> bool:
        return torch.allclose(self.output.double().cpu(), self.whole, rtol=1e-2, atol=1e-2)


KINDS = {"all-reduce": AllReduce, "parallel": Parallel}


def start(kind: str, rank: int, device: int, port: int, size: int = 2) -> dict:
    global _kind
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    if ON_GPU:
        torch.cuda.set_device(device)
    place = torch.device("cuda", device) if ON_GPU else torch.device("cpu")
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=WAIT)
    _kind = KINDS[kind](rank, size, place)
    steps(3)
    return {"torch": torch.__version__, "backend": dist.get_backend(), "graph": getattr(_kind, "graph", None) is not None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if ON_GPU else None}


def steps(count: int) -> dict:
    began = time.perf_counter()
    for _ in range(count):
        _kind.step()
    if ON_GPU:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    return {"seconds": took, "right": _kind.right()}


if __name__ == "__main__":
    served.serve({"start": start, "steps": steps})
