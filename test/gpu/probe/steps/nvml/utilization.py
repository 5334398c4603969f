"""How NVML samples which process uses the GPU: period, how long samples are kept, what one answer is a mean of."""

import ctypes
import statistics
import time

import nvml
from children import Child, child, family
from step import Answer, Context, NotHere, Step

IDLE_S, BUSY_S = 2.0, 3.0
GIVE_UP_S = 14.0
SHORT_US, LONG_US = 100, 5000


def now_us() -> int:
    return int(time.time() * 1e6)


def follow(device, seconds: float, pause_s: float) -> list:
    """Answers one after another, each since the newest time stamp of the last; (seconds since asking began, rows)."""
    last, began, answers = now_us(), time.monotonic(), []
    while time.monotonic() - began < seconds:
        code, rows = nvml.utilization(device, last)
        asked = now_us()
        if code == nvml.SUCCESS and rows:
            last = max(last, *(row["atUs"] for row in rows))
            answers.append({"askedUs": asked, "rows": rows})
        time.sleep(pause_s)
    return answers


def period(answers: list):
    """Seconds between the time stamps of samples: the least and the median, of stamps that differ."""
    stamps = sorted({row["atUs"] for answer in answers for row in answer["rows"]})
    steps = [(after - before) / 1e6 for before, after in zip(stamps, stamps[1:])]
    return {"stamps": len(stamps), "leastS": min(steps), "medianS": statistics.median(steps)} if steps else None


def gpu_ring(device):
    """The GPU's own samples, which say more of themselves than a process's."""
    code, stamps = nvml.gpu_samples(device)
    stamps = sorted(set(stamps))
    steps = [(after - before) / 1e6 for before, after in zip(stamps, stamps[1:])]
    return {"code": code, "samples": len(stamps), "spanS": (stamps[-1] - stamps[0]) / 1e6 if stamps else None,
            "medianPeriodS": statistics.median(steps) if steps else None}


def percent_of(rows: list, pid: int):
    return next((row["sm"] for row in rows if row["pid"] == pid), None)


def windows(device, pid: int, began_us: int, ended_us: int) -> list:
    """A process that was busy from one moment to another is asked for since moments before, between and after."""
    seen = []
    for since in (began_us - 1_500_000, began_us, (began_us + ended_us) // 2, ended_us - 500_000, ended_us + 700_000):
        code, rows = nvml.utilization(device, since)
        asked = now_us()
        percent = percent_of(rows, pid)
        newest = max((row["atUs"] for row in rows if row["pid"] == pid), default=None)
        busy = max(0, ended_us - max(since, began_us))
        seen.append({
            "sinceBeforeEndS": (ended_us - since) / 1e6, "askedAfterEndS": (asked - ended_us) / 1e6, "code": code,
            "percent": percent, "stampAfterEndS": None if newest is None else (newest - ended_us) / 1e6,
            "ifMeanUntilNow": 100 * busy / (asked - since),
            "ifMeanUntilStamp": None if newest is None or newest <= since else
            100 * max(0, min(newest, ended_us) - max(since, began_us)) / (newest - since),
            "ifOneSample": 100 if since < ended_us else 0,
        })
    return seen


def best_meaning(seen: list):
    """Which reading fits the percentages best, and how far each is off on average."""
    known = [window for window in seen if window["percent"] is not None and window["ifMeanUntilStamp"] is not None]
    if not known:
        return None, {}
    off = {reading: statistics.mean(abs(window["percent"] - window[reading]) for window in known)
           for reading in ("ifMeanUntilNow", "ifMeanUntilStamp", "ifOneSample")}
    return min(off, key=off.get), off


def how_long_kept(device, pid: int, ended: float):
    """Seconds after its end until a process is in no sample any more."""
    kept = None
    while time.monotonic() - ended < GIVE_UP_S:
        code, rows = nvml.utilization(device, 0)
        if percent_of(rows, pid) is None:
            return kept
        kept = time.monotonic() - ended
        time.sleep(0.05)
    return kept


def alone(device) -> dict:
    with child() as who:
        who.ask("start", timeout_s=30)
        idle_code, idle_rows = nvml.utilization(device, 0)
        kernel_s = who.ask("prepare", timeout_s=30, us=SHORT_US)["kernelS"]
        time.sleep(IDLE_S)
        who.ask("busy")
        began_us, load_began = now_us(), time.monotonic()
        answers = follow(device, BUSY_S, 0.01)
        ran = who.ask("idle")
        ended_us, ended = now_us(), time.monotonic()
        named = {row["pid"] for answer in answers for row in answer["rows"]}
        if who.pid not in named and len(named) != 1:
            raise NotHere(f"no utilization sample names our busy process by its pid, and {len(named)} others are named")
        # A namespace of pids between us and the driver can hide which it is, but there is only one.
        pid = who.pid if who.pid in named else named.pop()
        delays = [(answer["askedUs"] - max(row["atUs"] for row in answer["rows"])) / 1e6 for answer in answers]
        ring = gpu_ring(device)
        time.sleep(max(0, ended + 2 - time.monotonic()))
        seen = windows(device, pid, began_us, ended_us)
        kept = how_long_kept(device, pid, ended)
    meaning, off = best_meaning(seen)
    own = [row["sm"] for answer in answers for row in answer["rows"] if row["pid"] == pid]
    return {
        "namedByItsPid": pid == who.pid, "idleCode": idle_code, "idleRows": len(idle_rows), "kernelS": kernel_s,
        "loadS": ended - load_began,
        "busyShare": ran["busyS"] / ran["seconds"], "period": period(answers), "answers": len(answers),
        "medianPercent": statistics.median(own), "leastDelayS": min(delays), "gpuSamples": ring, "windows": seen,
        "meaning": meaning, "meaningOffPercent": off, "keptAfterEndS": kept,
    }


def gpm_of(device):
    code, supported = nvml.gpm_support(device)
    return nvml.Gpm(device) if code == nvml.SUCCESS and supported else None


def together(device) -> dict:
    """Two processes that both always have work queued, with kernels of different length."""
    with family() as members:
        members += [Child(), Child()]
        for member in members:
            member.ask("start", timeout_s=30)
        for member, us in zip(members, (SHORT_US, LONG_US)):
            member.ask("prepare", timeout_s=30, us=us)
        for member in members:
            member.ask("busy")
        time.sleep(1.2)  # so that no sample and no counter holds a time when only one ran
        counters, gpm, refused = None, None, None
        try:
            counters = gpm_of(device)
            if counters:
                counters.take(0)
        except nvml.NvmlError as problem:
            refused = str(problem)
        since, rates = now_us(), []
        answers = []
        last, began = since, time.monotonic()
        while time.monotonic() - began < BUSY_S:
            code, rows = nvml.utilization(device, last)
            if code == nvml.SUCCESS and rows:
                last = max(last, *(row["atUs"] for row in rows))
                answers.append(rows)
            rates.append(nvml.rates(device)[1])
            time.sleep(0.02)
        if counters and not refused:
            try:
                counters.take(1)
                found = counters.between((nvml.GPM_GRAPHICS, nvml.GPM_SM))
                gpm = {"graphicsPercent": found[nvml.GPM_GRAPHICS], "smPercent": found[nvml.GPM_SM]}
            except nvml.NvmlError as problem:
                refused = str(problem)
        if counters:
            counters.close()
        _, whole = nvml.utilization(device, since)
        ran = [member.ask("idle") for member in members]
        pids = [member.pid for member in members]
    samples = [[percent_of(rows, pid) or 0 for pid in pids] for rows in answers]
    means = [statistics.mean(column) for column in zip(*samples)] if samples else [None, None]
    window = [percent_of(whole, pid) for pid in pids]
    return {
        "kernelUs": [SHORT_US, LONG_US],
        "busyPercent": [100 * one["busyS"] / one["seconds"] for one in ran],
        "answers": len(answers), "answersNamingBoth": sum(1 for rows in answers if all(
            percent_of(rows, pid) for pid in pids)),
        "stampsPerAnswer": max((len({row["atUs"] for row in rows}) for rows in answers), default=0),
        "meanOfAnswersPercent": means, "wholeWindowPercent": window,
        "sumPercent": sum(part or 0 for part in window), "rateMeanPercent": statistics.mean(rates),
        "gpm": gpm, "gpmRefused": refused,
    }


def utilization(context: Context) -> Answer:
    device = nvml.gpu()
    null_count = ctypes.c_uint(0)
    null_code = nvml.attempt("nvmlDeviceGetProcessUtilization", device, None, ctypes.byref(null_count),
                             ctypes.c_ulonglong(0))
    if null_code is None:
        raise NotHere("this driver has no nvmlDeviceGetProcessUtilization")
    one = alone(device)
    context.note({"alone": one})
    two = together(device)
    spacing = one["period"]["medianS"] if one["period"] else None
    kept = None if one["keptAfterEndS"] is None or not spacing else one["keptAfterEndS"] / spacing
    words = {"ifMeanUntilNow": "a mean from then until now", "ifMeanUntilStamp": "a mean from then until its stamp",
             "ifOneSample": "one sample"}
    return Answer(
        f"a new sample every {spacing or 0:.3f} s, kept {one['keptAfterEndS'] or 0:.1f} s"
        f" ({kept or 0:.0f} samples); the percentage is best read as {words.get(one['meaning'], 'nothing known')}; two "
        f"busy processes: really {' and '.join(f'{part:.0f}' for part in two['busyPercent'])} %, reported "
        f"{' and '.join(f'{part or 0:.0f}' for part in two['wholeWindowPercent'])} %, sum {two['sumPercent']} against "
        f"{two['rateMeanPercent']:.0f} of the GPU",
        f"kernels of {SHORT_US} us alone, then beside {LONG_US} us, their number and length known",
        {"nullBuffer": {"code": null_code, "count": null_count.value}, "alone": one, "together": two,
         "periodS": spacing, "keptSamples": kept},
    )


STEPS = (
    Step("nvml.utilization", ("exporter 9.d", "interposer 7.9"), "what the utilization of a process is", 90,
         utilization),
)
