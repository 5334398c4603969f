#!/usr/bin/env python3
"""Asks a real NVIDIA driver (or the simulated one) what the design only assumes.

    python3 test/gpu/probe/probe.py [--out FILE] [--step ID ...] [--list] [--simulated] [--managed]

Needs Python 3.9 and nothing else; steps that run our own programs look for them in native/build (make -C native probe),
built here or elsewhere and carried along. Each step is a process of its own with its own time budget, so that one that
hangs or crashes costs only itself; those without which a question is not asked come first. Nothing changes a setting of
a GPU. Memory is taken by plain allocations only, unless --managed allows a few MiB of managed memory for the one
question that is about it.

Prints a table: driver and GPU, some lines as each step ends (questions, answer, how it was obtained), and at the end a
line for each question. --out writes everything as JSON (test/gpu/observed/README.md says what it holds), anew after each
step, so that a probe that is ended has left what it found out. With --step the other steps' results stay as they are in
that file. Exit code 0: every step answered or said why it cannot here; 1: a step failed or ran out of time; 2: a mistake
of usage.

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
#: With less than this left a step is not begun: it would only be cut off.
LEAST_S = 5
#: How long a killed step and what it had started may take to be gone. Who hangs in the driver is not ended by a signal.
END_S, GONE_S = 10, 5


def run_inside(step: Step, given: argparse.Namespace) -> None:
    """The step itself, in the process that was made for it. Descriptor 3 gets a line of JSON for each of its notes, and
    one with its answer."""
    with os.fdopen(3, "w", buffering=1) as out:
        def report(what: dict) -> None:
            out.write(json.dumps(what) + "\n")

        context = Context(given.simulated, given.managed, note=lambda data: report({"data": data}))
        try:
            answer = step.run(context)
            report({"status": "answered", "answer": answer.answer, "how": answer.how, "data": answer.data})
        except NotHere as reason:
            report({"status": "not here", "answer": str(reason), "how": "", "data": {}})


def last_reported(text: str) -> dict:
    """The last line that a step finished writing: its answer, or its last note."""
    lines = text.split("\n")[:-1]
    return json.loads(lines[-1]) if lines else {"data": {}}


def living(group: int) -> list:
    """What still runs of a process group: pid, the kernel's letter and name of each."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):  # it ended meanwhile
            before, _, after = stat.read_text(errors="replace").rpartition(")")
            letter, _, of, *_ = after.split()
            if int(of) == group and letter not in ("Z", "X"):
                found.append({"pid": int(stat.parent.name), "state": letter, "name": before.partition("(")[2]})
    return found


def end(child: subprocess.Popen) -> list:
    """Kills a step with whatever it left running; what is there of them all the same, after a while."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=END_S)
    deadline = time.monotonic() + GONE_S
    left = living(child.pid)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = living(child.pid)
    return left


def run_outside(step: Step, arguments: list, env: dict, budget_s: float) -> dict:
    """Starts the step in a session of its own and ends all of it when its time is up."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        def inherit():
            os.dup2(answer.fileno(), 3)
            os.set_inheritable(3, True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

        # If it were ended while the step is being started, the probe would lose sight of it.
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
            left = end(child)
        answer.seek(0)
        result = last_reported(answer.read().decode())
        said.seek(0)
        last = said.read().decode(errors="replace").strip()[-2000:]
    ended = f"not within {budget_s:.3g} s" if code is None else last.split("\n")[-1] or f"ended with {code}"
    if "status" not in result:
        result = {"status": "out of time" if code is None else "failed", "answer": ended, "how": "", **result, "said": last}
    elif code != 0:
        result = {**result, "afterwards": ended, "said": last}  # the driver's leave-taking, not the step
    if left:
        result = {**result, "left": left}
    return {**head(step), **result, "seconds": round(time.monotonic() - started, 2)}


def head(step: Step) -> dict:
    return {"id": step.id, "questions": list(step.questions), "title": step.title}


def row(result: dict) -> str:
    asks = f"{', '.join(result['questions'])}: " if result["questions"] else ""
    lines = [f"{result['status']:<12} {result['id']:<22} {result['seconds']:>6.1f} s  {asks}{result['title']}",
             f"{'':12} {result['answer']}"]
    if result["how"]:
        lines.append(f"{'':12} how: {result['how']}")
    if "left" in result:
        still = ", ".join(f"{one['pid']} ({one['name']}, {one['state']})" for one in result["left"])
        lines.append(f"{'':12} STILL THERE, although killed: {still}")
    return "\n".join(lines)


def whom(facts: dict) -> str:
    """Of which driver and GPU the table is."""
    gpu, (major, rest) = facts["gpu"], divmod(facts["cuda"], 1000)
    return (f"driver {facts['driver']}, CUDA {major}.{rest // 10}, {gpu['name']} (compute capability {gpu['compute']}, "
            f"{gpu['totalBytes'] / (1 << 30):.1f} GiB)"
            + ("; SIMULATED: nothing here is a GPU result" if facts["simulated"] else ""))


def by_question(results: list) -> str:
    """What came of the steps of each question, a row for each."""
    steps = {}
    for result in results:
        for question in result["questions"]:
            steps.setdefault(question, []).append(f"{result['id']} {result['status']}")
    return "\n".join(f"{question:<16} {', '.join(rows)}" for question, rows in steps.items())


def write_whole(path: str, report: dict) -> None:
    """In one go: if the probe is ended meanwhile, the file is as it was before."""
    fresh = f"{path}.new"
    with open(fresh, "w") as out:
        json.dump(report, out, indent=2, sort_keys=False)
        out.write("\n")
    os.replace(fresh, path)


def results_before(path: str, of: dict) -> dict:
    """Results by step that a file of the same driver and GPU has; ValueError where it is of another one."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        report = json.load(file)
    for key, value in of.items():
        if report.get(key) != value:
            raise ValueError(f"{path} is of another machine: {key} there is {report.get(key)}, here {value}")
    return {result["id"]: result for result in report["steps"]}


def usage() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="write all results to this file, as JSON")
    parser.add_argument("--step", action="append", help="only this step; may be given several times")
    parser.add_argument("--list", action="store_true", help="show the steps and what they ask")
    parser.add_argument("--simulated", action="store_true", help="on a simulated node, started for it")
    parser.add_argument("--managed", action="store_true", help="allow a few MiB of managed memory")
    parser.add_argument("--patience", type=float, default=1, metavar="FACTOR",
                        help="so many times the steps' budgets: for a machine that does much else (default 1)")
    parser.add_argument("--total", type=float, default=TOTAL_BUDGET_S, metavar="SECONDS",
                        help=f"for all steps together, but for those named by --step (default {TOTAL_BUDGET_S})")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


def ask_all(steps: list, given: argparse.Namespace, env: dict, begun: float, keep) -> None:
    """Runs the steps one after the other; `keep` gets each one's result. The total counts from when the probe `begun`."""
    flags = [f"--{flag}" for flag in ("simulated", "managed") if getattr(given, flag)]
    total_s = given.total * given.patience
    env = {**env, "COTENANT_PROBE_PATIENCE": f"{given.patience:g}"}
    deadline = begun + total_s
    for step in steps:
        budget_s = step.budget_s * given.patience
        if not given.step:
            left_s = deadline - time.monotonic()
            if left_s < min(LEAST_S, budget_s):
                keep({**head(step), "status": "out of time", "answer": f"the probe's {total_s:g} s are used up", "how": "",
                      "data": {}, "seconds": 0.0})
                continue
            budget_s = min(budget_s, left_s)
        print(f"{step.id} ...", file=sys.stderr, flush=True)
        keep(run_outside(step, flags, env, budget_s))


def main() -> int:
    begun = time.monotonic()
    parser = usage()
    given = parser.parse_args()
    if not 1 <= given.patience <= 100:
        parser.error(f"--patience {given.patience:g}: want a factor from 1 to 100")
    if not 1 <= given.total <= 86400:
        parser.error(f"--total {given.total:g}: want seconds from 1 to 86400")
    by_id = {step.id: step for step in ALL}
    if given.inside:
        run_inside(by_id[given.inside], given)
        return 0
    unknown = [name for name in given.step or [] if name not in by_id]
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(by_id)}")
    steps = [by_id[name] for name in given.step] if given.step else list(ALL)
    if given.list:
        for step in steps:
            print(f"{step.id:<22} {step.budget_s:>4} s  {', '.join(step.questions)}: {step.title}")
        return 0
    if given.simulated and not machine.SIMULATOR.exists():
        parser.error("--simulated: the simulated node is not built: make -C native all probe")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended, too
    with contextlib.ExitStack() as undo:
        try:
            env, found = undo.enter_context(machine.node(given.simulated))
            facts = {"simulated": given.simulated, **found}
            results = results_before(given.out, facts) if given.out and given.step else {}
        except (machine.NoDriver, ValueError) as problem:
            parser.error(str(problem))
        if not given.simulated:
            for program in machine.not_built():
                print(f"{program} is not built (make -C native probe): what needs it will not be answered", file=sys.stderr)
        seen, order = [], []
        print(whom(facts), flush=True)

        def keep(result: dict) -> None:
            print(row(result), flush=True)
            seen.append(result["status"])
            results[result["id"]] = result
            order[:] = [results[name] for name in by_id if name in results]
            if given.out:
                at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                write_whole(given.out, {"format": FORMAT, "at": at, **facts, "steps": order})

        ask_all(steps, given, env, begun, keep)
        print(f"{whom(facts)}\n{by_question(order)}", flush=True)
    return 1 if any(status in ("failed", "out of time") for status in seen) else 0


if __name__ == "__main__":
    sys.exit(main())
