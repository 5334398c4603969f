"""Which rights NVML's calls need, and what they report to a process in a PID namespace of its own."""

import os
import pathlib
import shutil
import time

import nvml
from children import Child, ChildError, child, family, until
from step import Answer, Context, NotHere, Step

SYS_ADMIN, PERFMON, CAPABILITIES = 21, 38, 41
OTHER_USER = 65534
BUSY_US = 1000
SEEN_S = 1.0

#: Who asks: capabilities that root keeps, or another user.
ASKERS = {
    "root": None,
    "rootWithoutSysAdmin": {"keep": [number for number in range(CAPABILITIES) if number != SYS_ADMIN]},
    "rootWithOnlyPerfmon": {"keep": [PERFMON]},
    "rootWithoutCapabilities": {"keep": []},
    "user": {"user": OTHER_USER},
}


def driver_parameters() -> dict:
    """What the kernel module requires of a process that profiles."""
    try:
        lines = pathlib.Path("/proc/driver/nvidia/params").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(": ", 1) for line in lines if line.startswith("RmProfilingAdminOnly"))


def asker(pid: int, rights) -> dict:
    with child() as who:
        try:
            if rights is not None:
                who.ask("drop", **rights)
            mask = who.ask("capabilities")["mask"]
            return {"capabilities": f"{mask:x}", "calls": who.ask("calls", pid=pid)["calls"]}
        except ChildError as problem:
            return {"problem": str(problem), "calls": {}}


def busy_child(members: list, **how) -> Child:
    who = Child(**how)
    members.append(who)
    who.ask("start", timeout_s=30)
    who.ask("prepare", timeout_s=30, us=BUSY_US)
    who.ask("busy")
    return who


def less_than(full: dict, answer: dict) -> list:
    """Calls whose answer differs from root's, measured percentages aside."""
    def compared(facts: dict) -> dict:
        return {key: value for key, value in facts.items() if not key.endswith("Percent")}

    if "problem" in answer:
        return [answer["problem"]]
    if "nvmlInit_v2" in answer["calls"]:
        return [f"nvmlInit_v2 ({answer['calls']['nvmlInit_v2']['code']})"]
    other = {call: answer["calls"].get(call, {"code": "not asked"}) for call in full}
    return sorted(f"{call} ({other[call]['code']})" for call in full if compared(full[call]) != compared(other[call]))


def capabilities(context: Context) -> Answer:
    if os.geteuid() != 0:
        raise NotHere("only root can give up rights one by one")
    with family() as members:
        busy = busy_child(members)
        time.sleep(1)  # a few samples must name it
        said = {name: asker(busy.pid, rights) for name, rights in ASKERS.items()}
    full = said["root"]["calls"]
    others = {name: less_than(full, answer) for name, answer in said.items() if name != "root"}
    refused = sorted(f"{call} ({facts['code']})" for call, facts in full.items() if facts["code"] not in (0, None))
    return Answer(
        f"root is refused {', '.join(refused) or 'nothing'}; answered otherwise than root: "
        + "; ".join(f"{name} {', '.join(calls) or 'nothing'}" for name, calls in others.items()),
        "the same calls by processes that gave up capabilities or became another user before nvmlInit",
        {"askers": said, "lessThanRoot": others,
         "rootHasSysAdmin": bool(int(said["root"]["capabilities"], 16) >> SYS_ADMIN & 1),
         "driverParameters": driver_parameters()},
    )


def parent(pid: int):
    """None where it ended meanwhile."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def inner_pid(outer: int):
    """Pid, seen from here, of the only child of a process; not every kernel has a list of children."""
    children = [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(int(name)) == outer]
    return children[0] if children else None


def by_meaning(answer: dict, own: int, names: dict) -> dict:
    """Pids of an answer by what they mean."""
    def meaning(pid: int) -> str:
        return names.get(pid, "its own, as in its namespace" if pid == own else "unknown")

    return {
        "computeList": sorted(meaning(int(pid)) for pid in answer["Compute"]["bytes"]),
        "computeListCode": answer["Compute"]["code"],
        "utilization": sorted(meaning(pid) for pid in answer["utilization"]["pids"]),
        "utilizationCode": answer["utilization"]["code"],
        "pids": sorted({*map(int, answer["Compute"]["bytes"]), *answer["utilization"]["pids"]}),
        "ownPid": own,
    }


def pid_namespace(context: Context) -> Answer:
    if shutil.which("unshare") is None:
        raise NotHere("no unshare (util-linux) here")
    base = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL"]
    with family() as members:
        outside = busy_child(members)
        inside, mounted = None, True
        for mounted in (True, False):
            try:
                inside = busy_child(members, prefix=[*base, *(["--mount-proc"] if mounted else [])])
                break
            except (ChildError, BrokenPipeError):
                inside = None
        if inside is None:
            raise NotHere("no PID namespace may be made here, or CUDA does not start in one")
        until(lambda: inner_pid(inside.pid) is not None, 2)
        inner = inner_pid(inside.pid)
        time.sleep(SEEN_S + 0.2)
        within = inside.ask("lists", seconds=SEEN_S)
        beyond = outside.ask("lists", seconds=SEEN_S)
    names = {outside.pid: "the process outside, as outside", inner: "the process inside, as outside"}
    seen_inside = by_meaning(within, within["own"], names)
    seen_outside = by_meaning(beyond, beyond["own"], {inner: names[inner]})
    return Answer(
        f"inside, the list holds {', '.join(seen_inside['computeList']) or 'none'} and utilization "
        f"{', '.join(seen_inside['utilization']) or 'none'}; outside, the list holds "
        f"{', '.join(seen_outside['computeList']) or 'none'} and utilization "
        f"{', '.join(seen_outside['utilization']) or 'none'}",
        "one busy process here and one in a PID namespace of its own, each asked for lists and the last second",
        {"inside": seen_inside, "outside": seen_outside, "procMounted": mounted,
         "pidsHere": {"outside": outside.pid, "inside": inner}},
    )


STEPS = (
    Step("nvml.capabilities", ("exporter 9.f",), "which rights the calls need", 60, capabilities),
    Step("nvml.pidnamespace", ("exporter 9.i",), "PIDs reported inside a PID namespace", 60, pid_namespace),
)
