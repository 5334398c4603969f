#!/usr/bin/env python3
"""Asks a real NVIDIA driver (or the simulated one) what the design only assumes.

    python3 test/gpu/probe/probe.py [--out FILE] [--step ID ...] [--list] [--simulated] [--managed]

Needs Python 3.9 and nothing else; steps that run our own programs look for them in native/build (make -C native tests
bench), built here or elsewhere and carried along. Each step is a process of its own with its own time budget, so that
one that hangs or crashes costs only itself. Nothing changes a setting of a card. Memory is taken by plain allocations
only, unless --managed allows a few MiB of managed memory for the one question that is about it.

Prints a table; --out writes everything as JSON (test/gpu/observed/README.md says what it holds). Exit code 0: every
step answered or said why it cannot here; 1: a step failed or ran out of time; 2: a mistake of usage.

COTENANT_PROBE_STEPS=FOLDER takes FOLDER/steps instead of the steps beside this file: so the probe itself is tested.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
if os.environ.get("COTENANT_PROBE_STEPS"):
    sys.path.insert(0, os.environ["COTENANT_PROBE_STEPS"])

import machine  # noqa: E402
from step import Answer, Context, NotHere, Step  # noqa: E402
from steps import ALL  # noqa: E402

FORMAT = 1
TOTAL_BUDGET_S = 480


def run_inside(step: Step, context: Context) -> None:
    """The step itself, in the process that was made for it: its answer goes to descriptor 3 as JSON."""
    try:
        answer = step.run(context)
        result = {"status": "answered", "answer": answer.answer, "how": answer.how, "data": answer.data}
    except NotHere as reason:
        result = {"status": "not here", "answer": str(reason), "how": "", "data": {}}
    with os.fdopen(3, "w") as out:
        json.dump(result, out)


def run_outside(step: Step, arguments: list, env: dict, budget_s: float) -> dict:
    """Starts the step in a session of its own and ends all of it when its time is up."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        def inherit():
            os.dup2(answer.fileno(), 3)
            os.set_inheritable(3, True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

        # Told to end while the step is being started, the probe would lose sight of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = subprocess.Popen(
            [sys.executable, __file__, "--inside", step.id, *arguments],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env,
            start_new_session=True, close_fds=False, preexec_fn=inherit,
        )
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            code = child.wait(timeout=budget_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # whatever it left running
            child.wait()
        answer.seek(0)
        text = answer.read().decode()
        said.seek(0)
        last = said.read().decode(errors="replace").strip()[-2000:]
    if code is None:
        result = {"status": "out of time", "answer": f"not within {budget_s:g} s", "how": "", "data": {}}
    elif code != 0 or text == "":
        result = {"status": "failed", "answer": last.split("\n")[-1] or f"ended with {code}", "how": "", "data": {}}
    else:
        result = json.loads(text)
    if result["status"] in ("failed", "out of time"):
        result["said"] = last
    return {
        "id": step.id, "questions": list(step.questions), "title": step.title, **result,
        "seconds": round(time.monotonic() - started, 2),
    }


def table(results: list) -> str:
    lines = []
    for result in results:
        lines.append(f"{result['status']:<12} {result['id']:<22} {result['seconds']:>6.1f} s  {result['title']}")
        lines.append(f"{'':12} {result['answer']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="write all results to this file, as JSON")
    parser.add_argument("--step", action="append", help="only this step; may be given several times")
    parser.add_argument("--list", action="store_true", help="show the steps and what they ask")
    parser.add_argument("--simulated", action="store_true", help="on a simulated node, started for it")
    parser.add_argument("--managed", action="store_true", help="allow a few MiB of managed memory")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR",
                        help="so many times the steps' budgets: for a machine that does much else (default 1)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not 1 <= given.patience <= 100:
        parser.error(f"--patience {given.patience:g}: want a factor from 1 to 100")
    by_id = {step.id: step for step in ALL}
    if given.inside:
        run_inside(by_id[given.inside], Context(given.simulated, given.managed))
        return 0
    unknown = [name for name in given.step or [] if name not in by_id]
    if unknown:
        print(f"no step {', '.join(unknown)}; there are {', '.join(by_id)}", file=sys.stderr)
        return 2
    steps = [by_id[name] for name in given.step] if given.step else list(ALL)
    if given.list:
        for step in steps:
            print(f"{step.id:<22} {step.budget_s:>4} s  {', '.join(step.questions)}: {step.title}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended, too
    with machine.node(given.simulated) as env:
        facts = machine.facts(env)
        if facts is None:
            print("no CUDA driver library can be loaded here; --simulated runs on a simulated node", file=sys.stderr)
            return 2
        arguments = [flag for flag in ("simulated", "managed") if getattr(given, flag)]
        results = []
        deadline = time.monotonic() + TOTAL_BUDGET_S * given.patience
        for step in steps:
            budget_s = step.budget_s * given.patience
            if time.monotonic() + budget_s > deadline and not given.step:
                results.append({
                    "id": step.id, "questions": list(step.questions), "title": step.title, "status": "out of time",
                    "answer": f"the probe's {TOTAL_BUDGET_S * given.patience:g} s are used up", "how": "", "data": {}, "seconds": 0.0,
                })
                continue
            print(f"{step.id} ...", file=sys.stderr, flush=True)
            results.append(run_outside(step, [f"--{flag}" for flag in arguments], env, budget_s))
    report = {
        "format": FORMAT, "simulated": given.simulated,
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **facts, "steps": results,
    }
    print(table(results))
    if given.out:
        with open(given.out, "w") as out:
            json.dump(report, out, indent=2, sort_keys=False)
            out.write("\n")
    return 1 if any(result["status"] in ("failed", "out of time") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
