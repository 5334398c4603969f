"""Which of NVIDIA's documented rules (test/conformance) the driver itself does not keep."""

import json
import subprocess
import time

import tools
from step import Answer, Context, Step

BUDGET_S = 150
#: When runs of rules are ended, in seconds from the step's begin: those that answered until then count.
ALL_S, ALONE_S = 100, 140
#: Rules at the same time, each in a process of its own: most of a rule's time is the start of the driver.
SHARDS = 8
NOT_KEPT = ("broken", "hung", "died")


def read(lines: str) -> list:
    """The rows of what a run has printed, without a line that was cut off."""
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{") and line.endswith("}")]


def start(*command: str) -> subprocess.Popen:
    return subprocess.Popen(command, env=tools.environment(), text=True, stdout=subprocess.PIPE)


def rows(child: subprocess.Popen, until: float) -> dict:
    """By id, the rules that a run answered until then; it is ended where it has more."""
    try:
        lines = child.communicate(timeout=max(0.0, until - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        child.kill()
        lines = child.communicate()[0]
    return {rule["id"]: rule for rule in read(lines)}


def judged(asked: dict, listed: list) -> dict:
    rules = list(asked.values())
    counts = {}
    for rule in rules:
        counts[rule["outcome"]] = counts.get(rule["outcome"], 0) + 1
    return {
        "rules": len(listed),
        "asked": len(rules),
        "counts": counts,
        "notKept": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                    if rule["outcome"] in NOT_KEPT},
        "notAsked": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                     if rule["outcome"] in ("absent", "not-here")},
    }


def ask(context: Context) -> Answer:
    began = time.monotonic()
    program = context.program("tests", "conformance-rules")
    listed = read(subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout)
    running = [start(program, "--shard", f"{index}/{SHARDS}") for index in range(SHARDS)]
    asked = {}
    for child in running:
        asked.update(rows(child, began + ALL_S))
    context.note(judged(asked, listed))
    # Alone: some look at how much memory is free, and wait for what others hold up.
    again = [name for name, rule in asked.items() if rule["outcome"] in NOT_KEPT]
    if again:
        asked.update(rows(start(program, *again), began + ALONE_S))
    data = judged(asked, listed)
    broken = ", ".join(sorted(data["notKept"])) or "none"
    return Answer(
        f"{data['counts'].get('kept', 0)} of {len(listed)} documented rules are kept; not kept: {broken}",
        "each rule in a process of its own, its answer against the documentation",
        data,
    )


STEPS = (Step("conformance", (), "the driver against its documentation", BUDGET_S, ask),)
