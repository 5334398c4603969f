# A Numba program: kernels, streams and events, then device arrays until there is no room for another. Prints one JSON
# object, then waits for the end of its input. Knows nothing of Cotenant.
import gc
import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

BLOCK = 64 << 20


def free():
    return cuda.current_context().get_memory_info().free


@cuda.jit
def touch(array):
    array[cuda.grid(1)] = 1


total = cuda.current_context().get_memory_info().total
before = free()
numbers = np.arange(1 << 18, dtype=np.int32)
stream = cuda.stream()
start, end = cuda.event(), cuda.event()
array = cuda.to_device(numbers, stream=stream)
start.record(stream)
touch[4, 64, stream](array)
end.record(stream)
stream.synchronize()
assert end.query() and cuda.event_elapsed_time(start, end) > 0
assert array.copy_to_host(stream=stream).shape == numbers.shape
idle = free()

blocks = []
try:
    while True:
        blocks.append(cuda.device_array(BLOCK, dtype=np.uint8))
except CudaAPIError as error:
    refusal = int(error.code)
full, held = free(), len(blocks)
blocks.pop()
gc.collect()
blocks.append(cuda.device_array(BLOCK, dtype=np.uint8))
answer = {"total": total, "free": before, "idle": idle, "full": full, "blocks": held, "refusal": refusal, "again": 0}
print(json.dumps(answer), flush=True)
sys.stdin.read()
