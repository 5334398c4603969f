"""Kernels that wait on their GPU for a later launch, with many launched ahead: on two streams of a process, and in two
processes of one container on one GPU. Do they end under half of the GPU, and after how long?"""

import os
import pathlib
import tempfile

import arbiter
import grants
from children import Child, ChildError, NoAnswer, family
from step import Answer, Context, Step

KERNEL_US = 2000
COUNT = 28
PERCENT = 50
SLICE = 8 << 30
START_S = 20
#: For COUNT of them; they take less than half a second by their share. On a busy machine thrice as long, and no longer:
#: what ends late is not taken for what ends by its share.
PATIENCE_S = 4 * min(3, float(os.environ.get("COTENANT_PROBE_PATIENCE", "1")))
_SHARED = "/dev/shm"


def streams(env: dict, measured, _folder: pathlib.Path) -> dict:
    """Two kernels of one process at a time."""
    with family() as members:
        members.append(Child(env=env, program="waiter.py"))
        kernel = members[0].ask("start", timeout_s=START_S, us=KERNEL_US, measured=measured)
        return {**asked(members, "pairs"), "kernel": {name: kernel[name] for name in ("kernelS", "turns")}}


def ranks(env: dict, measured, folder: pathlib.Path) -> dict:
    """Two processes that need each other at each step."""
    folder.mkdir()
    with family() as members:
        members.extend(Child(env=env, program="peers.py") for _ in range(2))
        for rank, member in enumerate(members):
            member.tell("start", rank=rank, device=0, folder=str(folder))
        for member in members:
            member.hear(START_S)
        kernels = [member.ask("prepare", us=KERNEL_US, measured=measured) for member in members]
        return {**asked(members, "steps"), "kernel": {name: kernels[0][name] for name in ("kernelS", "turns")}}


def asked(members: list, what: str) -> dict:
    """Whether COUNT of them end, and after how long; a few before, so that all is loaded."""
    seen = {"ended": False, "right": None, "seconds": None, "launches": None, "failed": None}
    try:
        for count in (2, COUNT):
            for member in members:
                member.tell(what, count=count)
            answers = [member.hear(PATIENCE_S) for member in members]
    except NoAnswer:
        return seen
    except ChildError as problem:
        return {**seen, "failed": str(problem)}
    gave_up = sum(answer["gaveUp"] for answer in answers)
    return {**seen, "ended": True, "right": gave_up == 0 and all(answer.get("right", True) for answer in answers),
            "seconds": max(answer["seconds"] for answer in answers),
            "launches": sum(answer["launches"] for answer in answers)}


def waits(context: Context) -> Answer:
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",)):
        context.program(*program)
    measured = grants.calibrate(context)
    data = {}
    base = _SHARED if pathlib.Path(_SHARED).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ctp-", dir=base) as folder:
        place = pathlib.Path(folder)
        for name, run in (("streams", streams), ("ranks", ranks)):
            bare = run({}, None, place / name)
            kernel = bare.pop("kernel")
            grant = grants.Grant(context, f"{folder}/{name}-grant", SLICE, measured, cores=PERCENT)
            judge = arbiter.Arbiter(context)
            try:
                judge.plan([(grant, PERCENT)])
                held = run({"LD_PRELOAD": grant.both}, kernel, place / f"{name}-granted")
                held.pop("kernel")
            finally:
                judge.end()
            data[name] = {"bare": bare, "granted": held}
            context.note(data)

    def said(name: str) -> str:
        one = {key: (f"{value['seconds']:.3f} s" if value["ended"] else f"NOT ENDED within {PATIENCE_S:g} s")
               for key, value in data[name].items()}
        return f"{name}: bare {one['bare']}, with {PERCENT} % {one['granted']}"

    everything = [seen for one in data.values() for seen in one.values()]
    right = "right" if all(seen["right"] for seen in everything if seen["ended"]) else "WRONG"
    return Answer(
        f"{said('streams')}; {said('ranks')}; results are {right}",
        f"{COUNT} pairs of kernels, the first of which waits on the GPU for the second, launched before the first wait: "
        "on two streams of a process, and in two processes of one container; bare, and alone under our arbiter",
        data,
    )


STEPS = (Step("gating.waits", ("interposer 7.10",), "kernels that wait for a later launch, on one GPU", 60, waits),)
