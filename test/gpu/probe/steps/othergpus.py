"""What allocations take on each further kind of GPU in this machine: rounding hangs on the architecture."""

import sys
import time

import cuda
import machine
import tools
from children import gpus
from step import Answer, Context, NotHere, Step
from steps import pools, rounding

ASKED = {step.id: step.run for step in (*rounding.STEPS, *pools.STEPS)}
#: For all of them together, and at most so long for one.
ALL_S = 100
EACH_S = 25
#: In a process that is shown one GPU only.
CODE = """
import json, sys
from step import Context, NotHere
from steps import othergpus
try:
    answer = othergpus.ASKED[sys.argv[1]](Context(*(word == "1" for word in sys.argv[2:])))
    print(json.dumps({"status": "answered", "answer": answer.answer, "data": answer.data}))
except NotHere as reason:
    print(json.dumps({"status": "not here", "answer": str(reason), "data": {}}))
"""


def ask(context: Context, step: str, uuid: str, env: dict, until: float) -> dict:
    left = min(EACH_S, until - time.monotonic())
    if left <= 1:
        return {"status": "out of time", "answer": "the steps before it took all of the time", "data": {}}
    flags = [str(int(flag)) for flag in (context.simulated, context.managed)]
    result = tools.run([sys.executable, "-c", CODE, step, *flags],
                     tools.environment(**env, CUDA_VISIBLE_DEVICES=uuid, PYTHONPATH=str(tools.PROGRAMS.parent)), left)
    result.pop("begunNs", None)
    if result.pop("ran"):
        return result
    return {"status": "out of time" if result.get("outOfTime") else "failed", "answer": result["why"], "data": {}}


def observe(context: Context, env: dict) -> Answer:
    found = gpus(env)
    others = {gpu["name"]: gpu for gpu in reversed(found) if gpu["name"] != found[0]["name"]}
    if not others:
        raise NotHere(f"CUDA shows {len(found)} GPU{'s' if len(found) > 1 else ''}, of one kind ({found[0]['name']}, compute "
                      f"capability {found[0]['compute']}): for other architectures the probe is run where they are")
    data = {}
    until = time.monotonic() + ALL_S
    for name, gpu in others.items():
        steps = {step: ask(context, step, gpu["uuid"], env, until) for step in ASKED}
        data[name] = {"compute": gpu["compute"], "steps": steps}
        context.note({"gpus": data})
    failed = [f"{step} on {name}" for name, one in data.items() for step, result in one["steps"].items()
              if result["status"] in ("failed", "out of time")]
    if failed:
        raise RuntimeError(f"no answer from {', '.join(failed)}")
    return Answer(
        "; ".join(f"{one['steps']['rounding.linear']['answer']}; {one['steps']['rounding.pools']['answer']}"
                  for one in data.values()),
        f"the steps {', '.join(ASKED)} again, each in a process that is shown one GPU of another kind than the first",
        {"gpus": data},
    )


def other_gpus(context: Context) -> Answer:
    cuda.library()
    if not context.simulated:
        return observe(context, {})
    with machine.simulated_node("h100", "l4") as env:  # the node of the other steps has one GPU
        return observe(context, env)


STEPS = (
    Step("rounding.othergpus", ("interposer 7.4",), "what allocations take on GPUs of another kind in this machine", 110,
         other_gpus),
)
