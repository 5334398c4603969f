"""Pairs of processes that need each other at each step, under grants whose shares are limited on each GPU: are they
right, do they go on, and do their shares hold? What the processes do is their program's (clients/peers.py,
clients/distributed.py)."""

import contextlib
import pathlib
import statistics
import tempfile
import threading
import time

import arbiter
import grants
from children import Child, ChildError, NoAnswer, gpus, family
from step import Context

SIZE = 2
SLICE = 8 << 30
WINDOWS = 2
#: Steps are asked for in portions of about so long, and the wait for an answer ends after PATIENCE_S.
PORTION_S = 0.25
PATIENCE_S = 20
ALONE, BESIDE = 50, (30, 60)
#: Shared by the kernel with GPUs, which not every file system's memory can be.
_SHARED = "/dev/shm"


class Stuck(Exception):
    """Ranks that do not come back: each waits for the other, or for its turn."""


class Pair:
    """Two ranks of one program, each on a GPU of its own where there are two. `begin(rank, device)` is the
    first request to each, with its arguments."""

    def __init__(self, program: str, devices: list, begin, env: dict, members: list):
        self.ranks, self.steps, self.seconds, self.right, self.last = [], 0, 0.0, True, []
        for device in devices:
            self.ranks.append(Child(env=env, program=program))
            members.append(self.ranks[-1])
        for rank, device in enumerate(devices):
            self.ranks[rank].tell("start", **begin(rank, device))

    def hear(self, timeout_s: float) -> list:
        """All answers. Where one rank does not answer, because another cannot, the other's complaint is what is raised."""
        deadline = time.monotonic() + timeout_s
        answers, silent = [], None
        for rank in self.ranks:
            try:
                answers.append(rank.hear(max(0.1, deadline - time.monotonic())))
            except NoAnswer as problem:
                silent = silent or problem
        if silent:
            raise silent
        return answers

    def run(self, count: int) -> None:
        for rank in self.ranks:
            rank.tell("steps", count=count)
        try:
            self.last = self.hear(PATIENCE_S)
        except NoAnswer as problem:
            raise Stuck(f"{count} steps: {problem}") from problem
        self.steps += count
        self.seconds += max(answer["seconds"] for answer in self.last)
        self.right = self.right and all(answer["right"] for answer in self.last)

    def measure(self) -> float:
        """Seconds per step: the least of three portions, once what comes first is behind."""
        self.run(2)
        count, taken = max(2, int(PORTION_S * 2 / max(answer["seconds"] for answer in self.last))), []
        for _ in range(3):
            self.run(count)
            taken.append(max(answer["seconds"] for answer in self.last) / count)
        return min(taken)


class Running:
    """A pair that goes on in portions, in a thread of its own, until the block is left."""

    def __init__(self, pair: Pair, step_s: float):
        self.pair, self.stuck, self.failed, self._end = pair, None, None, threading.Event()
        self.count = max(1, int(PORTION_S / step_s))
        self.before = (pair.steps, pair.seconds)
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def _go_on(self) -> None:
        while not self._end.is_set():
            try:
                self.pair.run(self.count)
            except Stuck as problem:
                self.stuck = str(problem)
                return
            except (ChildError, BrokenPipeError) as problem:
                self.failed = str(problem)
                return

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *problem) -> None:
        self._end.set()
        self._thread.join()

    def step_s(self):
        steps = self.pair.steps - self.before[0]
        return (self.pair.seconds - self.before[1]) / steps if steps else None


def charged(judge: arbiter.Arbiter, index: int, windows: list) -> list:
    """Percent of each GPU as charged to a page, by windows between two reports of the arbiter."""
    gpus = range(len(windows[0][1][index]))
    shares = [[(after[1][index][gpu]["chargedNs"] - before[1][index][gpu]["chargedNs"]) / 1e7 / (after[0] - before[0])
               for before, after in zip(windows, windows[1:])] for gpu in gpus]
    return [{"mean": round(statistics.mean(each), 2), "spread": round(statistics.pstdev(each), 2)} for each in shares]


def watch(judge: arbiter.Arbiter, pairs: list, percents: tuple, ungated_s: float) -> list:
    """Pairs that run beside each other for some windows, each with its share."""
    with contextlib.ExitStack() as undo:
        running = [undo.enter_context(Running(pair, ungated_s * 100 / percent))
                   for pair, percent in zip(pairs, percents)]
        judge.report()  # which may be from before
        windows = []
        while len(windows) <= WINDOWS:
            report = judge.report()
            windows.append((time.monotonic(), report["gpus"]))
    seen = []
    for index, (one, percent) in enumerate(zip(running, percents)):
        step_s = one.step_s()
        seen.append({
            "granted": percent, "chargedPercent": charged(judge, index, windows), "right": one.pair.right,
            "stuck": one.stuck, "failed": one.failed, "stepSeconds": step_s, "slowdown": round(step_s / ungated_s, 2) if step_s else None,
            "slowdownByShare": round(100 / percent, 2),
        })
    return seen


def observe(context: Context, env: dict, program: str, begin, start_s: float, prepare=None) -> dict:
    """A pair bare; one in a grant of ALONE percent of each GPU; two beside each other with BESIDE. `begin(folder)` gives
    what Pair is given, `prepare` is asked of a rank of each pair before it runs, first of one that has the GPUs for itself."""
    uuids = [gpu["uuid"] for gpu in gpus(env)[:SIZE]]
    devices = [rank % len(uuids) for rank in range(SIZE)]
    data = {"gpus": len(uuids), "ranks": SIZE}
    measured = [grants.calibrate(context, uuid, env) for uuid in uuids]
    base = _SHARED if pathlib.Path(_SHARED).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ctp-", dir=base) as folder, contextlib.ExitStack() as undo:
        def pair(name: str, members: list, preload: str = "") -> Pair:
            place = pathlib.Path(folder) / name
            place.mkdir()
            return Pair(program, devices, begin(str(place)), {**env, **({"LD_PRELOAD": preload} if preload else {})},
                        members)

        kernel = None
        with family() as members:
            bare = pair("bare", members)
            data["started"] = bare.hear(start_s)[0]
            if prepare:
                kernels = [rank.ask("prepare", **prepare) for rank in bare.ranks]
                kernel = {name: kernels[0][name] for name in ("kernelS", "turns")}
            ungated_s = bare.measure()
            data["ungated"] = {"stepSeconds": ungated_s, "right": bare.right}
        data["started"].pop("at")
        context.note(data)
        judge = arbiter.Arbiter(context)
        undo.callback(judge.end)
        given = [grants.Grant(context, f"{folder}/grant{index}", SLICE, *measured, cores=50)
                 for index in range(len(BESIDE))]
        judge.plan([(grant, 100 // len(given)) for grant in given])
        members = undo.enter_context(family())
        pairs = [pair(f"pair{index}", members, grant.both) for index, grant in enumerate(given)]
        for one in pairs:
            one.hear(2 * start_s)
        if prepare:
            for one in pairs:
                for rank in one.ranks:
                    rank.ask("prepare", **prepare, measured=kernel)
        judge.plan([(given[0], ALONE), *((grant, 100 - ALONE) for grant in given[1:])])
        data["alone"] = watch(judge, pairs[:1], (ALONE,), ungated_s)[0]
        context.note(data)
        # Ranks that did not come back alone will not beside others.
        judge.plan(list(zip(given, BESIDE)))
        gone = data["alone"]["stuck"] or data["alone"]["failed"]
        data["beside"] = [] if gone else watch(judge, pairs, BESIDE, ungated_s)
        judge.report()  # which may be from before the end
        pages = judge.report()["gpus"]
    data["launches"] = [{"made": sum(answer.get("launches", 0) for answer in one.last),
                         "counted": sum(gpu["launches"] for gpu in pages[index])} for index, one in enumerate(pairs)]
    seen = [data["alone"], *data["beside"]]
    data["allRight"] = data["ungated"]["right"] and all(one["right"] for one in seen)
    data["noneStuck"] = not any(one["stuck"] for one in seen)
    data["noneFailed"] = not any(one["failed"] for one in seen)
    return data


def said(data: dict) -> str:
    def one(seen: dict) -> str:
        gpus = "/".join(f"{gpu['mean']:g}±{gpu['spread']:g}" for gpu in seen["chargedPercent"])
        pace = f"{seen['slowdown']:g} times as long a step" if seen["slowdown"] else "no step"
        ended = "".join(f", {label} ({seen[key]})" for key, label in (("stuck", "STUCK"), ("failed", "FAILED")) if seen[key])
        return f"{gpus} of {seen['granted']} %, {pace}{ended}"

    beside = " and ".join(one(seen) for seen in data["beside"]) or "not asked"
    return (f"{data['ranks']} ranks on {data['gpus']} GPU{'s' if data['gpus'] > 1 else ''}, a step takes "
            f"{data['ungated']['stepSeconds'] * 1e3:.2f} ms without us; alone {one(data['alone'])}; two pairs beside each "
            f"other {beside}; results are "
            f"{'right' if data['allRight'] else 'WRONG'}, {'none' if data['noneStuck'] else 'SOME'} stuck, "
            f"{'none' if data['noneFailed'] else 'SOME'} failed")
