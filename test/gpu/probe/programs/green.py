"""Green contexts in place of the primary one: made, entered, worked in and ended, a stage at a time, with what the driver
says of each handle. python3 green.py KERNELS, which is 0 where the GPU runs none: then only copies are checked."""

import ctypes
import sys

from staged import HEAD, load, parameters, take

import cuda

MIB = cuda.MIB
SM, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1
HEAP = 2
#: More than a context and its limits take, so that figures of the GPU tell whether it goes with one.
BLOCK = 1024 * MIB
#: Where the driver does not say how few multiprocessors a group has: drivers of CUDA 12.4.
LEAST_SMS = 8
MEMORY_TYPE = 2
COUNT = 1 << 14
BLOCKS, TURNS = 1024, 20000
SPINS, SPIN_US = 20, 2000
MOST_SMS = 1024

TWICE = HEAD + """.visible .entry twice(.param .u64 at)
{
 .reg .u64 %a<4>;
 .reg .u32 %r<6>;
 ld.param.u64 %a0, [at];
 cvta.to.global.u64 %a1, %a0;
 mov.u32 %r0, %ctaid.x;
 mov.u32 %r1, %ntid.x;
 mov.u32 %r2, %tid.x;
 mad.lo.u32 %r3, %r0, %r1, %r2;
 mul.wide.u32 %a2, %r3, 4;
 add.u64 %a3, %a1, %a2;
 ld.global.u32 %r4, [%a3];
 add.u32 %r5, %r4, %r4;
 st.global.u32 [%a3], %r5;
 ret;
}
"""
#: Each block marks the multiprocessor that it runs on, and stays for a while, so that no other has all to do. What it reads
#: of the clock is for the compiler, which would leave the loop out.
WHERE = HEAD + """.visible .entry whereabouts(.param .u64 marks, .param .u64 turns)
{
 .reg .u64 %a<6>;
 .reg .u32 %r<3>;
 .reg .pred %p<2>;
 ld.param.u64 %a0, [marks];
 ld.param.u64 %a3, [turns];
 cvta.to.global.u64 %a1, %a0;
 mov.u32 %r0, %smid;
 mul.wide.u32 %a2, %r0, 4;
 add.u64 %a2, %a1, %a2;
 mov.u32 %r1, 1;
 st.global.u32 [%a2], %r1;
 mov.u64 %a5, 0;
again:
 mov.u64 %a4, %clock64;
 xor.b64 %a5, %a5, %a4;
 sub.u64 %a3, %a3, 1;
 setp.ne.u64 %p0, %a3, 0;
 @%p0 bra again;
 setp.ne.u64 %p1, %a5, 81985529216486895;
 @%p1 bra done;
 st.global.u32 [%a2], %r1;
done:
 ret;
}
"""


class Resource(ctypes.Structure):  # CUdevResource
    _fields_ = [("type", ctypes.c_int), ("inside", ctypes.c_ubyte * 92), ("sms", ctypes.c_uint),
                ("least", ctypes.c_uint), ("alignment", ctypes.c_uint), ("reserved", ctypes.c_ubyte * 36)]


assert ctypes.sizeof(Resource) == 144


def ask(name: str, *arguments):
    """The driver's result; None where it has no such entry point."""
    try:
        return getattr(cuda.library(), name)(*arguments)
    except AttributeError:
        return None


def number(name: str, handle) -> dict:
    value = ctypes.c_ulonglong()
    code = ask(name, handle, ctypes.byref(value))
    return {"result": code, "value": value.value if code == 0 else None}


def is_active() -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cuda.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)


def current() -> int:
    handle = ctypes.c_void_p()
    cuda.call("cuCtxGetCurrent", ctypes.byref(handle))
    return handle.value


def least_of(all_sms: Resource) -> int:
    return all_sms.least or LEAST_SMS


class Stages:
    def __init__(self, kernels: bool):
        self.kernels, self.launches = kernels, 0

    def start(self) -> dict:
        cuda.call("cuInit", 0)
        return {"primaryActive": is_active()}

    def enter(self, where: str) -> None:
        """Stages say where they are: an earlier one may have ended anywhere."""
        cuda.call("cuCtxSetCurrent", self.entered if where == "view" else ctypes.c_void_p(self.own))

    def make(self, least: int):
        """A green context of at least so many multiprocessors."""
        group, count, plan, green = Resource(), ctypes.c_uint(1), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuDevSmResourceSplitByCount", ctypes.byref(group), ctypes.byref(count), ctypes.byref(self.all), None,
                  0, least)
        cuda.call("cuDevResourceGenerateDesc", ctypes.byref(plan), ctypes.byref(group), 1)
        cuda.call("cuGreenCtxCreate", ctypes.byref(green), plan, 0, DEFAULT_STREAM)
        return green, group.sms

    def green(self) -> dict:
        self.all = Resource()
        cuda.call("cuDeviceGetDevResource", 0, ctypes.byref(self.all), SM)
        self.first, sms = self.make(self.all.sms // 2)
        return {"allSms": self.all.sms, "leastSms": self.all.least, "alignmentSms": self.all.alignment, "sms": sms,
                "primaryActive": is_active()}

    def primary(self) -> dict:
        self.own = cuda.start()
        return {"isGreen": self.own == self.first.value}

    def second_green(self) -> None:
        self.second, _ = self.make(least_of(self.all))

    def view(self) -> dict:
        view, again = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuCtxFromGreenCtx", ctypes.byref(view), self.first)
        cuda.call("cuCtxFromGreenCtx", ctypes.byref(again), self.first)
        cuda.call("cuCtxSetCurrent", view)
        self.entered, device, version = view, ctypes.c_int(-1), ctypes.c_uint()
        cuda.call("cuCtxGetDevice", ctypes.byref(device))
        ids = {"view": number("cuCtxGetId", view), "primary": number("cuCtxGetId", ctypes.c_void_p(self.own)),
               "green": number("cuGreenCtxGetId", self.first)}
        values = [one["value"] for one in ids.values() if one["value"] is not None]
        return {
            "sameTwice": view.value == again.value, "isPrimary": view.value == self.own,
            "isGreen": view.value == self.first.value, "isCurrent": current() == view.value, "device": device.value,
            "versionResult": ask("cuCtxGetApiVersion", view, ctypes.byref(version)),
            "idResults": {who: one["result"] for who, one in ids.items()}, "idsDiffer": len(set(values)) == len(values),
        }

    def name_of(self, handle) -> str:
        names = {self.first.value: "green", self.entered.value: "view", self.own: "primary", None: "none"}
        return names.get(handle, "another")

    def context_of(self, stream) -> dict:
        """What the driver says of a stream's context, asked in each form."""
        one, two, green = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        said = {"result": ask("cuStreamGetCtx", stream, ctypes.byref(one))}
        if said["result"] == 0:
            said["context"] = self.name_of(one.value)
        said["newerResult"] = ask("cuStreamGetCtx_v2", stream, ctypes.byref(two), ctypes.byref(green))
        if said["newerResult"] == 0:
            said["newerContext"], said["newerGreen"] = self.name_of(two.value), self.name_of(green.value)
        return said

    def streams(self) -> dict:
        self.enter("view")
        self.stream, self.plain = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuGreenCtxStreamCreate", ctypes.byref(self.stream), self.first, NON_BLOCKING, 0)
        cuda.call("cuStreamCreate", ctypes.byref(self.plain), NON_BLOCKING)
        within = {"green": self.context_of(self.stream), "plain": self.context_of(self.plain),
                  "default": self.context_of(None)}
        cuda.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self.own))
        beside = {"green": self.context_of(self.stream), "plain": self.context_of(self.plain)}
        popped = ctypes.c_void_p()
        cuda.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
        return {"inView": within, "inPrimary": beside, "poppedPrimary": popped.value == self.own,
                "viewIsCurrentAgain": current() == self.entered.value}

    def each(self):
        """Contexts that can be current, and streams to work on in them."""
        for where, context in (("view", self.entered), ("primary", ctypes.c_void_p(self.own))):
            cuda.call("cuCtxSetCurrent", context)
            for name, stream in (("green", self.stream), ("plain", self.plain), ("default", None)):
                yield where, name, stream
        self.enter("view")

    def events(self) -> dict:
        """Whether events made in the one context can time what is on a stream of the other."""
        seen = {"view": {}, "primary": {}}
        for where, name, stream in self.each():
            pair = (ctypes.c_void_p(), ctypes.c_void_p())
            for event in pair:
                cuda.call("cuEventCreate", ctypes.byref(event), 0)
            codes = [ask("cuEventRecord", event, stream) for event in pair]
            seen[where][name] = max(codes)
            if max(codes) == 0:
                ms = ctypes.c_float()
                cuda.call("cuEventSynchronize", pair[1])
                seen[where][name] = ask("cuEventElapsedTime", ctypes.byref(ms), *pair)
            for event in pair:
                cuda.call("cuEventDestroy_v2", event)
        return seen

    def put(self, function, stream, blocks: int, threads: int, *arguments):
        code = ask("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters(*arguments), None)
        self.launches += code == 0
        return code

    def compute(self, function, stream):
        """The result of a launch, and whether the numbers are right."""
        numbers, back = (ctypes.c_uint32 * COUNT)(*range(COUNT)), (ctypes.c_uint32 * COUNT)()
        at = cuda.allocate(4 * COUNT)
        cuda.call("cuMemcpyHtoD_v2", at, numbers, ctypes.c_size_t(4 * COUNT))
        code = self.put(function, stream, COUNT // 256, 256, at)
        if code == 0:
            cuda.call("cuCtxSynchronize")
            cuda.call("cuStreamSynchronize", stream)
            cuda.call("cuMemcpyDtoH_v2", back, at, ctypes.c_size_t(4 * COUNT))
        cuda.release(at)
        factor = 2 if self.kernels else 1
        return {"result": code, "correct": code == 0 and all(back[i] == factor * i for i in range(COUNT))}

    def launches_made(self) -> dict:
        """Of a function of the current context, on each stream; and of the primary one's on the green stream."""
        seen, functions = {"view": {}, "primary": {}}, {}
        for where, name, stream in self.each():
            if where not in functions:
                functions[where] = load(TWICE, b"twice")
            seen[where][name] = self.compute(functions[where], stream)
        seen["primaryFunctionInView"] = self.compute(functions["primary"], self.stream)
        self.function = functions["view"]
        return {**seen, "launches": self.launches}

    def multiprocessors(self) -> dict:
        """On how many of them the blocks of a kernel ran, by context and stream."""
        seen = {"view": {}, "primary": {}}
        if not self.kernels:
            return {}
        for where, name, stream in self.each():
            function = load(WHERE, b"whereabouts")
            marks, turns = cuda.allocate(4 * MOST_SMS), ctypes.c_uint64(TURNS)
            cuda.call("cuMemsetD8_v2", marks, ctypes.c_ubyte(0), ctypes.c_size_t(4 * MOST_SMS))
            cuda.call("cuCtxSynchronize")
            if self.put(function, stream, BLOCKS, 32, marks, turns) == 0:
                cuda.call("cuCtxSynchronize")
                cuda.call("cuStreamSynchronize", stream)
                back = (ctypes.c_uint32 * MOST_SMS)()
                cuda.call("cuMemcpyDtoH_v2", back, marks, ctypes.c_size_t(4 * MOST_SMS))
                seen[where][name] = sum(back)
            cuda.release(marks)
        return seen

    def spins(self) -> dict:
        """Kernels of a known time on the green stream, one after another, which an arbiter may be charging for."""
        self.enter("view")
        spin = cuda.Spin(SPIN_US)
        before = self.launches
        for _ in range(SPINS):
            spin.launch(self.stream)
            self.launches += 1
            cuda.call("cuStreamSynchronize", self.stream)
        return {"launches": self.launches - before, "spinSeconds": SPINS * SPIN_US / 1e6}

    def block(self) -> dict:
        """Memory that is taken with the view current, and stays."""
        self.enter("view")
        self.at = cuda.allocate(BLOCK)
        return {"blockBytes": BLOCK}

    def heap_limit(self) -> dict:
        seen = {}
        for where, context in (("view", self.entered), ("primary", ctypes.c_void_p(self.own))):
            cuda.call("cuCtxSetCurrent", context)
            before, after = ctypes.c_size_t(), ctypes.c_size_t()
            cuda.call("cuCtxGetLimit", ctypes.byref(before), HEAP)
            code = ask("cuCtxSetLimit", HEAP, ctypes.c_size_t(64 * MIB)) if where == "view" else 0
            cuda.call("cuCtxGetLimit", ctypes.byref(after), HEAP)
            seen[where] = {"result": code, "beforeBytes": before.value, "afterBytes": after.value}
        return {**seen, "primaryKeepsItsOwn": seen["primary"]["afterBytes"] != 64 * MIB}

    def green_ended(self) -> dict:
        """The first one, with its block in it, while the primary one is current and held: what the driver then says of the
        block."""
        self.enter("primary")
        cuda.call("cuGreenCtxDestroy", self.first)
        base, size, kind = cuda.pointer(), ctypes.c_size_t(), ctypes.c_uint()
        return {
            "rangeResult": ask("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), self.at),
            "attributeResult": ask("cuPointerGetAttribute", ctypes.byref(kind), MEMORY_TYPE, self.at),
            "launches": self.launches,
        }

    def block_freed(self) -> dict:
        self.enter("primary")
        return {"freeResult": ask("cuMemFree_v2", self.at)}

    def primary_released(self) -> dict:
        """The second green context is there: does it keep the primary one alive?"""
        cuda.call("cuDevicePrimaryCtxRelease_v2", 0)
        return {"primaryActive": is_active()}

    def view_ended(self) -> dict:
        """A view is not its holder's to end; what the driver answers if that is tried."""
        view = ctypes.c_void_p()
        cuda.call("cuCtxFromGreenCtx", ctypes.byref(view), self.second)
        return {"destroyResult": ask("cuCtxDestroy_v2", view)}

    def second_green_ended(self) -> dict:
        cuda.call("cuGreenCtxDestroy", self.second)
        return {"primaryActive": is_active()}


ORDER = ("start", "green", "primary", "second_green", "view", "streams", "events", "launches_made", "multiprocessors",
         "spins", "block", "heap_limit", "green_ended", "block_freed", "primary_released", "view_ended",
         "second_green_ended")
AFTER = {"primary": "green", "second_green": "primary", "view": "primary", "streams": "view", "events": "streams",
         "launches_made": "streams", "multiprocessors": "streams", "spins": "streams", "block": "view",
         "heap_limit": "view", "green_ended": "block", "block_freed": "green_ended", "primary_released": "second_green",
         "view_ended": "second_green", "second_green_ended": "second_green"}

if __name__ == "__main__":
    take(Stages(sys.argv[1] != "0"), ORDER, AFTER)
