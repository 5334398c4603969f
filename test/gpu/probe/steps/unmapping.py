"""What cuMemUnmap does with a range that is not one mapping: with a gap in front, behind or between, or with a part."""

import ctypes

import cuda
from layouts import Location, VmmProp, on_gpu
from step import Answer, Context, Step

PIECE = 32 * cuda.MIB
#: The reservation in pieces: what is mapped (each letter a mapping of its own memory) and which pieces are unmapped.
CASES = {
    "whole": ("AA..", 0, 2), "two": ("AB..", 0, 2), "nothing": ("....", 0, 2), "gapInFront": (".A..", 0, 2),
    "gapBehind": ("A...", 0, 2), "gapBetween": ("A.B.", 0, 3), "firstPart": ("AA..", 0, 1), "lastPart": ("AA..", 1, 1),
    "oneAndPart": ("ABB.", 0, 2),
}


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def code_of(name: str, *arguments) -> int:
    return getattr(cuda.library(), name)(*arguments)


def mapped(at: int) -> bool:
    """Whether the driver knows memory at an address of a reservation."""
    handle = ctypes.c_uint64()
    found = code_of("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(at)) == 0
    if found:
        cuda.call("cuMemRelease", handle)
    return found


def one(layout: str, first: int, count: int) -> dict:
    """Memory whose handles are released, so that only its mappings keep it. `gpuBytes` is what the GPU is without: as
    mapped, and after the range was unmapped."""
    prop, before, base = on_gpu(VmmProp), cuda.free_bytes(), cuda.pointer()
    cuda.call("cuMemAddressReserve", ctypes.byref(base), ctypes.c_size_t(len(layout) * PIECE), ctypes.c_size_t(0),
              ctypes.c_uint64(0), ctypes.c_uint64(0))
    mappings = [(layout.index(letter), layout.count(letter)) for letter in sorted(set(layout) - {"."})]
    for start, pieces in mappings:
        handle, size = ctypes.c_uint64(), ctypes.c_size_t(pieces * PIECE)
        at = ctypes.c_uint64(base.value + start * PIECE)
        cuda.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), ctypes.c_uint64(0))
        cuda.call("cuMemMap", at, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = Access(prop.location, 3)
        cuda.call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))
        cuda.call("cuMemRelease", handle)
    held = before - cuda.free_bytes()
    result = code_of("cuMemUnmap", ctypes.c_uint64(base.value + first * PIECE), ctypes.c_size_t(count * PIECE))
    still = "".join(letter if letter != "." and mapped(base.value + index * PIECE) else "."
                    for index, letter in enumerate(layout))
    after = before - cuda.free_bytes()
    for start, pieces in mappings:  # what is left; a mapping that is gone is refused or ignored
        code_of("cuMemUnmap", ctypes.c_uint64(base.value + start * PIECE), ctypes.c_size_t(pieces * PIECE))
    freed = code_of("cuMemAddressFree", base, ctypes.c_size_t(len(layout) * PIECE))
    return {"result": result, "still": still, "gpuBytes": [held, after], "atTheEndBytes": before - cuda.free_bytes(),
            "addressFreeResult": freed}


def unmapping(context: Context) -> Answer:
    cuda.start()
    data = {}
    for name, how in CASES.items():
        data[name] = {"mapped": how[0], "unmapped": [how[1], how[1] + how[2]], **one(*how)}
        context.note(data)
    return Answer(
        "; ".join(f"{name} ({case['mapped']} from {case['unmapped'][0]} to {case['unmapped'][1]}) answers "
                  f"{case['result']}, {case['still']} is left, {case['gpuBytes'][1] / cuda.MIB:g} of "
                  f"{case['gpuBytes'][0] / cuda.MIB:g} MiB taken" for name, case in data.items()),
        f"pieces of {PIECE // cuda.MIB} MiB whose handles are released; what is left by cuMemRetainAllocationHandle",
        data,
    )


STEPS = (
    Step("mappings.gaps", ("interposer 7.4",), "what unmapping a range does that is not one mapping", 20, unmapping),
)
