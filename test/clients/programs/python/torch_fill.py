# A PyTorch program that knows nothing of Cotenant: tensors, a graph captured and replayed, then blocks until PyTorch says
# that memory is out, and on from there. Says how it went on one line and holds the memory until its input ends.
import ctypes
import gc
import json
import sys

import torch

BLOCK = 80 << 20  # a multiple of what expandable segments are made of
MIB = 1 << 20


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


said = {
    "version": torch.__version__,
    "available": torch.cuda.is_available(),
    "devices": torch.cuda.device_count(),
    "name": torch.cuda.get_device_name(0),
    "capability": torch.cuda.get_device_capability(0),
}
free, total = torch.cuda.mem_get_info()
property_total = torch.cuda.get_device_properties(0).total_memory

steps = []


def step(name, *more):
    steps.append([name, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), *more])


tensor = block(100 * MIB)
step("tensor")
tensor.fill_(3)
numbers = torch.arange(MIB, dtype=torch.int32)
there = numbers.to("cuda")
step("copy", bool((there.cpu() == numbers).all()), torch.empty(MIB).pin_memory().is_pinned())
del tensor, there
step("deleted")
torch.cuda.empty_cache()
step("emptied")

values = torch.empty(MIB, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    twice = values * 2 + 1
    inside = block(50 * MIB)
    inside.zero_()
step("captured")
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
step("replayed")
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
values + 1
end.record()
torch.cuda.synchronize()
step("timed", begin.elapsed_time(end) > 0)
# cuBLAS and cuDNN have a runtime of their own inside, which the simulated driver does not satisfy.
refused = []
for product in (
    lambda: torch.mm(torch.empty(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")),
    lambda: torch.nn.functional.conv2d(values.view(1, 1, 1024, 1024), values[:9].view(1, 1, 3, 3)),
):
    try:
        product()
    except RuntimeError as raised:
        refused.append(str(raised).splitlines()[0])
del graph, twice, inside, values
gc.collect()
torch.cuda.empty_cache()
step("graph deleted")
idle = torch.cuda.mem_get_info()[0]

held, error, message = [], "", ""
while not error:
    try:
        held.append(block(BLOCK))
    except Exception as raised:
        error, message = type(raised).__module__ + "." + type(raised).__name__, str(raised)
full = torch.cuda.mem_get_info()[0]
held.pop()
held.append(block(BLOCK))
held[-1].fill_(7)
torch.cuda.synchronize()
runtime = ctypes.CDLL("libcudart.so.12")
runtime.cotenantStandInNotSupported.restype = ctypes.c_ulong
print(
    json.dumps(
        {
            "total": total,
            "free": free,
            "idle": idle,
            "full": full,
            "blocks": len(held),
            "propertyTotal": property_total,
            "error": error,
            "message": message,
            "notSupported": runtime.cotenantStandInNotSupported(),
            "alike": {**said, "steps": steps, "refused": refused},
        }
    ),
    flush=True,
)
sys.stdin.read()
