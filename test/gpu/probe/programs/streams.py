"""PyTorch on several streams at once: python3 streams.py STREAMS OPERATIONS SIZE. A pair of events around each matrix
product, all against one first event, beside the host's clock; one line of JSON."""

import json
import sys
import time

import torch


def main() -> None:
    streams, operations, size = (int(word) for word in sys.argv[1:])
    started = time.monotonic_ns()
    handles = [torch.cuda.Stream() for _ in range(streams)]
    # Of sizes that differ, so that streams do not march in step.
    given = [torch.randn(size + 64 * index, size + 64 * index, device="cuda") for index in range(streams)]
    base, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    pairs = []
    for warm in (True, False):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        base.record()
        for handle in handles:
            handle.wait_stream(torch.cuda.current_stream())
        for _ in range(1 if warm else operations):
            for handle, matrix in zip(handles, given):
                with torch.cuda.stream(handle):
                    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    first.record()
                    matrix @ matrix
                    second.record()
                pairs += [] if warm else [(first, second)]
        for handle in handles:
            torch.cuda.current_stream().wait_stream(handle)
        last.record()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begun
    intervals = [(base.elapsed_time(first) / 1e3, base.elapsed_time(second) / 1e3) for first, second in pairs]
    print(json.dumps({"startedNs": started, "wallSeconds": wall, "wholeSeconds": base.elapsed_time(last) / 1e3,
                      "intervals": intervals, "torch": torch.__version__}))


main()
