"""A pool of a process that the same process imports: is its memory taken twice, what do its attributes say, and which of
what is done with it keeps memory taken when all is freed?"""

import ctypes
import os

import cuda
from layouts import PoolProps, on_gpu
from step import Answer, Context, Step

DESCRIPTOR, RESERVED, USED = 1, 5, 7
BLOCK = 64 * cuda.MIB
#: How far a life of the pool goes before all is freed and destroyed.
STAGES = ("allocated", "exported", "imported", "pointerExported", "pointerImported")


def attribute(pool, number: int) -> int:
    value = ctypes.c_uint64()
    code = cuda.library().cuMemPoolGetAttribute(pool, number, ctypes.byref(value))
    return value.value if code == 0 else -code


def life(last: str, stream, note) -> dict:
    """Results of calls are the driver's numbers; amounts are what cuMemGetInfo is without since the life's start."""
    library, data, before = cuda.library(), {}, cuda.free_bytes()
    own, other, descriptor = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(-1)
    first, second, third, share = cuda.pointer(), cuda.pointer(), cuda.pointer(), (ctypes.c_ubyte * 64)()
    props = on_gpu(PoolProps)
    props.handle_types = DESCRIPTOR
    stages = STAGES[:STAGES.index(last) + 1]

    def seen(name: str, result: int) -> None:
        data[name] = {"result": result, "gpuBytes": before - cuda.free_bytes(), "ownReserved": attribute(own, RESERVED)}
        if other.value:
            data[name] |= {"importedReserved": attribute(other, RESERVED), "importedUsed": attribute(other, USED)}
        note(data)

    cuda.call("cuMemPoolCreate", ctypes.byref(own), ctypes.byref(props))
    cuda.call("cuMemAllocFromPoolAsync", ctypes.byref(first), ctypes.c_size_t(BLOCK), own, stream)
    cuda.call("cuStreamSynchronize", stream)
    seen("allocated", 0)
    if "exported" in stages:
        seen("exported", library.cuMemPoolExportToShareableHandle(ctypes.byref(descriptor), own, DESCRIPTOR,
                                                                  ctypes.c_uint64(0)))
    if "imported" in stages:
        seen("imported", library.cuMemPoolImportFromShareableHandle(
            ctypes.byref(other), ctypes.c_void_p(descriptor.value), DESCRIPTOR, ctypes.c_uint64(0)))
        data["sameHandle"] = other.value == own.value
    if "pointerExported" in stages:
        seen("pointerExported", library.cuMemPoolExportPointer(ctypes.byref(share), first))
    if "pointerImported" in stages and other.value:
        seen("pointerImported", library.cuMemPoolImportPointer(ctypes.byref(second), other, ctypes.byref(share)))
        data["sameAddress"] = second.value == first.value
        seen("allocatedFromImported",
             library.cuMemAllocFromPoolAsync(ctypes.byref(third), ctypes.c_size_t(BLOCK), other, stream))
        if second.value and second.value != first.value:
            seen("importedFreed", library.cuMemFreeAsync(second, stream))
    if other.value:
        seen("importedPoolDestroyed", library.cuMemPoolDestroy(other))
        other.value = None
    seen("freed", library.cuMemFreeAsync(first, stream))
    seen("synchronized", library.cuStreamSynchronize(stream))
    if descriptor.value >= 0:
        os.close(descriptor.value)
    cuda.call("cuMemPoolDestroy", own)
    data["atTheEndBytes"] = before - cuda.free_bytes()
    return data


def imported(context: Context) -> Answer:
    cuda.start()
    stream, left = ctypes.c_void_p(), {}
    cuda.call("cuStreamCreate", ctypes.byref(stream), 1)
    for last in STAGES:
        data = life(last, stream, lambda seen: context.note({**seen, "leftBytes": left}))
        left[last] = data["atTheEndBytes"]
    steps = [f"{name} {one['result']}, {one['gpuBytes'] / cuda.MIB:g} MiB" for name, one in data.items()
             if isinstance(one, dict)]
    ends = ", ".join(f"{amount / cuda.MIB:g} MiB after {last}" for last, amount in left.items())
    return Answer(
        f"{'; '.join(steps)}; left when all was freed and destroyed: {ends}",
        f"a pool with a block of {BLOCK // cuda.MIB} MiB, exported as a descriptor and imported by its own process; one "
        "life of a pool per stage",
        {**data, "leftBytes": left},
    )


STEPS = (
    Step("pools.imported", ("interposer 7.6",), "a pool that its own process imports", 20, imported),
)
