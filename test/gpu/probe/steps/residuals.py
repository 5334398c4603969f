"""What a process takes of the GPU without asking for memory: contexts, code, graphs, local memory, larger limits; as
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
def stages(env: dict, program: str = "stages.py", *arguments: str):
    """The stages of a process, one at a time: each is taken when it is asked for. None come after one that takes longer
    than WAIT_S."""
    program = [sys.executable, str(tools.PROGRAMS / program), *arguments]
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


def observe(env: dict, ledger=None, *program: str) -> dict:
    """Per stage of a program what the driver counts, what the process sees as free, and what the ledger holds. Of stages that
    it did not come to the result is None."""
    before, gpu_before = listed(), figures.used_bytes()
    seen, left = {}, []
    with stages(env, *program) as each:
        for pid, stage in each:
            entry = {
                "result": stage["result"], "processBytes": figures.of(pid, before) if before is not None else None,
                "gpuBytes": figures.used_bytes() - gpu_before, "freeBytes": stage["freeBytes"],
                **{key: stage[key] for key in ("facts", "skippedAfter", "problem") if stage.get(key)},
            }
            left = stage["left"]
            if ledger:
                held = ledger()
                entry["heldBytes"], entry["contextBytes"] = held["heldBytes"], held["contextBytes"]
                if entry["processBytes"] is not None:
                    entry["residualBytes"] = entry["processBytes"] - entry["heldBytes"]
            seen[stage["stage"]] = entry
    return {**seen, **{name: dict.fromkeys(("result", "processBytes", "gpuBytes")) for name in left}}


def last_of(seen: dict):
    """The last stage that a process came to."""
    return next((name for name in reversed(list(seen)) if seen[name]["result"] is not None), None)


def unanswered(seen: dict) -> dict:
    """Why, by stage that did not come to its end."""
    def why(entry: dict) -> str:
        if entry["result"] is None:
            return "not reached"
        if "skippedAfter" in entry:
            return f"left out after {entry['skippedAfter']}"
        return entry.get("problem", f"answered {entry['result']}")

    return {name: why(entry) for name, entry in seen.items() if entry["result"] != 0}


def differences(seen: dict, key: str) -> dict:
    """What each stage added, where the stage worked and both figures are known. A process that is in no list yet has
    nothing."""
    added, before, was_listed = {}, None, False
    for name, entry in seen.items():
        now = entry.get(key)
        if now is not None and not was_listed and key == "processBytes":
            before = before or 0
        was_listed = was_listed or now is not None
        if entry["result"] == 0 and now is not None and before is not None:
            added[name] = now - before
        before = now
    return added


#: Of these the ledger claims to know what they take; what others add is found by the driver's count alone.
LEDGERED = ("context", "twoMib", "printfLimit", "heapLimit", "stackLimit", "secondContext", "secondContextEnded")


def ledger_follows(seen: dict, key: str, granule: int, names=LEDGERED) -> dict:
    """By stage, whether the ledger added what the driver did, to a granule or a twentieth. How much that is hangs on GPU
    and driver; that they agree does not."""
    driver, ledger = differences(seen, key), differences(seen, "heldBytes")
    return {name: abs(driver[name] - ledger[name]) <= max(granule, abs(driver[name]) // 20)
            for name in names if name in driver and name in ledger}


def counted_by(seen: dict) -> str:
    """A driver that does not name the process is asked for the whole GPU instead."""
    return "processBytes" if any(entry["processBytes"] is not None for entry in seen.values()) else "gpuBytes"


def residuals(context: Context) -> Answer:
    cuda.library()
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        measured = grants.calibrate(context)
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, measured)
        bare = observe(tools.environment())
        context.note({"calibration": measured, "bare": bare})
        granted = observe(tools.environment(LD_PRELOAD=grant.cuda), grant.ledger)
    key = counted_by(bare)
    added = differences(bare, key)
    failed = {name: entry["result"] for name, entry in bare.items() if entry["result"]}
    ends = {form: last_of(seen) for form, seen in (("bare", bare), ("granted", granted)) if seen}
    if len(ends) < 2:
        raise RuntimeError(f"no stage of a process in a grant within {WAIT_S} s" if bare else f"no stage within {WAIT_S} s")
    last = granted[ends["granted"]]
    follows = ledger_follows(granted, counted_by(granted), measured["granuleBytes"])
    wrong = [name for name, agrees in follows.items() if not agrees]
    return Answer(
        ", ".join(f"{name} {size / MIB:+g} MiB" for name, size in added.items())
        + (f"; answered otherwise: {failed}" if failed else "")
        + "".join(f"; the {form} process came no further than {name}" for form, name in ends.items() if name != LAST)
        + f"; at the end our ledger holds {last['heldBytes'] / MIB:g} MiB, the driver counts "
        + (f"{last['processBytes'] / MIB:g}" if last["processBytes"] is not None else "not this process")
        + f"; the ledger adds otherwise than the driver at: {', '.join(wrong) or 'nothing that it claims to know'}",
        f"a process that takes one after another; {key} by NVML after each, once bare and once in a grant",
        {"calibration": measured, "added": added, "by": key, "ledgerFollows": follows, "bare": bare, "granted": granted},
    )


STEPS = (Step("residuals", ("interposer 7.5",), "what contexts, code and limits take of the GPU", 60, residuals),)
