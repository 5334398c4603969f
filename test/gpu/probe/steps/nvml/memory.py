"""What NVML's figures of memory hold, form by form, and what they say after a process's end."""

import contextlib
import os
import signal
import socket
import time

import nvml
from children import Child, ChildError, child, family, state, until
from step import Answer, Context, NotHere, Step

MIB, GIB = 1 << 20, 1 << 30
SIZE = 64 * MIB
MANAGED = 32 * MIB
ZOMBIE_BYTES = 256 * MIB
FOLLOW_S = 0.25


class Watch:
    """Figures of the GPU and of some processes, and how they change from one look to the next."""

    def __init__(self, device, pids: dict):
        self.device, self.pids, self.last = device, pids, None
        self.last = self.read()

    def read(self) -> dict:
        """The GPU's figures, and those of the list: None where the driver refuses it, with its code."""
        gpu = nvml.memory(self.device)
        code, found = nvml.listed(self.device)
        of_list = None if found is None else {"list": sum(taken or 0 for taken in found.values()),
                                              **{who: found.get(pid) or 0 for who, pid in self.pids.items()}}
        return {"gpu": {key: gpu[key] for key in ("used", "reserved", "free")}, "list": of_list, "code": code}

    def change(self, since: float) -> dict:
        """Differences to the last look, once the figures have had time to follow, and when they last moved. Of processes only
        where the list was there both times: a refused list says nothing of them."""
        moved, now, refused, was_listed = None, self.last, None, False
        deadline = time.monotonic() + FOLLOW_S
        while time.monotonic() < deadline:
            fresh = self.read()
            if fresh["code"]:
                refused, fresh = fresh["code"], {**fresh, "list": now["list"], "code": now["code"]}
            else:
                was_listed = True
            if fresh != now:
                moved, now = time.monotonic() - since, fresh
            time.sleep(0.002)
        before, self.last = self.last, now if was_listed else {**now, "list": None}
        parts = None
        if was_listed and before["list"] is not None:
            parts = {key: now["list"][key] - before["list"][key] for key in now["list"]}
        return {
            "processes": {who: parts[who] if parts else None for who in self.pids},
            "wholeList": parts["list"] if parts else None,
            "gpu": {key: now["gpu"][key] - before["gpu"][key] for key in now["gpu"]},
            "movedAfterS": None if moved is None else round(moved, 4),
            **({"listRefused": refused} if refused else {}),
        }


def stage(watch: Watch, into: dict, key: str, who: Child, what: str, /, **given) -> bool:
    """One request to a process, and what it did to the figures; False where the driver refuses it."""
    try:
        answer = who.ask(what, **given)
    except ChildError as refused:
        if refused.code is None:
            raise
        into[key] = {"refused": refused.code}
        return False
    into[key] = watch.change(answer["at"])
    return True


def vmm(watch: Watch, seen: dict, owner: Child, other: Child, ours: int, theirs: int) -> None:
    block = {"name": "vmm"}
    if not stage(watch, seen, "vmmCreated", owner, "vmm create", bytes=SIZE, **block):
        return
    stage(watch, seen, "vmmMapped", owner, "vmm map", bytes=SIZE, **block)
    if not stage(watch, seen, "vmmExported", owner, "vmm export", channel=ours, **block):
        return
    imported = stage(watch, seen, "vmmImported", other, "vmm import", channel=theirs, **block)
    if imported:
        stage(watch, seen, "vmmImportedMapped", other, "vmm map", bytes=SIZE, **block)
    stage(watch, seen, "vmmOwnerReleased", owner, "vmm free", bytes=SIZE, **block)
    if imported:
        stage(watch, seen, "vmmImporterReleased", other, "vmm free", bytes=SIZE, **block)


def ipc(watch: Watch, seen: dict, owner: Child, other: Child) -> None:
    owner.ask("linear", name="ipc", bytes=SIZE)
    watch.change(time.monotonic())
    try:
        handle = owner.ask("ipc handle", name="ipc")["handle"]
    except ChildError as refused:
        if refused.code is None:
            raise
        seen["ipcOpened"] = {"refused": refused.code}
    else:
        if stage(watch, seen, "ipcOpened", other, "ipc open", name="ipc", handle=handle):
            stage(watch, seen, "ipcClosed", other, "ipc close", name="ipc")
    stage(watch, seen, "ipcFreed", owner, "linear free", name="ipc")


def counted(seen: dict, name: str, size: int) -> str:
    """In whose figures a block appeared."""
    change = seen.get(name)
    if change is None:
        return "not asked"
    if "refused" in change:
        return f"refused ({change['refused']})"
    figures = {**change["processes"], "gpu": change["gpu"]["used"]}
    return "+".join(who for who, part in figures.items() if part is not None and part >= size // 2) or "none"


def in_blocks(seen: dict, blocks: dict) -> dict:
    """Changes in whole blocks, which are the same on all GPUs: what page tables and the like add is not. Of contexts,
    whose size is the GPU's own, only in whose figures they appear. `blocks`: how large the block of a stage is."""
    def rounded(name: str, change: dict) -> dict:
        size = blocks.get(name)
        def count(part):
            return None if part is None else round(part / size) if size else (part > MIB) - (part < -MIB)

        return {"processes": {who: count(part) for who, part in change["processes"].items()},
                "wholeList": count(change["wholeList"]), "gpuUsed": count(change["gpu"]["used"]),
                "gpuFree": count(change["gpu"]["free"])}

    return {name: change if "refused" in change else rounded(name, change) for name, change in seen.items()}


def naming(code: int, is_listed: bool) -> str:
    """For answers: where no list has our processes, their figures mean nothing."""
    if is_listed:
        return ""
    why = f"the driver refuses the list ({code})" if code else "no list names our processes here"
    return f"; {why}, so that only the GPU's figures say anything"


def memory(context: Context) -> Answer:
    device, seen = nvml.gpu(), {}
    ways = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with family() as members, ways[0], ways[1]:
        ours, theirs = ways[0].fileno(), ways[1].fileno()
        members.append(Child(pass_fds=(ours,)))
        members.append(Child(pass_fds=(theirs,)))
        owner, other = members
        watch = Watch(device, {"owner": owner.pid, "other": other.pid})
        for name, who in (("context", owner), ("otherContext", other)):
            if not stage(watch, seen, name, who, "start"):
                raise RuntimeError(f"a process gets no context: {seen[name]['refused']}")
        code, found = nvml.listed(device)
        listed = owner.pid in (found or {})

        def form(name: str, size: int) -> None:
            if stage(watch, seen, name, owner, name, name=name, bytes=size):
                stage(watch, seen, f"{name}Freed", owner, f"{name} free", name=name)

        # What is known is kept after each: one that is refused, or hangs, costs only what comes of it.
        for each in (lambda: form("linear", SIZE), lambda: form("pool", SIZE),
                     lambda: vmm(watch, seen, owner, other, ours, theirs), lambda: ipc(watch, seen, owner, other),
                     lambda: form("pinned", SIZE), *((lambda: form("managed", MANAGED),) if context.managed else ())):
            each()
            context.note({"blockBytes": SIZE, "changes": seen})
    where = {form: counted(seen, form, MANAGED if form == "managed" else SIZE)
             for form in ("linear", "pool", "vmmCreated", "vmmMapped", "vmmImported", "vmmImportedMapped", "ipcOpened",
                          "pinned", *(("managed",) if context.managed else ()))}
    late = [change["movedAfterS"] for change in seen.values() if change.get("movedAfterS") is not None]
    own = seen["context"]["processes"]["owner"]
    return Answer(
        f"a context counts {'unknown' if own is None else f'{own / MIB:g}'} MiB of its process and "
        f"{seen['context']['gpu']['used'] / MIB:g} MiB of the GPU; a block then adds to: "
        + ", ".join(f"{form} {who}" for form, who in where.items())
        + f"; figures moved at most {max(late, default=0):.3f} s late" + naming(code, listed),
        f"process list and nvmlDeviceGetMemoryInfo_v2 around each step of two processes, {SIZE // MIB} MiB a block",
        {"blockBytes": SIZE, "managedBytes": MANAGED if context.managed else 0, "changes": seen,
         "blocks": in_blocks(seen, {name: None if name.lower().endswith("context") else
                                    MANAGED if name.startswith("managed") else SIZE for name in seen}),
         "countedIn": where, "refused": sorted(name for name, change in seen.items() if "refused" in change),
         "processListed": None if code else listed},
    )


def gpu_used(device) -> int:
    return nvml.memory(device)["used"]


def one_kill(device, size: int, block: int, touch: bool) -> dict:
    """A process that holds so much is killed: when it is dead, off the list, and its memory free."""
    with child() as victim:
        used_before = gpu_used(device)
        victim.ask("start", timeout_s=30)
        held = victim.ask("linear", timeout_s=60, name="a", bytes=block, count=size // block, touch=touch)["bytes"]
        held_gpu = gpu_used(device) - used_before
        code, found = nvml.listed(device)
        was_listed = None if code else victim.pid in found
        since, seen, slowest, letters, listed_as, refused = time.monotonic(), {}, 0.0, {}, {}, {code} - {0}
        os.kill(victim.pid, signal.SIGKILL)
        wanted = {"dead", "free", *(["offList"] if was_listed else [])}
        while not wanted <= set(seen) and time.monotonic() - since < 20:
            before = time.monotonic()
            letter = state(victim.pid) or "gone"
            letters.setdefault(letter, round(before - since, 4))
            code, found = nvml.listed(device)
            if code:
                refused.add(code)
            else:
                listed_as.setdefault(letter, set()).add(victim.pid in found)
            facts = {"dead": letter in ("Z", "gone"), "offList": not code and victim.pid not in found,
                     "free": gpu_used(device) - used_before < held_gpu // 100 + 2 * MIB}
            now = time.monotonic()
            slowest = max(slowest, now - before)
            for fact, holds in facts.items():
                if holds:
                    seen.setdefault(fact, round(now - since, 4))
            time.sleep(0.001)
    return {"heldBytes": held, "heldOnGpuBytes": held_gpu, "wasListed": was_listed, "deadS": seen.get("dead"),
            "offListS": seen.get("offList") if was_listed else None, "freeS": seen.get("free"),
            "longestLookS": round(slowest, 4), "statesFirstSeenS": letters,
            "listRefused": sorted(refused),
            "listedInState": {letter: sorted(answers) for letter, answers in listed_as.items()}}


def kill(context: Context) -> Answer:
    device = nvml.gpu()
    free = nvml.memory(device)["free"]
    # A simulated GPU's memory is the machine's own: there nothing is written into it.
    touch = not context.simulated
    small = one_kill(device, GIB, GIB, touch)
    context.note({"small": small, "touched": touch})
    large = one_kill(device, int(free * 0.9), GIB, touch)
    if small["freeS"] is None or large["freeS"] is None:
        said = "the memory of a killed process was not free within 20 s"
    else:
        said = (f"memory is free {small['freeS']:.3f} s after SIGKILL with {small['heldBytes'] / GIB:g} GiB and "
                f"{large['freeS']:.3f} s with {large['heldBytes'] / GIB:g} GiB")
    waited = [answer for one in (small, large) for answer in one["listedInState"].get("D", [])]
    listed = "listed" if all(waited) else "not listed" if not any(waited) else "listed at first"
    refused = sorted({*small["listRefused"], *large["listRefused"]})
    gone = (f"off the list after {small['offListS']} s and {large['offListS']} s"
            if small["wasListed"] and large["wasListed"] else
            "" if None in (small["wasListed"], large["wasListed"]) else "no list names our process here")
    if refused:
        gone += f"{', and ' if gone else ''}the list was refused ({', '.join(map(str, refused))})"
    return Answer(
        f"{said}; {gone}; "
        + (f"in uninterruptible sleep (D) it was {listed}" if waited else
           "it was never seen in uninterruptible sleep (D) meanwhile"),
        "polling GPU and list from the signal on; each look may wait for the driver's own locks",
        {"small": small, "large": large, "touched": touch},
    )


def on_list(device, pid: int) -> dict:
    """Whether a process is on the list; None, with the driver's code, where the list is refused."""
    code, found = nvml.listed(device)
    if code:
        return {"listed": None, "bytes": None, "listRefused": code}
    return {"listed": pid in found, "bytes": found.get(pid)}


def look(device, who: Child, used_before: int) -> dict:
    gpu = gpu_used(device) - used_before
    return {"state": state(who.pid), **on_list(device, who.pid), "gpuBytes": gpu, "keepsBlock": gpu >= ZOMBIE_BYTES}


def zombies(context: Context) -> Answer:
    device, size = nvml.gpu(), ZOMBIE_BYTES
    data = {"blockBytes": size}
    with child() as who:
        used_before = gpu_used(device)
        who.ask("start")
        who.ask("linear", name="a", bytes=size)
        data["running"] = look(device, who, used_before)
        os.kill(who.pid, signal.SIGSTOP)
        until(lambda: state(who.pid) == "T", 5)
        data["stopped"] = look(device, who, used_before)
        context.note(data)
        os.kill(who.pid, signal.SIGKILL)
        dead = until(lambda: state(who.pid) == "Z", 10)
        until(lambda: gpu_used(device) - used_before < size, 5)
        data["zombie"] = {**look(device, who, used_before), "becameZombieS": dead}
    data["reaped"] = look(device, who, used_before)
    context.note(data)
    with child() as who:
        used_before = gpu_used(device)
        who.ask("start")
        who.ask("linear", name="a", bytes=size)
        heir = who.ask("fork")["pid"]
        try:
            os.kill(who.pid, signal.SIGKILL)
            until(lambda: state(who.pid) == "Z", 10)
            freed = until(lambda: gpu_used(device) - used_before < size, 3)
            data["killedWithForkedChild"] = {**look(device, who, used_before), "freeS": freed,
                                             "heirListed": on_list(device, heir)["listed"]}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(heir, signal.SIGKILL)
        after = until(lambda: gpu_used(device) - used_before < size, 10)
        data["heirGone"] = {**look(device, who, used_before), "freeS": after}
    kept = data["killedWithForkedChild"]["freeS"] is None
    label = {True: "listed", False: "not listed", None: "unknown, for the list was refused"}
    lists = ("no list names our process here, alive or dead" if data["running"]["listed"] is False else
             f"a stopped process is {label[data['stopped']['listed']]}, a zombie {label[data['zombie']['listed']]}")
    return Answer(
        f"{lists}; a stopped process keeps {data['stopped']['gpuBytes'] / MIB:g} MiB of the GPU, a zombie "
        f"{data['zombie']['gpuBytes'] / MIB:g} MiB; a forked child that outlives its parent "
        f"{'keeps' if kept else 'does not keep'} the memory",
        f"{size // MIB} MiB held through SIGSTOP, SIGKILL without wait, and SIGKILL of a process that had forked",
        data,
    )


STEPS = (
    Step("nvml.memory", ("exporter 9.b",), "what the figures of memory hold, by form", 60, memory),
    Step("nvml.kill", ("exporter 9.g", "exporter 9.h"), "how soon the memory of a killed process is free", 90, kill),
    Step("nvml.zombies", ("exporter 9.h",), "what is said of stopped and dead processes", 60, zombies),
)
