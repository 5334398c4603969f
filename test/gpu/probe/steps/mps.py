"""What NVML says of processes that share the GPU through MPS, under a daemon of our own that ends with the step."""

import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import nvml
from children import Child, ChildError, family
from step import Answer, Context, NotHere, Step

CONTROL = "nvidia-cuda-mps-control"
WARDEN = str(pathlib.Path(__file__).parents[1] / "clients" / "warden.py")
SIZES = {"first": 256 << 20, "second": 512 << 20}
KERNEL_US = {"first": 100, "second": 1000}
WATCH_S = 2.5
KINDS = ("Compute", "Graphics", "MPSCompute")
#: What CUDA answers a client that the daemon or its server does not serve: no connection, no server, too many of them, no MPS on
#: this GPU. Anything else is an answer to what the client did.
NO_CLIENTS = (*range(805, 811), 801)


def ask_control(env: dict, what: str) -> str:
    try:
        return subprocess.run([CONTROL], input=f"{what}\n", env=env, capture_output=True, text=True, timeout=5).stdout
    except subprocess.TimeoutExpired:
        return ""


@contextlib.contextmanager
def daemon():
    """An MPS daemon with pipes and logs of its own; the environment for its clients."""
    if shutil.which(CONTROL) is None:
        raise NotHere(f"no {CONTROL} here")
    if os.geteuid() != 0:
        raise NotHere("only root may start an MPS daemon for all")
    with tempfile.TemporaryDirectory(prefix="ct-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            os.mkdir(place)
        env = {**os.environ, **places}
        # In sessions of their own: if this step is killed with all of its session, the warden still ends the daemon.
        control = subprocess.Popen([CONTROL, "-f"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        warden = subprocess.Popen([sys.executable, WARDEN], env=env, stdin=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + 5
            while not any(pathlib.Path(places["CUDA_MPS_PIPE_DIRECTORY"]).iterdir()):
                if control.poll() is not None or time.monotonic() > deadline:
                    logs = "".join(log.read_text()[-300:] for log in pathlib.Path(folder, "log").iterdir())
                    raise NotHere(f"the MPS daemon does not start: {logs.strip() or control.poll()}")
                time.sleep(0.05)
            yield places
        finally:
            warden.stdin.close()
            warden.wait(timeout=20)
            with contextlib.suppress(subprocess.TimeoutExpired):
                control.wait(timeout=2)
            if control.poll() is None:
                control.kill()
                control.wait()


def servers(places: dict) -> list:
    return [int(word) for word in ask_control({**os.environ, **places}, "get_server_list").split() if word.isdigit()]


def lists(device, names: dict) -> dict:
    answer = {}
    for kind in KINDS:
        try:
            found = nvml.processes(device, kind)
            answer[kind] = {names.get(pid, f"other {pid}"): taken for pid, taken in found.items()}
        except nvml.NvmlError as refused:
            answer[kind] = {"refused": refused.code}
    return answer


def held_by(listed: dict) -> dict:
    """For each list, what it says of the clients; how much a context adds to their blocks is the GPU's own."""
    def whose(found: dict, name: str) -> str:
        if "refused" in found:
            return f"refused {found['refused']}"
        if name not in found:
            return "not listed"
        if found[name] is None:
            return "without bytes"
        return "with its block" if found[name] >= SIZES[name] else "with less than its block"

    return {kind: {name: whose(found, name) for name in SIZES} for kind, found in listed.items()}


def samples(device, names: dict) -> dict:
    """How often each process is named while both are busy, and with what mean percentage."""
    last, began, seen = int(time.time() * 1e6), time.monotonic(), {}
    while time.monotonic() - began < WATCH_S:
        _, rows = nvml.utilization(device, last)
        for row in rows:
            seen.setdefault(names.get(row["pid"], f"other {row['pid']}"), []).append(row["sm"])
        last = max([last, *(row["atUs"] for row in rows)])
        time.sleep(0.02)
    return {name: {"times": len(found), "meanPercent": statistics.mean(found)} for name, found in seen.items()}


def observe(device, environment: dict, servers_now, note) -> dict:
    """Two clients of known memory and load; `note` is called with what is known so far."""
    used_before = nvml.memory(device)["used"]
    with family() as members:
        who = {}
        for name, size in SIZES.items():
            who[name] = Child(env=environment)
            members.append(who[name])
            who[name].ask("start", timeout_s=15)
            who[name].ask("linear", name="a", bytes=size)
            who[name].ask("prepare", timeout_s=15, us=KERNEL_US[name])
        pids = servers_now()
        names = {**{child.pid: name for name, child in who.items()}, **{pid: "server" for pid in pids}}
        held = lists(device, names)
        seen = {
            "memory": {"lists": held, "clients": held_by(held), "blockBytes": SIZES,
                       "gpuBytes": nvml.memory(device)["used"] - used_before},
            "servers": len(pids),
        }
        note(seen)
        for child in who.values():
            child.ask("busy")
        seen["utilization"] = samples(device, names)
        note(seen)
        ran = {name: child.ask("idle") for name, child in who.items()}
    return {**seen, "busyPercent": {name: 100 * one["busyS"] / one["seconds"] for name, one in ran.items()}}


def mps(context: Context) -> Answer:
    device = nvml.gpu()
    if context.simulated:
        # There is no daemon to simulate; programs can be made to count as its clients.
        seen = observe(device, {"COTENANT_SIM_PROCESS_TYPE": "mps"}, lambda: [], context.note)
    else:
        with daemon() as places:
            try:
                seen = observe(device, places, lambda: servers(places), context.note)
            except ChildError as problem:
                if problem.code not in NO_CLIENTS:
                    raise
                raise NotHere(f"no client can work under an MPS daemon here: {problem}") from problem
            if seen["servers"] == 0:
                raise NotHere("the clients found no MPS server and used the GPU without it")
    where = "; ".join(f"{kind} list {', '.join(found) or 'none'}" for kind, found in seen["memory"]["lists"].items())
    named = ", ".join(f"{name} {facts['meanPercent']:.0f} % ({facts['times']} times)"
                      for name, facts in seen["utilization"].items())
    return Answer(
        f"{where}; utilization names {named or 'none'}",
        "two clients that hold 256 and 512 MiB and are both busy, the server known from the daemon",
        seen,
    )


STEPS = (Step("mps", ("exporter 9.c",), "memory and utilization of clients of MPS", 75, mps),)
