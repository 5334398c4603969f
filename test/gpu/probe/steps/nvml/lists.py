"""The layout of NVML's process lists, found out by writing over a known filling."""

import ctypes
import struct

import nvml
from children import Child, family
from step import Answer, Context, NotHere, Step

KINDS = ("Compute", "Graphics", "MPSCompute")
FILLINGS = (0xAA, 0x55)
DETAIL_VERSION = 24 | 1 << 24
DETAIL_MODES = {"compute": 0, "graphics": 1, "mps": 2, "all": 3}


def two_clients(members: list) -> list:
    """Pids of two processes with a context."""
    members += [Child(), Child()]
    for member in members:
        member.tell("start")
    for member in members:
        member.hear(30)
    return [member.pid for member in members]


def layout(content: bytes, count: int, filling: int, pids: list) -> dict:
    """Where the entries end, and how far apart two known pids lie."""
    places = sorted(place for pid in pids for place in range(0, len(content) - 3, 4)
                    if struct.unpack_from("<I", content, place)[0] == pid)
    apart = places[1] - places[0] if len(places) == 2 else None
    return {"writtenBytes": nvml.written(content, filling), "count": count, "knownPidsApart": apart}


def stride_of(fills: list, count: int):
    """From two fillings, so that a byte that happens to equal one of them does not count as untouched."""
    written = max(fill["writtenBytes"] for fill in fills)
    apart = {fill["knownPidsApart"] for fill in fills if fill["knownPidsApart"]}
    if written == 0 or count == 0:
        return None
    if len(apart) == 1 and min(apart) % 8 == 0:
        distance = min(apart)
        between = [size for size in (16, 24, 32, 40)
                   if distance % size == 0 and (count - 1) * size < written <= count * size]
        return between[0] if between else distance
    return written // count if written % count == 0 else None


def ask(device, name: str, pids: list) -> dict:
    fills, code, count = [], None, 0
    for filling in FILLINGS:
        code, count, content = nvml.raw_list(device, name, 256, filling)
        if code is None:
            return {"exists": False}
        fills.append(layout(content, count, filling, pids))
    empty = ctypes.c_uint(0)
    without = nvml.attempt(name, device, ctypes.byref(empty), None)
    few = nvml.raw_list(device, name, 1)
    exact = nvml.raw_list(device, name, count) if count else None
    return {
        "exists": True, "code": code, "entries": count, "entryBytes": stride_of(fills, count) if code == 0 else None,
        "writtenBytes": max(fill["writtenBytes"] for fill in fills),
        "noBuffer": {"code": without, "count": empty.value},
        "roomForOne": {"code": few[0], "count": few[1], "writtenBytes": nvml.written(few[2], FILLINGS[0])},
        "exactRoom": None if exact is None else {"code": exact[0], "count": exact[1]},
    }


def stride(context: Context) -> Answer:
    device = nvml.gpu()
    with family() as members:
        pids = two_clients(members)
        lists = {nvml.list_name(kind, version): ask(device, nvml.list_name(kind, version), pids)
                 for kind in KINDS for version in (1, 2, 3)}
        _, found = nvml.listed(device)
        listed = sorted(set(found or {}) & set(pids))
    compute = [lists[nvml.list_name("Compute", version)] for version in (1, 2, 3)]
    if not any(form.get("entries") for form in compute):
        codes = [form.get("code") for form in compute]
        raise NotHere(f"no compute list names anybody although two processes hold a context (codes {codes}): pids of "
                      "another namespace?")
    sizes = ", ".join(f"v{i + 1} {form.get('entryBytes') or 'nothing'}" for i, form in enumerate(compute))
    short = compute[2].get("roomForOne", {})
    return Answer(
        f"entry bytes of the compute list: {sizes}; too little room answers {short.get('code')} with count "
        f"{short.get('count')}; {len(listed)} of our 2 processes listed by their pids here",
        "each list asked into buffers full of 0xaa and of 0x55, with two processes of ours on the GPU",
        {"lists": lists, "clients": 2, "clientsListed": len(listed)},
    )


class DetailList(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("mode", ctypes.c_uint32), ("count", ctypes.c_uint32),
                ("pad", ctypes.c_uint32), ("entries", ctypes.c_void_p)]


def detail_mode(device, mode: int, pids: list) -> dict:
    fills, code, request, entries = [], None, None, []
    for filling in FILLINGS:
        buffer = (ctypes.c_ubyte * (256 * 64))()
        ctypes.memset(buffer, filling, len(buffer))
        request = DetailList(DETAIL_VERSION, mode, 256, 0, ctypes.addressof(buffer))
        code = nvml.attempt("nvmlDeviceGetRunningProcessDetailList", device, ctypes.byref(request))
        content = bytes(buffer)
        fills.append(layout(content, request.count, filling, pids))
    without = DetailList(DETAIL_VERSION, mode, 0, 0, None)
    without_code = nvml.attempt("nvmlDeviceGetRunningProcessDetailList", device, ctypes.byref(without))
    size = stride_of(fills, request.count) if code == 0 else None
    if size is not None and size >= 24:
        for i in range(request.count):
            pid, taken, gpu, compute = struct.unpack_from("<I4xQII", content, i * size)
            guarded = struct.unpack_from("<Q", content, i * size + 24)[0] if size >= 32 else None
            entries.append({"ours": pid in pids, "bytes": None if taken == nvml.NOT_AVAILABLE else taken,
                            "gpuInstance": gpu, "computeInstance": compute,
                            "protectedBytes": None if guarded == nvml.NOT_AVAILABLE else guarded})
    return {"code": code, "entries": entries, "count": request.count, "entryBytes": size,
            "noBuffer": {"code": without_code, "count": without.count}}


def detail(context: Context) -> Answer:
    device = nvml.gpu()
    name = "nvmlDeviceGetRunningProcessDetailList"
    if not hasattr(nvml.library(), name):
        raise NotHere(f"this driver has no {name}")
    with family() as members:
        pids = two_clients(members)
        modes = {name: detail_mode(device, mode, pids) for name, mode in DETAIL_MODES.items()}
        wrong = DetailList(24 | 2 << 24, 0, 0, 0, None)
        version_2 = nvml.attempt(name, device, ctypes.byref(wrong))
        refused, plain = nvml.listed(device)
    same = None if refused else sorted(entry["bytes"] or 0 for entry in modes["compute"]["entries"]) == sorted(
        taken or 0 for taken in plain.values())
    said = ", ".join(f"{name} {mode['code']}" for name, mode in modes.items())
    return Answer(
        f"codes by mode: {said}; entries of {modes['compute']['entryBytes']} bytes; same bytes as the plain compute "
        f"list: {f'that one answers {refused}' if refused else 'yes' if same else 'no'}",
        f"{name} of version 1 in modes 0 to 3, with two processes of ours on the GPU",
        {"modes": modes, "secondVersionCode": version_2, "sameAsComputeList": same},
    )


STEPS = (
    Step("nvml.stride", ("exporter 9.a",), "layout of the process lists, and how they count", 40, stride),
    Step("nvml.detail", ("exporter 9.j",), "the detailed process list in its modes", 40, detail),
)
