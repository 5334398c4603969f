"""Which of NVIDIA's documented rules (test/conformance) the driver itself does not keep."""

import json
import subprocess

import tools
from step import Answer, Context, Step

BUDGET_S = 150
#: Rules at the same time, each in a process of its own: most of a rule's time is the start of the driver.
SHARDS = 4
NOT_KEPT = ("broken", "hung", "died")


def read(lines: str) -> list:
    """The rows of what a run has printed, without a line that was cut off."""
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{") and line.endswith("}")]


def ask(context: Context) -> Answer:
    program = context.program("tests", "conformance-rules")
    listed = read(subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout)
    running = [subprocess.Popen([program, "--shard", f"{index}/{SHARDS}"], env=tools.environment(), text=True,
                                stdout=subprocess.PIPE) for index in range(SHARDS)]
    asked = {rule["id"]: rule for child in running for rule in read(child.communicate()[0])}
    # Alone: some look at how much memory is free, and wait for what others hold up.
    again = [name for name, rule in asked.items() if rule["outcome"] in NOT_KEPT]
    if again:
        alone = subprocess.run([program, *again], env=tools.environment(), text=True, stdout=subprocess.PIPE, check=True)
        asked.update((rule["id"], rule) for rule in read(alone.stdout))
    rules = list(asked.values())
    counts = {}
    for rule in rules:
        counts[rule["outcome"]] = counts.get(rule["outcome"], 0) + 1
    data = {
        "rules": len(listed),
        "asked": len(rules),
        "counts": counts,
        "notKept": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                    if rule["outcome"] in NOT_KEPT},
        "notAsked": {rule["id"]: f"{rule['outcome']}: {rule.get('detail', '')}" for rule in rules
                     if rule["outcome"] in ("absent", "not-here")},
    }
    broken = ", ".join(sorted(data["notKept"])) or "none"
    return Answer(
        f"{counts.get('kept', 0)} of {len(listed)} documented rules are kept; not kept: {broken}",
        "each rule in a process of its own, its answer against the documentation",
        data,
    )


STEPS = (Step("conformance", (), "the driver against its documentation", BUDGET_S, ask),)
