"""What a training run keeps of its speed: bare, in a grant, and with shares of compute, alone and beside another. On the
legacy default stream, where our events lie on a stream of their own, and on a created one."""

import importlib.util
import pathlib
import tempfile

import arbiter
import children
import grants
from step import Answer, Context, NotHere, Step

SLICE = 16 << 30
WINDOW_S, START_S = 4, 60


def training(context: Context) -> Answer:
    if context.simulated:
        raise NotHere("cuBLAS computes on real GPUs alone")
    if importlib.util.find_spec("torch") is None:
        raise NotHere("there is no PyTorch")
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",), ("libcotenant-nvml.so",)):
        context.program(*program)
    data = {}

    def run(name: str, workers: list, stream: bool = False) -> None:
        for worker in workers:
            worker.tell("train", seconds=WINDOW_S, stream=stream)
        answers = [worker.hear(WINDOW_S + START_S) for worker in workers]
        data[name] = [{"stepsPerSecond": round(answer["steps"] / answer["seconds"], 3), **answer} for answer in answers]
        context.note(data)

    with children.child(program="training.py") as bare:
        data["torch"] = bare.ask("start", timeout_s=START_S)["torch"]
        run("bare", [bare])
        run("bareOnAStream", [bare], stream=True)
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        place, measured = pathlib.Path(folder), grants.calibrate(context)
        plain = grants.Grant(context, str(place / "plain"), SLICE, measured)
        with children.child(program="training.py", env={"LD_PRELOAD": plain.both}) as held:
            held.ask("start", timeout_s=START_S)
            run("memoryAlone", [held])
        given = [grants.Grant(context, str(place / f"share{index}"), SLICE, measured, cores=50) for index in range(2)]
        judge = arbiter.Arbiter(context)
        try:
            judge.plan([(given[0], 100)])
            with children.family() as workers:
                workers.append(children.Child(env={"LD_PRELOAD": given[0].both}, program="training.py"))
                workers[0].ask("start", timeout_s=START_S)
                run("share100", workers)
                run("share100OnAStream", workers, stream=True)
                data["charged"] = judge.report()["pages"][0]
                judge.plan([(grant, 50) for grant in given])
                run("share50", workers)
                workers.append(children.Child(env={"LD_PRELOAD": given[1].both}, program="training.py"))
                workers[1].ask("start", timeout_s=START_S)
                run("shares50And50", workers)
                judge.plan(list(zip(given, (30, 70))))
                run("shares30And70", workers)
        finally:
            judge.end()
    whole = data["bare"][0]["stepsPerSecond"]
    parts = ["/".join(f"{100 * one['stepsPerSecond'] / whole:.1f}" for one in data[name]) + f" % with {name}"
             for name in data if isinstance(data[name], list) and name != "bare"]
    return Answer(
        f"PyTorch {data['torch']}, {whole:g} steps per second bare; of those {', '.join(parts)}",
        f"training of six transformer blocks in bfloat16, {WINDOW_S} s each, fixed shares under our arbiter",
        data,
    )


STEPS = (
    Step("training", ("interposer 7.3", "interposer 4.5"), "what training keeps of its speed", 120, training),
)
