"""The machine that is asked: its own driver, or a simulated node that is started for the probe."""

import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from step import BUILD, ROOT

SIMULATOR = BUILD / "cotenant-simulator"
#: The card of a simulated node.
SIMULATED_CARD = "h100"
#: What steps run that is ours (`make -C native probe`).
PROGRAMS = ("libcotenant.so", "libcotenant-nvml.so", "cotenant-calibrate", "cotenant-arbitrate", "tests/grant",
            "bench/calls", "probe/events")
#: Where drivers lie that the loader does not know of.
_FOLDERS = (
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", f"/usr/lib/{platform.machine()}-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia", "/run/opengl-driver/lib", "/usr/lib/wsl/lib",
)
_ASK_S = 60
_HERE = str(pathlib.Path(__file__).parent)
#: Keeps the first card open, so that a driver without persistence does not start it anew for each step.
_KEEPER = "import sys, nvml; nvml.card(); print(flush=True); sys.stdin.read()"
_FACTS = "import json, cuda; print(json.dumps(cuda.facts()))"


class NoDriver(Exception):
    """There is no driver here that can be asked; the text says why."""


def not_built() -> list:
    return [str((BUILD / name).relative_to(ROOT)) for name in PROGRAMS if not (BUILD / name).exists()]


@contextlib.contextmanager
def node(simulated: bool):
    """The environment in which steps find the driver."""
    # Nobody's object between the probe and the driver, and the cards in NVML's order.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if not simulated:
        with _card_kept_open(_with_library(env)) as found:
            yield found
        return
    with simulated_node(SIMULATED_CARD) as found:
        yield {**env, **found}


@contextlib.contextmanager
def simulated_node(*cards: str):
    """A simulated node with these cards; what leads programs to it."""
    with tempfile.TemporaryDirectory(prefix="ct-") as folder:
        arguments = [str(SIMULATOR), "serve", "--dir", folder]
        daemon = subprocess.Popen([*arguments, *(word for card in cards for word in ("--card", card))],
                                  stdout=subprocess.PIPE, text=True)
        try:
            daemon.stdout.readline()
            yield {"LD_LIBRARY_PATH": f"{folder}/lib", "COTENANT_PROBE_NODE": folder}
        finally:
            daemon.terminate()
            daemon.wait()


def _with_library(env: dict) -> dict:
    """With the folder of the driver's library in the loader's path, if the loader does not find it by itself."""
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    if subprocess.run(load, env=env, capture_output=True, timeout=_ASK_S).returncode == 0:
        return env
    before = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
    for folder in _FOLDERS:
        if os.path.exists(f"{folder}/libcuda.so.1"):
            return {**env, "LD_LIBRARY_PATH": ":".join([*before, folder])}
    return env


@contextlib.contextmanager
def _card_kept_open(env: dict):
    keeper = subprocess.Popen([sys.executable, "-c", _KEEPER], cwd=_HERE, env=env, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        keeper.stdout.readline()  # it ends at once where there is no NVML: then nothing is kept open
        yield env
    finally:
        keeper.kill()
        keeper.communicate()


def facts(env: dict) -> dict:
    """Driver and card, asked in a process of its own."""
    try:
        answer = subprocess.run([sys.executable, "-c", _FACTS], cwd=_HERE, env=env, capture_output=True, text=True,
                                timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        raise NoDriver(f"the driver does not answer within {_ASK_S} s") from None
    if answer.returncode == 0:
        return json.loads(answer.stdout)
    why = (answer.stderr.strip() or f"it ended with {answer.returncode}").split("\n")[-1]
    raise NoDriver(f"no driver can be asked here ({why}); --simulated runs on a simulated node")
