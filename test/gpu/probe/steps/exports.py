"""Which entry points the driver exports, against native/abi/cuda-driver.facts."""

import pathlib
import struct

import cuda
from step import ROOT, Answer, Context, Step


def loaded_path(name: str) -> str:
    """Path of a library of this process, by the kernel's own list."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5].strip() if len(line.split(maxsplit=5)) == 6 else ""
            if pathlib.PurePath(path).name.startswith(name):
                return path
    raise LookupError(name)


def exported(path: str) -> list:
    """Names that a 64-bit little-endian ELF object defines for others, from its section .dynsym."""
    image = pathlib.Path(path).read_bytes()
    offset, entry_size, count = (struct.unpack_from(f, image, at)[0] for f, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, offset + i * entry_size) for i in range(count)]
    names = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], section[9]):
            name, info, other, index = struct.unpack_from("<IBBH", image, at)
            if index != 0 and info >> 4 in (1, 2) and other & 3 == 0:
                end = image.index(b"\0", strings + name)
                names.add(image[strings + name : end].decode())
    return sorted(names)


def compare(context: Context) -> Answer:
    cuda.library()
    path = loaded_path("libcuda.so")
    found = {name for name in exported(path) if name.startswith("cu")}
    facts = (ROOT / "native/abi/cuda-driver.facts").read_text().splitlines()
    rows = [line.split() for line in facts if line and not line.startswith("#")]
    # A driver that came before a name cannot have it.
    version, known = cuda.version(), {name for _, _, _, name in rows}
    due = {name for _, since, _, name in rows if since == "-" or int(since) <= version}
    more, fewer = sorted(found - known), sorted(due - found)
    return Answer(
        f"{len(found)} names are exported; {len(more)} of them are not in our table, {len(fewer)} of ours are missing, "
        f"{len(known - due)} came after this driver",
        f"section .dynsym of {pathlib.PurePath(path).name}",
        {"exported": len(found), "notInTable": more, "missing": fewer, "cameLater": len(known - due)},
    )


STEPS = (Step("exports", ("interposer 7.2",), "the driver's export list against our table", 20, compare),)
