"""What the node agent's own sampler says of processes, beside what they hold and do, and beside the driver's list."""

import json
import os
import subprocess
import time

import nvml
from children import Child, family
from step import Answer, Context, Step

INTERVAL_MS = 250
SECONDS = 4
#: Of each process: memory, and the length of the kernels that it runs all the time.
HOLDS = (256 << 20, 512 << 20)
KERNEL_US = 500
#: Lines that are kept as they came, for the agent's decoder to read: the first has all, later ones what changed.
KEPT = 4


def sampled(program: str, seconds: float) -> tuple:
    """The sampler's lines, and the share of a processor that it used from its first line on."""
    child = subprocess.Popen([program, "--interval-ms", str(INTERVAL_MS)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        first = child.stdout.readline()
        began, before = time.monotonic(), processor_s(child.pid)
        time.sleep(seconds)
        used = (processor_s(child.pid) - before) / (time.monotonic() - began)
        rest, complaints = child.communicate(b"stop\n", timeout=10)
    finally:
        child.kill()
        child.wait()
    if not first:
        raise RuntimeError(f"the sampler printed nothing: {complaints.decode(errors='replace').strip()[-500:]}")
    return [first, *rest.splitlines()], used


def processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        ticks = stat.read().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def rebuilt(lines: list) -> dict:
    """By PID, the newest entry of each process that a line has."""
    processes = {}
    for line in lines:
        sample = json.loads(line)
        for process in sample["processes"]:
            processes[process["pid"]] = process
        for pid in sample["removedPids"]:
            processes.pop(pid, None)
    return processes


def ask(context: Context) -> Answer:
    program, device = context.program("cotenant-sampler"), nvml.gpu()
    with family() as members:
        kernel = None
        for size in HOLDS:
            members.append(Child())
            members[-1].ask("start", timeout_s=30)
            members[-1].ask("linear", name="held", bytes=size)
            kernel = members[-1].ask("prepare", us=KERNEL_US, measured=kernel)
            kernel = {name: kernel[name] for name in ("kernelS", "turns")}
        for member in members:
            member.ask("busy")
        lines, used = sampled(program, SECONDS)
        _, listed = nvml.listed(device)
        ended = [member.ask("idle") for member in members]
    processes = rebuilt(lines)
    rows = []
    for member, size, ran in zip(members, HOLDS, ended):
        process = processes.get(member.pid)
        use = process["gpus"][0] if process and process["gpus"] else {}
        rows.append({
            "pid": member.pid, "holdsBytes": size, "named": process is not None, "listed": use.get("listed", False),
            "sampledBytes": use.get("bytes"), "driverBytes": (listed or {}).get(member.pid),
            "sameBytes": listed is not None and use.get("bytes") == listed.get(member.pid),
            "sampledPercent": round(use.get("smUs", 0) / SECONDS / 1e4, 1), "reallyPercent": round(100 * ran["busyS"] / ran["seconds"], 1),
        })
    last = json.loads(lines[-1])
    data = {
        "processes": rows, "allNamed": all(row["named"] and row["listed"] for row in rows),
        "allBytesRight": all(row["sameBytes"] for row in rows), "samples": len(lines), "coreRatio": round(used, 4),
        "errors": last.get("errors", []), "problem": last.get("problem"),
        "lines": [line.decode() for line in lines[:KEPT]],
    }
    each = ", ".join(f"{row['sampledBytes']} bytes (the driver {row['driverBytes']}) and {row['sampledPercent']} % of the "
                     f"GPU (really {row['reallyPercent']})" for row in rows)
    return Answer(
        f"of two busy processes the sampler says {each}; it used {100 * used:.1f} % of a processor at "
        f"{1000 / INTERVAL_MS:g} samples a second; calls that failed: {', '.join(error['call'] for error in data['errors']) or 'none'}",
        f"cotenant-sampler for {SECONDS} s beside two processes that hold {HOLDS[0] >> 20} and {HOLDS[1] >> 20} MiB",
        data,
    )


STEPS = (Step("nvml.sampler", ("exporter 9.b",), "what the agent's own sampler says of two busy processes", 40, ask),)
