"""Green contexts in place of the primary one: what they take of the GPU beside what our ledger says, whether work in them
passes our gate and is right, and whether the driver answers what native/interposer/engine/contexts/primary.c takes for granted."""

import pathlib
import tempfile

import arbiter
import cuda
import grants
import tools
from step import Answer, Context, NotHere, Step
from steps.residuals import counted_by, differences, last_of, ledger_follows, observe, unanswered

MIB = cuda.MIB
SLICE = 16 << 30
PERCENT = 50
PROGRAM = "green.py"
#: Of the block that is taken in the first one's view (programs/green.py).
BLOCK = 1024 * MIB
#: What a driver says of memory that is not there. Anything else, an error of the context that is current or a sticky one, says
#: nothing of it.
GONE = (cuda.INVALID_VALUE, cuda.NOT_FOUND)
#: The ledger claims to know what these take. What a further green context takes and leaves is residual.
LEDGERED = ("green", "primary", "block", "heapLimit", "secondGreenEnded")


def facts_of(seen: dict, stage: str) -> dict:
    return seen.get(stage, {}).get("facts", {})


def assumptions(seen: dict) -> dict:
    """What the interposer takes for granted of green contexts, each as a statement that holds or does not; those that the
    driver was not brought to answer are left out."""
    made, view, streams = (facts_of(seen, stage) for stage in ("green", "view", "streams"))
    events, launches = (facts_of(seen, stage) for stage in ("events", "launchesMade"))
    found = {}
    if made:
        found["itBringsThePrimaryContext"] = made["primaryActive"]
    if facts_of(seen, "primaryReleased"):
        found["itKeepsThePrimaryContext"] = facts_of(seen, "primaryReleased")["primaryActive"]
    if facts_of(seen, "secondGreenEnded") and facts_of(seen, "greenEnded"):
        found["thePrimaryContextEndsWithTheLast"] = not facts_of(seen, "secondGreenEnded")["primaryActive"]
    if view:
        found["itsViewHasOneHandle"] = view["sameTwice"]
        found["itsViewIsNotThePrimaryContext"] = not view["isPrimary"]
        found["itsViewIsCurrentByItsHandle"] = view["isCurrent"]
        found["itsViewKnowsItsDevice"] = view["device"] == 0
    if streams:
        # The gate enters the context that this names, and makes its events there.
        for name in ("green", "plain"):
            stream = streams["inPrimary"][name]
            found[f"{name}StreamLeadsToTheView"] = stream["result"] == 0 and stream["context"] == "view"
        found["itsViewCanBePushedAndPopped"] = streams["poppedPrimary"] and streams["viewIsCurrentAgain"]
    if events:
        found["eventsOfTheViewTimeItsStreams"] = max(events["view"].values()) == 0
    if launches:
        found["workInTheViewIsRight"] = all(one["correct"] for one in launches["view"].values())
    if facts_of(seen, "viewEnded"):
        found["itsViewCannotBeDestroyed"] = facts_of(seen, "viewEnded")["destroyResult"] != 0
    return found


def fate_of_block(seen: dict, key: str) -> dict:
    """Whether memory that was taken in a green context's view goes with it, by the driver's results and by NVML's figures; None
    where that is not answered, or where they contradict each other."""
    def is_gone(code):
        return True if code in GONE else False if code == 0 else None

    def given_back(stage: str, before: str):
        figures = seen.get(before, {}).get(key), seen.get(stage, {}).get(key)
        return None if None in figures else figures[0] - figures[1]

    facts = facts_of(seen, "greenEnded")
    if seen.get("greenEnded", {}).get("result") != 0 or seen.get("block", {}).get("result") != 0:
        return {"goesWithIt": None, "byTheDriver": None, "byNvml": None}
    fates = {is_gone(facts["rangeResult"]), is_gone(facts["attributeResult"])} - {None}
    driver = fates.pop() if len(fates) == 1 else None
    at_once, later = given_back("greenEnded", "heapLimit"), given_back("blockFreed", "greenEnded")
    # The green context gives back less than the block by itself; a block that is freed afterwards was still there.
    nvml = (False if later is not None and later >= BLOCK // 2 else
            True if at_once is not None and at_once >= BLOCK - 32 * MIB else None)
    both = {driver, nvml} - {None}
    return {"goesWithIt": both.pop() if len(both) == 1 else None, "byTheDriver": driver, "byNvml": nvml}


def green(context: Context) -> Answer:
    if not hasattr(cuda.library(), "cuGreenCtxCreate"):
        raise NotHere("this driver has no green contexts (they came with CUDA 12.4)")
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",)):
        context.program(*program)
    command = (PROGRAM, "0" if context.simulated else "1")
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        measured = grants.calibrate(context)
        bare = observe(tools.environment(), None, *command)
        context.note({"calibration": measured, "bare": bare})
        if bare.get("green", {}).get("result") is None:
            raise RuntimeError(f"the process came no further than {last_of(bare) or 'its start'}")
        if bare["green"]["result"]:
            raise NotHere(f"the driver answers {bare['green']['result']} to who asks for a green context")
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, measured, cores=PERCENT)
        judge = arbiter.Arbiter(context)
        try:
            judge.plan([(grant, PERCENT)])
            granted = observe(tools.environment(LD_PRELOAD=grant.cuda), grant.ledger, *command)
            judge.report()  # which may be from before the end
            charged = judge.report()["pages"][0]
        finally:
            judge.end()
    key = counted_by(bare)
    added = differences(bare, key)
    holds, fate = assumptions(bare), fate_of_block(bare, key)
    missing = {form: unanswered(seen) for form, seen in (("bare", bare), ("granted", granted))}
    made = max((facts.get("launches", 0) for facts in (facts_of(granted, stage) for stage in granted)), default=0)
    spun = facts_of(granted, "spins").get("spinSeconds", 0)
    passed = {"made": made, "counted": charged["launches"], "spinSeconds": spun,
              "chargedSeconds": round(charged["chargedNs"] / 1e9, 4)}
    right = {form: {where: {name: one["correct"] for name, one in streams.items()}
                    for where, streams in facts_of(seen, "launchesMade").items() if where in ("view", "primary")}
             for form, seen in (("bare", bare), ("granted", granted))}
    follows = ledger_follows(granted, counted_by(granted), measured["granuleBytes"], LEDGERED)
    data = {"calibration": measured, "added": added, "by": key, "ledgerFollows": follows, "holds": holds,
            "sameInAGrant": holds == assumptions(granted) and right["bare"] == right["granted"]
            and fate == fate_of_block(granted, counted_by(granted)),
            "whatWasTakenInTheView": fate, "correct": right, "unanswered": missing,
            "unansweredStages": {form: sorted(stages) for form, stages in missing.items()}, "gate": passed,
            "allLaunchesCounted": made > 0 and made == charged["launches"], "bare": bare, "granted": granted}
    if not data["sameInAGrant"]:
        data["holdsInAGrant"] = {**assumptions(granted), **fate_of_block(granted, counted_by(granted))}
    wrong = [name for name, held in holds.items() if not held]
    otherwise = [name for name, agrees in follows.items() if not agrees]
    sms, whole = facts_of(bare, "multiprocessors"), facts_of(bare, "green")
    used = "".join(f"; a kernel in {where} ran on {', '.join(f'{count} ({name} stream)' for name, count in on.items())}"
                   for where, on in sms.items() if on)
    sizes = {name: f"{added[name] / MIB:g} MiB" if name in added else "unknown" for name in ("green", "secondGreen")}
    left_out = "; ".join(f"in a {form} process {', '.join(f'{stage} ({why})' for stage, why in stages.items())}"
                         for form, stages in missing.items() if stages)
    goes = {True: "goes with it", False: "stays when it ends", None: "is NOT ANSWERED"}[fate["goesWithIt"]]
    stages = ", ".join(f"{who} {'goes' if said else 'stays' if said is False else 'nothing'}" for who, said in
                      (("by the driver", fate["byTheDriver"]), ("by NVML", fate["byNvml"])))
    return Answer(
        (f"NOT ANSWERED: {left_out}; " if left_out else "")
        + f"with the primary context {sizes['green']}, one more {sizes['secondGreen']}"
        f"; what was taken in its view {goes} ({stages}); the ledger adds otherwise at: "
        f"{', '.join(otherwise) or 'nothing'}; of {len(holds)} things that the interposer takes for granted do not hold: {', '.join(wrong) or 'none'}; in a grant the answers are "
        f"{'the same' if data['sameInAGrant'] else 'OTHERS'}; "
        + (f"{passed['counted']} of {made} launches passed the gate" if made else "NO launch was made")
        + f", {passed['chargedSeconds']:.3f} s charged for {spun:g} s of spinning and the rest; of "
        f"{whole.get('allSms')} multiprocessors it was given {whole.get('sms')}{used}",
        f"a process that makes, enters, works in and ends green contexts; {key} by NVML and the driver's own answers, "
        f"bare and in a grant of {PERCENT} % under our arbiter",
        data,
    )


STEPS = (Step("green", ("interposer 4.1",), "green contexts in place of the primary one", 45, green),)
