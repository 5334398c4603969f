"""How much of the GPU an allocation really takes, per form and size: of the first GPU that CUDA shows, for its
architecture. Those of other kinds are asked by othergpus.py."""

import ctypes
import math
import statistics

import cuda
from layouts import ArrayDescriptor, VmmProp, on_gpu
from step import Answer, Context, NotHere, Step

MIB = cuda.MIB
SIZES = (1, 512, 4096, 65536, 256 << 10, 512 << 10, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 16 * MIB, 64 * MIB)
NOT_SUPPORTED = 801
ROWS = 3000


def taken_by(make, count: int = 1):
    """Bytes of the GPU that `count` calls of `make` take, and what they answered."""
    before = cuda.free_bytes()
    made = [make() for _ in range(count)]
    return before - cuda.free_bytes(), made


def linear(context: Context) -> Answer:
    cuda.start()
    # Small blocks may share a granule, so each size is taken often enough to fill several, at 512 bytes a block too.
    taken, apart = {}, {}
    for size in SIZES:
        count = max(1, min(16384, 32 * MIB // size))
        before = cuda.free_bytes()
        blocks = [cuda.allocate(size) for _ in range(count)]
        taken[str(size)] = {"blocks": count, "bytes": before - cuda.free_bytes()}
        addresses = sorted(block.value for block in blocks)
        distances = [after - before for before, after in zip(addresses, addresses[1:])]
        if distances:
            apart[str(size)] = {"leastBytes": min(distances), "medianBytes": statistics.median_low(distances)}
        for block in blocks:
            cuda.release(block)
    one = {size: entry["bytes"] / entry["blocks"] for size, entry in taken.items()}
    granule = math.gcd(*(entry["bytes"] for entry in taken.values()))
    gpu = cuda.kind()
    return Answer(
        f"on {gpu['name']} (compute capability {gpu['compute']}) one MiB and one byte takes "
        f"{one[str(MIB + 1)] / MIB:g} MiB; all amounts are multiples of "
        f"{granule / MIB:g} MiB; blocks of one byte lie {apart['1']['leastBytes']} bytes apart",
        "difference of cuMemGetInfo before and after so many cuMemAlloc of one size, and of neighbors' addresses",
        {"linear": taken, "apart": apart},
    )


def pitch_rules(rows: dict) -> dict:
    """What the interposer relies on, whatever the padding is on this GPU: a row of one byte tells it, and rows so padded
    are what is taken, in granules."""
    entries = [(int(width), rows["1"][element]["pitchBytes"], entry) for width, elements in rows.items()
               for element, entry in elements.items()]
    return {
        "padsLikeOneByte": all(entry["pitchBytes"] == -(-width // least) * least for width, least, entry in entries),
        "takesItsRows": all(0 <= entry["bytes"] - ROWS * entry["pitchBytes"] < 2 * MIB
                            for _, _, entry in entries if ROWS * entry["pitchBytes"] >= MIB),
    }


def pitch(context: Context) -> Answer:
    cuda.start()
    rows = {}
    for width in (1, 100, 511, 512, 513, 1000, 4096, 5000, 65537):
        per_element = {}
        for element in (4, 8, 16):
            at, step = cuda.pointer(), ctypes.c_size_t()

            def make():
                cuda.call("cuMemAllocPitch_v2", ctypes.byref(at), ctypes.byref(step), ctypes.c_size_t(width),
                          ctypes.c_size_t(ROWS), element)

            taken, _ = taken_by(make)
            cuda.release(at)
            per_element[str(element)] = {"pitchBytes": step.value, "bytes": taken}
        rows[str(width)] = per_element
    pitches = {entry["pitchBytes"] for elements in rows.values() for entry in elements.values()}
    common = 0
    for value in pitches:
        while value:
            common, value = value, common % value
    return Answer(
        f"all pitches are multiples of {common} bytes; a row of 513 bytes takes {rows['513']['4']['pitchBytes']}; rows are "
        f"{'all' if pitch_rules(rows)['padsLikeOneByte'] else 'NOT all'} padded as one of one byte is, and take "
        f"{'no more than their padding' if pitch_rules(rows)['takesItsRows'] else 'OTHER amounts'}",
        f"cuMemAllocPitch of {ROWS} rows per width and element size, and the difference of cuMemGetInfo",
        {"rows": ROWS, "pitch": rows, "commonDivisorBytes": common, **pitch_rules(rows)},
    )


def managed(context: Context) -> Answer:
    if not context.managed:
        raise NotHere("managed memory is taken only with --managed")
    cuda.start()
    taken = {}
    for size in (1, 65536, 65537, MIB, 3 * MIB + 1, 16 * MIB):
        at = cuda.pointer()

        def make():
            cuda.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), 1)

        start = cuda.free_bytes()
        allocated, _ = taken_by(make)
        cuda.call("cuMemsetD8_v2", at, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        cuda.call("cuCtxSynchronize")
        on_the_gpu = start - cuda.free_bytes()
        ctypes.memset(at.value, 2, size)
        on_the_host = start - cuda.free_bytes()
        cuda.release(at)
        taken[str(size)] = {
            "allocatedBytes": allocated, "touchedByGpuBytes": on_the_gpu, "touchedByHostBytes": on_the_host,
        }
    largest = taken[str(16 * MIB)]
    return Answer(
        f"16 MiB take {largest['allocatedBytes'] / MIB:g} MiB of the GPU at once, "
        f"{largest['touchedByGpuBytes'] / MIB:g} after the GPU wrote them, "
        f"{largest['touchedByHostBytes'] / MIB:g} after the host wrote them",
        "difference of cuMemGetInfo, one allocation at a time",
        {"managed": taken},
    )


def vmm(context: Context) -> Answer:
    cuda.start()
    prop = on_gpu(VmmProp)
    granularity = {}
    for name, option in (("minimumBytes", 0), ("recommendedBytes", 1)):
        value = ctypes.c_size_t()
        cuda.call("cuMemGetAllocationGranularity", ctypes.byref(value), ctypes.byref(prop), option)
        granularity[name] = value.value
    least = granularity["minimumBytes"]
    handle = ctypes.c_uint64()

    def create(size: int):
        cuda.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0))

    taken = {}
    for pieces in (1, 2, 5):
        bytes_taken, _ = taken_by(lambda: create(pieces * least))
        cuda.call("cuMemRelease", handle)
        taken[str(pieces * least)] = bytes_taken
    # A size between two multiples is a mistake by the documentation; how it ends is worth knowing.
    between = 0
    try:
        create(least // 2)
        cuda.call("cuMemRelease", handle)
    except cuda.CudaError as error:
        between = error.code
    return Answer(
        f"granularity is {least / MIB:g} MiB at least, {granularity['recommendedBytes'] / MIB:g} recommended; "
        f"one piece takes {taken[str(least)] / MIB:g} MiB; half a piece answers {between}",
        "cuMemGetAllocationGranularity, then cuMemCreate and the difference of cuMemGetInfo",
        {**granularity, "vmm": taken, "halfAPieceResult": between},
    )


def arrays(context: Context) -> Answer:
    cuda.start()
    taken = {}
    for width, height in ((64, 0), (64, 64), (1024, 1024), (1000, 1000), (4096, 4096)):
        shape = ArrayDescriptor(width, height, 0x20, 1)  # one channel of 32-bit floating point
        handle = ctypes.c_void_p()

        def make():
            cuda.call("cuArrayCreate_v2", ctypes.byref(handle), ctypes.byref(shape))

        try:
            bytes_taken, _ = taken_by(make)
        except cuda.CudaError as error:
            if error.code == NOT_SUPPORTED and context.simulated:
                raise NotHere("the simulated driver has no arrays") from error
            raise
        cuda.call("cuArrayDestroy", handle)
        taken[f"{width}x{height}"] = {"textureBytes": 4 * width * max(1, height), "bytes": bytes_taken}
    return Answer(
        f"an array of 1000 x 1000 floats takes {taken['1000x1000']['bytes'] / MIB:g} MiB, "
        f"one of 64 x 64 {taken['64x64']['bytes'] / MIB:g} MiB",
        "cuArrayCreate of one array at a time, and the difference of cuMemGetInfo",
        {"arrays": taken},
    )


def host(context: Context) -> Answer:
    cuda.start()
    size = 64 * MIB
    at = ctypes.c_void_p()
    allocated, _ = taken_by(lambda: cuda.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), 0))
    cuda.call("cuMemFreeHost", at)
    own = ctypes.create_string_buffer(size + 4096)
    start = (ctypes.addressof(own) + 4095) // 4096 * 4096
    page = ctypes.c_void_p(start)
    registered, _ = taken_by(lambda: cuda.call("cuMemHostRegister_v2", page, ctypes.c_size_t(size), 0))
    cuda.call("cuMemHostUnregister", page)
    return Answer(
        f"64 MiB of page-locked host memory take {allocated / MIB:g} MiB of the GPU when allocated by the driver, "
        f"{registered / MIB:g} when registered",
        "cuMemHostAlloc and cuMemHostRegister, and the difference of cuMemGetInfo",
        {"requestedBytes": size, "hostAllocBytes": allocated, "hostRegisterBytes": registered},
    )


QUESTION = ("interposer 7.4", "interposer 5.4")
STEPS = (
    Step("rounding.linear", QUESTION, "what cuMemAlloc takes of the GPU", 20, linear),
    Step("rounding.pitch", QUESTION, "what cuMemAllocPitch takes of the GPU", 15, pitch),
    Step("rounding.vmm", QUESTION, "granularity of memory by handle", 15, vmm),
    Step("rounding.arrays", QUESTION, "what arrays take of the GPU", 15, arrays),
    Step("rounding.host", QUESTION, "whether page-locked host memory takes any of the GPU", 15, host),
    Step("rounding.managed", QUESTION, "what managed memory takes of the GPU", 15, managed),
)
