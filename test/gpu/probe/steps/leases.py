"""How well a share of compute holds: kernels that ended, by windows of a second, beside what was granted and charged."""

import contextlib
import functools
import pathlib
import statistics
import tempfile
import time

import arbiter
import children
import cuda
import grants
from step import Answer, Context, Step

SLICE = 4 << 30
WINDOWS = 3
#: Kernels' length in microseconds and how many between two synchronizations, of one process after another (the last one's
#: for all further ones); and shares alone and beside each other.
ROUNDS = (
    (((200, 50),), ((10,), (30,), (80,), (30, 70))), (((20_000, 1),), ((30,), (30, 70))),
    (((20_000, 1), (200, 50)), ((30, 70),)),
)
#: The same for shares below 10 %, and more than two containers.
SMALL_ROUNDS = (
    (((200, 50),), ((2,), (5,), (20, 30, 50), (5, 15, 30, 50))), (((20_000, 1),), ((5,), (20, 30, 50))),
)


def mean_and_spread(values: list) -> dict:
    return {"mean": round(statistics.mean(values), 2), "spread": round(statistics.pstdev(values), 2)}


def watch(judge: arbiter.Arbiter, busy: list, kernels: list) -> list:
    """Of each that is busy: percent of the GPU by its kernels, and as charged, window by window. A window is from one
    report of the arbiter to the next, which is a second; what comes before its next one is left out, for it may be from
    before a change."""
    seen = []
    for _ in range(WINDOWS + 1):
        pages = judge.report()["pages"]
        now = [child.ask("progress") for child in busy]
        seen.append([(answer["at"], answer["kernels"], pages[index]["chargedNs"]) for index, answer in enumerate(now)])
    result = []
    for index in range(len(busy)):
        had, charged = [], []
        for before, after in zip(seen, seen[1:]):
            took = after[index][0] - before[index][0]
            had.append(100 * (after[index][1] - before[index][1]) * kernels[index]["kernelS"] / took)
            charged.append((after[index][2] - before[index][2]) / 1e7 / took)
        result.append({"percent": mean_and_spread(had), "chargedPercent": mean_and_spread(charged)})
    return result


def measure(us: int, batch: int) -> dict:
    """A kernel alone on the GPU, without us: its length, and which part of the time it keeps the GPU busy."""
    with children.child() as alone:
        alone.ask("start")
        kernel = alone.ask("prepare", us=us, batch=batch)
        alone.ask("busy")
        time.sleep(1)
        ran = alone.ask("idle")
    return {"us": us, "batch": batch, "kernelS": kernel["kernelS"], "turns": kernel["turns"],
            "ungatedPercent": round(100 * ran["busyS"] / ran["seconds"], 1)}


def name_of(lengths: tuple) -> str:
    return "kernels" + "And".join(f"{us}us" for us, _ in lengths)


def round_of(context: Context, folder: pathlib.Path, measured: dict, lengths: tuple, shares: tuple, note) -> dict:
    with contextlib.ExitStack() as undo:
        most = max(len(percents) for percents in shares)
        kernels = [measure(*length) for length in lengths]
        result = {"kernels": [{**kernel} for kernel in kernels], "shares": {}}
        kernels += kernels[-1:] * (most - len(kernels))
        given = [grants.Grant(context, str(folder / f"{name_of(lengths)}-{index}"), SLICE, measured, cores=50)
                 for index in range(most)]
        judge = arbiter.Arbiter(context)
        undo.callback(judge.end)
        judge.plan([(grant, 50) for grant in given])
        workers = undo.enter_context(children.family())
        for grant, kernel in zip(given, kernels):
            workers.append(children.Child(env={"LD_PRELOAD": grant.cuda}))
            workers[-1].ask("start")
            workers[-1].ask("prepare", us=kernel["us"], batch=kernel["batch"],
                            measured={name: kernel[name] for name in ("kernelS", "turns")})
        running = 0
        for percents in shares:
            # Those that have no share here stay idle: shares come in order of how many have one.
            rest = (100 - sum(percents)) // max(1, most - len(percents))
            judge.plan(list(zip(given, (*percents, *[rest] * (most - len(percents))))))
            while running < len(percents):
                workers[running].ask("busy")
                running += 1
            held = watch(judge, workers[:running], kernels)
            name = "/".join(str(percent) for percent in percents)
            result["shares"][name] = [{"granted": percent, **one} for percent, one in zip(percents, held)]
            note(result)
        ran = [worker.ask("idle") for worker in workers[:running]]
        judge.report()  # which may be from before the end
        last = judge.report()["pages"]
        result["launches"] = [{"made": one["kernels"], "counted": last[index]["launches"]}
                              for index, one in enumerate(ran)]
        return result


def said(lengths: tuple, result: dict) -> str:
    parts = []
    for held in result["shares"].values():
        each = "/".join(f"{one['percent']['mean']:g}±{one['percent']['spread']:g}" for one in held)
        parts.append(f"{each} of {'/'.join(str(one['granted']) for one in held)} %")
    return f"kernels of {' and '.join(str(us) for us, _ in lengths)} us: {', '.join(parts)}"


def leases(context: Context, rounds: tuple) -> Answer:
    cuda.library()
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",)):
        context.program(*program)
    data = {}

    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        measured = grants.calibrate(context)
        for lengths, shares in rounds:
            def note(result: dict) -> None:
                data[name_of(lengths)] = result
                context.note(data)

            note(round_of(context, pathlib.Path(folder), measured, lengths, shares, note))
    launches = [one for lengths, _ in rounds for one in data[name_of(lengths)]["launches"]]
    data["allLaunchesCounted"] = all(one["made"] == one["counted"] for one in launches)
    return Answer(
        "; ".join(said(lengths, data[name_of(lengths)]) for lengths, _ in rounds)
        + f"; {'all' if data['allLaunchesCounted'] else 'NOT all'} launches were counted",
        f"kernels that ended times the length that they have without us, in {WINDOWS} windows of a second under fixed "
        "shares that the arbiter changes as they run; beside it what it charged and how many launches it counted",
        data,
    )


STEPS = (
    Step("leases", ("interposer 7.8", "interposer 4.5"),
         "shares of compute under our own leases, alone and beside each other", 90,
         functools.partial(leases, rounds=ROUNDS)),
    Step("leases.small", ("interposer 7.8", "interposer 4.5"),
         "shares below 10 %, and three and four containers on one GPU", 90,
         functools.partial(leases, rounds=SMALL_ROUNDS)),
)
