"""Whether a look-up's pointer says which entry point it is: the interposer wraps an answer of cuGetProcAddress only if
asking again at a version that it knows gives the same pointer."""

import collections
import ctypes
import pathlib

import cuda
from step import ROOT, Answer, Context, Step

PER_THREAD_STREAM, LEGACY_STREAM = 2, 1
NEWER = (13010, 13020, 14000, 99990)

Row = collections.namedtuple("Row", "base version mode symbol")


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p),
    ]


_libc = ctypes.CDLL(None)
_libc.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_DlInfo)]


def rows() -> list:
    lines = (ROOT / "native/abi/cuda-driver.facts").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [Row(base, int(version), mode, symbol) for base, version, mode, symbol in rows if version != "-"]


#: How often the driver answered a look-up with which result and status.
answers = collections.Counter()
#: The same of look-ups at versions up to the driver's own: above it drivers may refuse all of them, as an H100's did.
within = collections.Counter()
own_version = None


def look_up(base: str, version: int, flags: int):
    """The pointer, or None where the driver knows no such entry point; or answers otherwise, which `answers` has."""
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    ask = cuda.library().cuGetProcAddress_v2
    code = ask(base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
    answers[f"{code} {status.value}"] += 1
    if own_version is None or version <= own_version:
        within[f"{code} {status.value}"] += 1
    return pointer.value if code == 0 and status.value == 0 else None


def exported(symbol: str):
    try:
        return ctypes.cast(getattr(cuda.library(), symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


def named(pointer: int):
    """The symbol that begins at this address, and the file that it lies in, by dladdr."""
    info = _DlInfo()
    if not _libc.dladdr(pointer, ctypes.byref(info)):
        return None, None
    name = info.name.decode() if info.name and info.address == pointer else None
    return name, pathlib.PurePath((info.file or b"").decode()).name


def newest(table: list) -> dict:
    """Row of the newest variant per base and stream mode."""
    best = {}
    for row in table:
        if (row.base, row.mode) not in best or best[row.base, row.mode].version < row.version:
            best[row.base, row.mode] = row
    return best


def identity(context: Context) -> Answer:
    cuda.call("cuInit", 0)
    global own_version
    table, version = rows(), cuda.version()
    own_version = version
    lists = collections.defaultdict(list)
    files = set()
    by_address = collections.defaultdict(set)
    found = 0
    for row in table:
        flags = PER_THREAD_STREAM if row.mode == "per-thread" else LEGACY_STREAM
        first, second = look_up(row.base, row.version, flags), look_up(row.base, row.version, flags)
        key = f"{row.base} {row.version} {row.mode}"
        # A driver older than the variant answers with the one that it has.
        if first is None or row.version > version:
            lists["notFound" if row.version <= version else "cameLater"].append(key)
            continue
        found += 1
        by_address[first].add(row.symbol)
        if first != second:
            lists["secondLookUpDiffers"].append(key)
        if row.mode == "legacy" and look_up(row.base, row.version, 0) != first:
            lists["withoutFlagDiffers"].append(key)
        if first != exported(row.symbol):
            lists["differsFromExport"].append(key)
        name, file = named(first)
        files.add(file)
        if name is None:
            lists["noSymbolBeginsThere"].append(key)
        elif name != row.symbol:
            lists["namedOtherwise"].append(f"{key}: {name}")
    newer_found = dict.fromkeys(map(str, NEWER), 0)
    for (base, mode), row in newest(table).items():
        flags = PER_THREAD_STREAM if mode == "per-thread" else LEGACY_STREAM
        known = look_up(base, row.version, flags)
        for version in NEWER:
            answer = look_up(base, version, flags)
            newer_found[str(version)] += answer is not None
            if None not in (known, answer) and answer != known:
                lists["newerVariant"].append(f"{base} {version} {mode}")
    shared = sorted(sorted(names) for names in by_address.values() if len(names) > 1)
    names = ("notFound", "secondLookUpDiffers", "withoutFlagDiffers", "differsFromExport", "noSymbolBeginsThere",
             "namedOtherwise", "newerVariant")
    data = {"asked": len(table), "found": found, "cameLater": len(lists["cameLater"]),
            "files": sorted(str(file) for file in files),
            "resultsAndStatus": dict(sorted(answers.items())),
            "sharedAddresses": shared, "newerFound": newer_found, **{name: lists[name] for name in names}}
    # Not found is reported by both: by a result, and by the status of a call that succeeded.
    refused = {what: times for what, times in within.items() if what.split()[0] not in ("0", str(cuda.NOT_FOUND))}
    return Answer(
        (f"look-ups were REFUSED, by result and status: {refused}; " if refused else "")
        + f"of {found} variants {found - len(lists['secondLookUpDiffers'])} answer one pointer twice, "
        f"{found - len(lists['differsFromExport'])} the exported symbol's; dladdr names another symbol for "
        f"{len(lists['namedOtherwise'])} and none for {len(lists['noSymbolBeginsThere'])}; "
        f"{len(lists['newerVariant'])} answers change at newer versions, at which "
        f"{min(newer_found.values())} to {max(newer_found.values())} are found",
        "cuGetProcAddress_v2 twice for each row of native/abi/cuda-driver.facts, dlsym, dladdr, and the newest "
        f"variants again at versions {', '.join(map(str, NEWER))}",
        data,
    )


STEPS = (
    Step("identity", ("interposer 7.1", "interposer 2.4"), "whether a look-up's pointer identifies an entry point", 20,
         identity),
)
