"""A pool of a process that the same process imports: is its memory taken twice, and what do its attributes say?"""

import ctypes
import os

import cuda
from layouts import PoolProps, on_gpu
from step import Answer, Context, Step

DESCRIPTOR, RESERVED, USED = 1, 5, 7
BLOCK = 64 * cuda.MIB


def attribute(pool, number: int) -> int:
    value = ctypes.c_uint64()
    code = cuda.library().cuMemPoolGetAttribute(pool, number, ctypes.byref(value))
    return value.value if code == 0 else -code


def imported(context: Context) -> Answer:
    """Results of calls are the driver's numbers; amounts are what cuMemGetInfo is without since the start."""
    cuda.start()
    library, data, before = cuda.library(), {}, cuda.free_bytes()
    own, other, stream, descriptor = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(-1)
    props = on_gpu(PoolProps)
    props.handle_types = DESCRIPTOR
    cuda.call("cuStreamCreate", ctypes.byref(stream), 1)
    cuda.call("cuMemPoolCreate", ctypes.byref(own), ctypes.byref(props))
    first = cuda.pointer()
    cuda.call("cuMemAllocFromPoolAsync", ctypes.byref(first), ctypes.c_size_t(BLOCK), own, stream)
    cuda.call("cuStreamSynchronize", stream)

    def note(name: str, result: int) -> None:
        data[name] = {"result": result, "gpuBytes": before - cuda.free_bytes(), "ownReserved": attribute(own, RESERVED)}
        if other.value:
            data[name] |= {"importedReserved": attribute(other, RESERVED), "importedUsed": attribute(other, USED)}
        context.note(data)

    note("allocated", 0)
    note("exported", library.cuMemPoolExportToShareableHandle(ctypes.byref(descriptor), own, DESCRIPTOR, ctypes.c_uint64(0)))
    note("imported", library.cuMemPoolImportFromShareableHandle(ctypes.byref(other), ctypes.c_void_p(descriptor.value),
                                                                DESCRIPTOR, ctypes.c_uint64(0)))
    if other.value:
        data["sameHandle"] = other.value == own.value
        share, second = (ctypes.c_ubyte * 64)(), cuda.pointer()
        note("pointerExported", library.cuMemPoolExportPointer(ctypes.byref(share), first))
        note("pointerImported", library.cuMemPoolImportPointer(ctypes.byref(second), other, ctypes.byref(share)))
        data["sameAddress"] = second.value == first.value
        third = cuda.pointer()
        note("allocatedFromImported", library.cuMemAllocFromPoolAsync(ctypes.byref(third), ctypes.c_size_t(BLOCK), other,
                                                                      stream))
        if second.value and second.value != first.value:
            note("importedFreed", library.cuMemFreeAsync(second, stream))
        note("importedPoolDestroyed", library.cuMemPoolDestroy(other))
        other.value = None
    note("freed", library.cuMemFreeAsync(first, stream))
    note("synchronized", library.cuStreamSynchronize(stream))
    os.close(descriptor.value)
    cuda.call("cuMemPoolDestroy", own)
    data["atTheEndBytes"] = before - cuda.free_bytes()
    steps = [f"{name} {one['result']}, {one['gpuBytes'] / cuda.MIB:g} MiB" for name, one in data.items()
             if isinstance(one, dict)]
    return Answer(
        f"{'; '.join(steps)}; {data['atTheEndBytes'] / cuda.MIB:g} MiB are left at the end",
        f"a pool with a block of {BLOCK // cuda.MIB} MiB, exported as a descriptor and imported by its own process",
        data,
    )


STEPS = (
    Step("pools.imported", ("interposer 7.6",), "a pool that its own process imports", 20, imported),
)
