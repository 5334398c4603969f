"""Stream-ordered pools: what they reserve, what lives in them, and when the GPU has it back."""

import ctypes

import cuda
from layouts import PoolProps, on_gpu
from step import Answer, Context, Step

MIB = cuda.MIB
THRESHOLD, RESERVED, USED = 4, 5, 7
SIZES = (1, 512, MIB, 2 * MIB + 1, 33 * MIB, 100 * MIB)


class Pool:
    """A pool of its own, so that nothing that the default pool keeps is counted."""

    def __init__(self, threshold: int):
        self.handle, self.before = ctypes.c_void_p(), cuda.free_bytes()
        props = on_gpu(PoolProps)
        cuda.call("cuMemPoolCreate", ctypes.byref(self.handle), ctypes.byref(props))
        value = ctypes.c_uint64(threshold)
        cuda.call("cuMemPoolSetAttribute", self.handle, THRESHOLD, ctypes.byref(value))
        self.stream = ctypes.c_void_p()
        cuda.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def attribute(self, number: int) -> int:
        value = ctypes.c_uint64()
        cuda.call("cuMemPoolGetAttribute", self.handle, number, ctypes.byref(value))
        return value.value

    def state(self) -> dict:
        return {
            "reservedBytes": self.attribute(RESERVED), "usedBytes": self.attribute(USED),
            "gpuBytes": self.before - cuda.free_bytes(),
        }

    def allocate(self, size: int):
        at = cuda.pointer()
        cuda.call("cuMemAllocFromPoolAsync", ctypes.byref(at), ctypes.c_size_t(size), self.handle, self.stream)
        return at

    def free(self, at) -> None:
        cuda.call("cuMemFreeAsync", at, self.stream)

    def settle(self) -> None:
        cuda.call("cuStreamSynchronize", self.stream)

    def end(self) -> int:
        """Ends it; what the GPU is still without."""
        cuda.call("cuStreamDestroy_v2", self.stream)
        cuda.call("cuMemPoolDestroy", self.handle)
        return self.before - cuda.free_bytes()


def life(size: int, threshold: int) -> dict:
    pool = Pool(threshold)
    at = pool.allocate(size)
    pool.settle()
    held = pool.state()
    pool.free(at)
    unsettled = pool.state()
    pool.settle()
    settled = pool.state()
    cuda.call("cuMemPoolTrimTo", pool.handle, ctypes.c_size_t(0))
    trimmed = pool.state()
    return {"held": held, "freedBeforeSync": unsettled, "freedAndSynchronized": settled, "trimmed": trimmed,
            "afterDestroyGpuBytes": pool.end()}


def churn(rounds: int = 40) -> dict:
    """The most that a pool reserves above what lives in it, while sizes come and go without an order."""
    pool = Pool((1 << 64) - 1)
    live, worst, seed = [], 0, 12345
    for _ in range(rounds):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        if len(live) > 12:
            pool.free(live.pop(seed % len(live)))
        live.append(pool.allocate((seed >> 8) % (8 * MIB) + 1))
        worst = max(worst, pool.attribute(RESERVED) - pool.attribute(USED))
    pool.settle()
    end = pool.state()
    for at in live:
        pool.free(at)
    pool.settle()
    pool.end()
    return {"mostReservedAboveUsedBytes": worst, "end": end}


def pools(context: Context) -> Answer:
    cuda.start()
    data = {}
    for name, threshold in (("thresholdZero", 0), ("thresholdHigh", (1 << 64) - 1)):
        data[name] = {}
        for size in SIZES:
            data[name][str(size)] = life(size, threshold)
            context.note(data)
    data["churn"] = churn()
    zero, high = data["thresholdZero"][str(MIB)], data["thresholdHigh"][str(MIB)]
    return Answer(
        f"a pool with 1 MiB in it reserves {zero['held']['reservedBytes'] / MIB:g} MiB and takes "
        f"{zero['held']['gpuBytes'] / MIB:g}; freed and synchronized it still takes "
        f"{zero['freedAndSynchronized']['gpuBytes'] / MIB:g} with threshold 0, "
        f"{high['freedAndSynchronized']['gpuBytes'] / MIB:g} with the highest, {high['trimmed']['gpuBytes'] / MIB:g} "
        "once trimmed",
        "a pool per size and threshold: its attributes, and the difference of cuMemGetInfo",
        data,
    )


STEPS = (
    Step("rounding.pools", ("interposer 7.4", "interposer 7.6"), "what pools reserve, use and keep", 20, pools),
)
