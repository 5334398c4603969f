"""Green contexts in place of the primary one: what they take of the card beside what our ledger says, whether work in them
passes our gate and is right, and whether the driver answers what native/interposer/engine/primary.c takes for granted."""

import pathlib
import tempfile

import arbiter
import cuda
import grants
import tools
from step import Answer, Context, NotHere, Step
from steps.residuals import counted_by, differences, ledger_follows, observe

MIB = cuda.MIB
SLICE = 16 << 30
PERCENT = 50
PROGRAM = "green.py"
#: The ledger claims to know what these take.
LEDGERED = ("green", "primary", "secondGreen", "block", "heapLimit", "greenEnded", "secondGreenEnded")


def facts_of(seen: dict, stage: str) -> dict:
    return seen.get(stage, {}).get("facts", {})


def assumptions(seen: dict) -> dict:
    """What the interposer takes for granted of green contexts, each as a statement that holds or does not; those that the
    driver was not brought to answer are left out."""
    made, view, streams = (facts_of(seen, stage) for stage in ("green", "view", "streams"))
    events, launches, ended = (facts_of(seen, stage) for stage in ("events", "launchesMade", "greenEnded"))
    found = {}
    if made:
        found["itBringsThePrimaryContext"] = made["primaryActive"]
    if facts_of(seen, "primaryReleased"):
        found["itKeepsThePrimaryContext"] = facts_of(seen, "primaryReleased")["primaryActive"]
    if facts_of(seen, "secondGreenEnded"):
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
    if ended:
        # Blocks of the view are dropped from the books with the green context.
        found["whatWasTakenInTheViewGoesWithIt"] = ended["blockResult"] != 0
    if facts_of(seen, "viewEnded"):
        found["itsViewCannotBeDestroyed"] = facts_of(seen, "viewEnded")["destroyResult"] != 0
    return found


def green(context: Context) -> Answer:
    if not hasattr(cuda.library(), "cuGreenCtxCreate"):
        raise NotHere("this driver has no green contexts (they came with CUDA 12.4)")
    for program in (("cotenant-arbitrate",), ("tests", "grant"), ("libcotenant.so",)):
        context.program(*program)
    words = (PROGRAM, "0" if context.simulated else "1")
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        measured = grants.calibrate(context)
        bare = observe(tools.environment(), None, *words)
        context.note({"calibration": measured, "bare": bare})
        if bare.get("green", {}).get("result"):
            raise NotHere(f"the driver answers {bare['green']['result']} to who asks for a green context")
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, measured, cores=PERCENT)
        judge = arbiter.Arbiter(context)
        try:
            judge.plan([(grant, PERCENT)])
            granted = observe(tools.environment(LD_PRELOAD=grant.cuda), grant.ledger, *words)
            judge.told()  # which may be from before the end
            charged = judge.told()["pages"][0]
        finally:
            judge.end()
    key = counted_by(bare)
    added = differences(bare, key)
    holds = assumptions(bare)
    made = max((facts.get("launches", 0) for facts in (facts_of(granted, stage) for stage in granted)), default=0)
    spun = facts_of(granted, "spins").get("spinSeconds", 0)
    passed = {"made": made, "counted": charged["launches"], "spinSeconds": spun,
              "chargedSeconds": round(charged["chargedNs"] / 1e9, 4)}
    right = {form: {where: {name: one["correct"] for name, one in streams.items()}
                    for where, streams in facts_of(seen, "launchesMade").items() if where in ("view", "primary")}
             for form, seen in (("bare", bare), ("granted", granted))}
    follows = ledger_follows(granted, counted_by(granted), measured["granuleBytes"], LEDGERED)
    data = {"calibration": measured, "added": added, "by": key, "ledgerFollows": follows, "holds": holds,
            "sameInAGrant": holds == assumptions(granted) and right["bare"] == right["granted"], "correct": right,
            "gate": passed,
            "allLaunchesCounted": made > 0 and made == charged["launches"], "bare": bare, "granted": granted}
    if not data["sameInAGrant"]:
        data["holdsInAGrant"] = assumptions(granted)
    wrong = [name for name, held in holds.items() if not held]
    otherwise = [name for name, agrees in follows.items() if not agrees]
    sms, whole = facts_of(bare, "multiprocessors"), facts_of(bare, "green")
    used = "".join(f"; a kernel in {where} ran on {', '.join(f'{count} ({name} stream)' for name, count in on.items())}"
                   for where, on in sms.items() if on)
    return Answer(
        f"with the primary context {added.get('green', 0) / MIB:g} MiB, one more {added.get('secondGreen', 0) / MIB:g}"
        f"; the ledger adds otherwise at: {', '.join(otherwise) or 'nothing'}; of {len(holds)} things that the "
        f"interposer takes for granted do not hold: {', '.join(wrong) or 'none'}; in a grant the answers are "
        f"{'the same' if data['sameInAGrant'] else 'OTHERS'}; {passed['counted']} of {made} launches "
        f"passed the gate, {passed['chargedSeconds']:.3f} s charged for {spun:g} s of spinning and the rest; of "
        f"{whole.get('allSms')} multiprocessors it was given {whole.get('sms')}{used}",
        f"a process that makes, enters, works in and ends green contexts; {key} by NVML and the driver's own answers, "
        f"bare and in a grant of {PERCENT} % under our arbiter",
        data,
    )


STEPS = (Step("green", ("interposer 4.1",), "green contexts in place of the primary one", 45, green),)
