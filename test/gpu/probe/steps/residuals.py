"""What a process takes of the card without asking for memory: contexts, code, graphs, local memory, larger limits; as
the driver counts it, and as our ledger does."""

import contextlib
import json
import pathlib
import select
import subprocess
import sys
import tempfile

import cuda
import figures
import grants
import nvml
import tools
from step import Answer, Context, Step

MIB = cuda.MIB
SLICE = 16 << 30
WAIT_S = 20
#: Of the program's stages.
LAST = "secondContextEnded"


@contextlib.contextmanager
def stages(env: dict):
    """The stages of a process, one at a time: each is taken when it is asked for. None come after one that takes longer
    than WAIT_S."""
    program = [sys.executable, str(tools.PROGRAMS / "stages.py")]
    child = subprocess.Popen(program, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def each():
        while True:
            if not select.select([child.stdout], [], [], WAIT_S)[0]:
                return  # what was seen until then counts
            line = child.stdout.readline()
            if not line:
                return
            yield child.pid, json.loads(line)
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write("\n")

    try:
        yield each()
    finally:
        child.kill()
        child.communicate()


def listed():
    """Processes that the driver lists; None where it lists none to anybody."""
    try:
        return figures.processes()
    except nvml.NvmlError:
        return None


def observe(env: dict, ledger=None) -> dict:
    """Per stage what the driver counts, what the process sees as free, and what the ledger holds."""
    before, card_before = listed(), figures.used_bytes()
    seen = {}
    with stages(env) as each:
        for pid, stage in each:
            entry = {
                "result": stage["result"], "processBytes": figures.of(pid, before) if before is not None else None,
                "cardBytes": figures.used_bytes() - card_before, "freeBytes": stage["freeBytes"],
            }
            if ledger:
                held = ledger()
                entry["heldBytes"], entry["contextBytes"] = held["heldBytes"], held["contextBytes"]
                if entry["processBytes"] is not None:
                    entry["residualBytes"] = entry["processBytes"] - entry["heldBytes"]
            seen[stage["stage"]] = entry
    return seen


def differences(seen: dict, key: str) -> dict:
    """What each stage added, where the stage worked and both figures are known."""
    added, before = {}, None
    for name, entry in seen.items():
        now = entry[key]
        if entry["result"] == 0 and now is not None and before is not None:
            added[name] = now - before
        before = now
    return added


def residuals(context: Context) -> Answer:
    cuda.library()
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        measured = grants.calibrate(context)
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, measured)
        bare = observe(tools.environment())
        context.note({"calibration": measured, "bare": bare})
        granted = observe(tools.environment(LD_PRELOAD=grant.cuda), grant.ledger)
    # A driver that does not name this process is asked for the whole card instead.
    named = any(entry["processBytes"] is not None for entry in bare.values())
    key = "processBytes" if named else "cardBytes"
    added = differences(bare, key)
    if named and "context" not in added:
        added = {"context": bare["context"][key], **added}  # the process is in no list before it has a context
    failed = {name: entry["result"] for name, entry in bare.items() if entry["result"]}
    ends = {form: list(seen)[-1] for form, seen in (("bare", bare), ("granted", granted)) if seen}
    if len(ends) < 2:
        raise RuntimeError(f"no stage of a process in a grant within {WAIT_S} s" if bare else f"no stage within {WAIT_S} s")
    last = granted[ends["granted"]]
    return Answer(
        ", ".join(f"{name} {size / MIB:+g} MiB" for name, size in added.items())
        + (f"; answered otherwise: {failed}" if failed else "")
        + "".join(f"; the {form} process came no further than {name}" for form, name in ends.items() if name != LAST)
        + f"; at the end our ledger holds {last['heldBytes'] / MIB:g} MiB, the driver counts "
        + (f"{last['processBytes'] / MIB:g}" if last["processBytes"] is not None else "not this process"),
        f"a process that takes one after another; {key} by NVML after each, once bare and once in a grant",
        {"calibration": measured, "added": added, "by": key, "bare": bare, "granted": granted},
    )


STEPS = (Step("residuals", ("interposer 7.5",), "what contexts, code and limits take of the card", 60, residuals),)
