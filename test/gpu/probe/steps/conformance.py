"""Which of NVIDIA's documented rules (test/conformance) the driver itself does not keep. A driver answers some six rules
a second, however many are asked at the same time, so each step asks half of them."""

import functools
import json
import pathlib
import subprocess
import time

import tools
from step import Answer, Context, Step

BUDGET_S = 150
#: When runs of rules are ended, in seconds from the step's begin: those that answered until then count.
ALL_S, ALONE_S = 110, 140
PARTS = 2
OBSERVED = pathlib.Path(__file__).resolve().parents[2] / "observed"
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


def answered_before() -> set:
    """The rules that a driver on a GPU has been asked, by the observations beside the probe."""
    observations = [json.loads(path.read_text()) for path in OBSERVED.glob("*.json")]
    asked = [step["data"].get("asked") for observation in observations if not observation["simulated"]
             for step in observation["steps"] if step["id"].startswith("conformance.")]
    return {name for names in asked if names for name in names}


def part_of(names: list, known: set, part: int) -> list:
    """What one of the steps asks, in this order: first what no driver has been asked."""
    ordered = sorted(names, key=lambda name: name in known)
    most = -(-len(ordered) // PARTS)
    return ordered[part * most:(part + 1) * most]


def judged(asked: dict, names: list) -> dict:
    rules = list(asked.values())
    counts = {}
    for rule in rules:
        counts[rule["outcome"]] = counts.get(rule["outcome"], 0) + 1
    return {
        "rules": len(names),
        "asked": sorted(asked),
        "counts": counts,
        "notKept": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                    if rule["outcome"] in NOT_KEPT},
        "notAsked": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                     if rule["outcome"] in ("absent", "not-here")},
    }


def ask(part: int, context: Context) -> Answer:
    began = time.monotonic()
    program = context.program("tests", "conformance-rules")
    listed = read(subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout)
    names = part_of([rule["id"] for rule in listed], answered_before(), part)
    running = [start(program, *names[shard::SHARDS]) for shard in range(SHARDS)]
    asked = {}
    for child in running:
        asked.update(rows(child, began + ALL_S))
    context.note(judged(asked, names))
    # Alone: some look at how much memory is free, and wait for what others hold up.
    again = [name for name, rule in asked.items() if rule["outcome"] in NOT_KEPT]
    if again:
        asked.update(rows(start(program, *again), began + ALONE_S))
    data = judged(asked, names)
    broken = ", ".join(sorted(data["notKept"])) or "none"
    return Answer(
        f"{data['counts'].get('kept', 0)} of {len(names)} documented rules are kept; not kept: {broken}",
        "each rule in a process of its own, its answer against the documentation",
        data,
    )


STEPS = tuple(
    Step(f"conformance.{part + 1}", (), f"the driver against its documentation, part {part + 1} of {PARTS}", BUDGET_S,
         functools.partial(ask, part))
    for part in range(PARTS)
)
