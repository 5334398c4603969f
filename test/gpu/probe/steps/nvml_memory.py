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
    """Figures of the card and of some processes, and how they change from one look to the next."""

    def __init__(self, device, pids: dict):
        self.device, self.pids, self.last = device, pids, None
        self.last = self.read()

    def read(self) -> dict:
        card, found = nvml.memory(self.device), nvml.listed(self.device)
        return {**{f"card {key}": card[key] for key in ("used", "reserved", "free")},
                "list": sum(taken or 0 for taken in found.values()),
                **{who: found.get(pid) for who, pid in self.pids.items()}}

    def change(self, since: float) -> dict:
        """Differences to the last look, once the figures have had time to follow, and when they last moved."""
        moved, now = None, self.last
        deadline = time.monotonic() + FOLLOW_S
        while time.monotonic() < deadline:
            fresh = self.read()
            if fresh != now:
                moved, now = time.monotonic() - since, fresh
            time.sleep(0.002)
        before, self.last = self.last, now
        parts = {key: (now[key] or 0) - (before[key] or 0) for key in now}
        return {
            "processes": {who: parts[who] for who in self.pids},
            "wholeList": parts["list"],
            "card": {key: parts[f"card {key}"] for key in ("used", "reserved", "free")},
            "movedAfterS": None if moved is None else round(moved, 4),
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
    stage(watch, seen, "vmmImported", other, "vmm import", channel=theirs, **block)
    stage(watch, seen, "vmmImportedMapped", other, "vmm map", bytes=SIZE, **block)
    stage(watch, seen, "vmmOwnerReleased", owner, "vmm free", bytes=SIZE, **block)
    stage(watch, seen, "vmmImporterReleased", other, "vmm free", bytes=SIZE, **block)


def ipc(watch: Watch, seen: dict, owner: Child, other: Child) -> None:
    owner.ask("linear", name="ipc", bytes=SIZE)
    watch.change(time.monotonic())
    try:
        handle = owner.ask("ipc handle", name="ipc")["handle"]
        if stage(watch, seen, "ipcOpened", other, "ipc open", name="ipc", handle=handle):
            stage(watch, seen, "ipcClosed", other, "ipc close", name="ipc")
    except ChildError as refused:
        seen["ipcOpened"] = {"refused": refused.code}
    stage(watch, seen, "ipcFreed", owner, "linear free", name="ipc")


def counted(seen: dict, name: str, size: int) -> str:
    """In whose figures a block appeared."""
    change = seen.get(name)
    if change is None or "refused" in change:
        return "not here"
    figures = {**change["processes"], "card": change["card"]["used"]}
    return "+".join(who for who, part in figures.items() if part >= size // 2) or "nobody"


def in_blocks(seen: dict, blocks: dict) -> dict:
    """Changes in whole blocks, which are the same on all cards: what page tables and the like add is not. Of contexts,
    whose size is the card's own, only in whose figures they appear. `blocks`: how large the block of a stage is."""
    def told(name: str, change: dict) -> dict:
        size = blocks.get(name)
        count = (lambda part: round(part / size)) if size else (lambda part: (part > MIB) - (part < -MIB))
        return {"processes": {who: count(part) for who, part in change["processes"].items()},
                "wholeList": count(change["wholeList"]), "cardUsed": count(change["card"]["used"]),
                "cardFree": count(change["card"]["free"])}

    return {name: change if "refused" in change else told(name, change) for name, change in seen.items()}


#: For answers: the figures of processes are all 0 then, and mean nothing.
NOT_LISTED = "; no list names our processes here, so that only the card's figures say anything"


def memory(context: Context) -> Answer:
    device, seen = nvml.card(), {}
    ways = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with family() as members, ways[0], ways[1]:
        ours, theirs = ways[0].fileno(), ways[1].fileno()
        members.append(Child(pass_fds=(ours,)))
        members.append(Child(pass_fds=(theirs,)))
        owner, other = members
        watch = Watch(device, {"owner": owner.pid, "other": other.pid})
        stage(watch, seen, "context", owner, "start")
        stage(watch, seen, "otherContext", other, "start")
        listed = owner.pid in nvml.listed(device)
        stage(watch, seen, "linear", owner, "linear", name="a", bytes=SIZE)
        stage(watch, seen, "linearFreed", owner, "linear free", name="a")
        if stage(watch, seen, "pool", owner, "pool", name="p", bytes=SIZE):
            stage(watch, seen, "poolFreed", owner, "pool free", name="p")
        vmm(watch, seen, owner, other, ours, theirs)
        ipc(watch, seen, owner, other)
        stage(watch, seen, "pinned", owner, "pinned", name="h", bytes=SIZE)
        stage(watch, seen, "pinnedFreed", owner, "pinned free", name="h")
        if context.managed:
            stage(watch, seen, "managed", owner, "managed", name="m", bytes=MANAGED)
            stage(watch, seen, "managedFreed", owner, "managed free", name="m")
    where = {form: counted(seen, form, MANAGED if form == "managed" else SIZE)
             for form in ("linear", "pool", "vmmCreated", "vmmMapped", "vmmImported", "vmmImportedMapped", "ipcOpened",
                          "pinned", *(("managed",) if context.managed else ()))}
    late = [change["movedAfterS"] for change in seen.values() if change.get("movedAfterS") is not None]
    return Answer(
        f"a context counts {(seen['context']['processes']['owner']) / MIB:g} MiB of its process and "
        f"{seen['context']['card']['used'] / MIB:g} MiB of the card; a block then adds to: "
        + ", ".join(f"{form} {who}" for form, who in where.items())
        + f"; figures moved at most {max(late, default=0):.3f} s late" + ("" if listed else NOT_LISTED),
        f"process list and nvmlDeviceGetMemoryInfo_v2 around each step of two processes, {SIZE // MIB} MiB a block",
        {"blockBytes": SIZE, "managedBytes": MANAGED if context.managed else 0, "changes": seen,
         "blocks": in_blocks(seen, {name: None if name.lower().endswith("context") else
                                    MANAGED if name.startswith("managed") else SIZE for name in seen}),
         "countedIn": where,
         "processListed": listed},
    )


def card_used(device) -> int:
    return nvml.memory(device)["used"]


def one_kill(device, size: int, block: int, touch: bool) -> dict:
    """A process that holds so much is killed: when it is dead, off the list, and its memory free."""
    with child() as victim:
        used_before = card_used(device)
        victim.ask("start", timeout_s=30)
        held = victim.ask("linear", timeout_s=60, name="a", bytes=block, count=size // block, touch=touch)["bytes"]
        held_card = card_used(device) - used_before
        was_listed = victim.pid in nvml.listed(device)
        since, seen, slowest, letters, listed_as = time.monotonic(), {}, 0.0, {}, {}
        os.kill(victim.pid, signal.SIGKILL)
        while len(seen) < 3 and time.monotonic() - since < 20:
            before = time.monotonic()
            letter = state(victim.pid) or "gone"
            letters.setdefault(letter, round(before - since, 4))
            there = victim.pid in nvml.listed(device)
            listed_as.setdefault(letter, set()).add(there)
            facts = {"dead": letter in ("Z", "gone"), "offList": not there,
                     "free": card_used(device) - used_before < held_card // 100 + 2 * MIB}
            now = time.monotonic()
            slowest = max(slowest, now - before)
            for fact, holds in facts.items():
                if holds:
                    seen.setdefault(fact, round(now - since, 4))
            time.sleep(0.001)
    return {"heldBytes": held, "heldOnCardBytes": held_card, "wasListed": was_listed, "deadS": seen.get("dead"),
            "offListS": seen.get("offList") if was_listed else None, "freeS": seen.get("free"),
            "longestLookS": round(slowest, 4), "statesFirstSeenS": letters,
            "listedInState": {letter: sorted(answers) for letter, answers in listed_as.items()}}


def kill(context: Context) -> Answer:
    device = nvml.card()
    free = nvml.memory(device)["free"]
    # A simulated card's memory is the machine's own: there nothing is written into it.
    touch = not context.simulated
    small = one_kill(device, GIB, GIB, touch)
    large = one_kill(device, int(free * 0.9), GIB, touch)
    if small["freeS"] is None or large["freeS"] is None:
        said = "the memory of a killed process was not free within 20 s"
    else:
        said = (f"memory is free {small['freeS']:.3f} s after SIGKILL with {small['heldBytes'] / GIB:g} GiB and "
                f"{large['freeS']:.3f} s with {large['heldBytes'] / GIB:g} GiB")
    waited = [answer for one in (small, large) for answer in one["listedInState"].get("D", [])]
    listed = "listed" if all(waited) else "not listed" if not any(waited) else "listed at first"
    gone = (f"off the list after {small['offListS']} s and {large['offListS']} s"
            if small["wasListed"] and large["wasListed"] else "no list names our process here")
    return Answer(
        f"{said}; {gone}; "
        + (f"in uninterruptible sleep (D) it was {listed}" if waited else
           "it was never seen in uninterruptible sleep (D) meanwhile"),
        "polling card and list from the signal on; each look may wait for the driver's own locks",
        {"small": small, "large": large, "touched": touch},
    )


def look(device, who: Child, used_before: int) -> dict:
    found = nvml.listed(device)
    card = card_used(device) - used_before
    return {"state": state(who.pid), "listed": who.pid in found, "bytes": found.get(who.pid), "cardBytes": card,
            "keepsBlock": card >= ZOMBIE_BYTES}


def zombies(context: Context) -> Answer:
    device, size = nvml.card(), ZOMBIE_BYTES
    data = {"blockBytes": size}
    with child() as who:
        used_before = card_used(device)
        who.ask("start")
        who.ask("linear", name="a", bytes=size)
        data["running"] = look(device, who, used_before)
        os.kill(who.pid, signal.SIGSTOP)
        until(lambda: state(who.pid) == "T", 5)
        data["stopped"] = look(device, who, used_before)
        os.kill(who.pid, signal.SIGKILL)
        dead = until(lambda: state(who.pid) == "Z", 10)
        until(lambda: card_used(device) - used_before < size, 5)
        data["zombie"] = {**look(device, who, used_before), "becameZombieS": dead}
    data["reaped"] = look(device, who, used_before)
    with child() as who:
        used_before = card_used(device)
        who.ask("start")
        who.ask("linear", name="a", bytes=size)
        heir = who.ask("fork")["pid"]
        try:
            os.kill(who.pid, signal.SIGKILL)
            until(lambda: state(who.pid) == "Z", 10)
            freed = until(lambda: card_used(device) - used_before < size, 3)
            data["killedWithForkedChild"] = {**look(device, who, used_before), "freeS": freed,
                                             "heirListed": heir in nvml.listed(device)}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(heir, signal.SIGKILL)
        after = until(lambda: card_used(device) - used_before < size, 10)
        data["heirGone"] = {**look(device, who, used_before), "freeS": after}
    kept = data["killedWithForkedChild"]["freeS"] is None
    word = {True: "listed", False: "not listed"}
    lists = (f"a stopped process is {word[data['stopped']['listed']]}, a zombie {word[data['zombie']['listed']]}"
             if data["running"]["listed"] else "no list names our process here, alive or dead")
    return Answer(
        f"{lists}; a stopped process keeps {data['stopped']['cardBytes'] / MIB:g} MiB of the card, a zombie "
        f"{data['zombie']['cardBytes'] / MIB:g} MiB; a forked child that outlives its parent "
        f"{'keeps' if kept else 'does not keep'} the memory",
        f"{size // MIB} MiB held through SIGSTOP, SIGKILL without wait, and SIGKILL of a process that had forked",
        data,
    )


STEPS = (
    Step("nvml.memory", ("exporter 9.b",), "what the figures of memory hold, by form", 60, memory),
    Step("nvml.kill", ("exporter 9.g", "exporter 9.h"), "how soon the memory of a killed process is free", 90, kill),
    Step("nvml.zombies", ("exporter 9.h",), "what is said of stopped and dead processes", 60, zombies),
)
