"""The machine that is asked: its own driver, or a simulated node that is started for the probe."""

import contextlib
import json
import os
import pathlib
import platform
import select
import subprocess
import sys
import tempfile

from step import BUILD, ENGINE, ROOT

SIMULATOR = BUILD / "cotenant-simulator"
#: The GPU of a simulated node, and how the identifiers of all simulated GPUs begin (docs/develop/simulator.md).
SIMULATED_GPU = "h100"
SIMULATED_UUID = "GPU-51a0c07e-4a27-4551-8d21-6e10"
#: What steps run that is ours (`make -C native probe`).
PROGRAMS = ("libcotenant.so", ENGINE, "libcotenant-nvml.so", "cotenant-calibrate", "cotenant-arbitrate",
            "cotenant-sampler", "tests/grant", "tests/conformance-rules", "bench/calls", "probe/events")
#: Where drivers lie that the loader does not know of.
_FOLDERS = (
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", f"/usr/lib/{platform.machine()}-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia", "/run/opengl-driver/lib", "/usr/lib/wsl/lib",
)
#: For the driver's first answer, and for what needs none of it. A driver without persistence starts the GPU for it.
_ASK_S, _START_S = 60, 20
_HERE = str(pathlib.Path(__file__).parent)
#: Keeps the first GPU open, so that a driver without persistence does not start it anew for each step.
_KEEPER = "import sys, nvml; nvml.gpu(); print(flush=True); sys.stdin.read()"
_FACTS = "import json, cuda, grants; print(json.dumps({**cuda.facts(), 'uuid': grants.uuid_of()}))"


class NoDriver(Exception):
    """There is no driver here that can be asked; the text says why."""


def not_built() -> list:
    return [str((BUILD / name).relative_to(ROOT)) for name in PROGRAMS if not (BUILD / name).exists()]


@contextlib.contextmanager
def node(simulated: bool):
    """The environment in which steps find driver and GPU, and what both are."""
    # No object of anyone's between the probe and the driver.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    with contextlib.ExitStack() as undo:
        if simulated:
            env.update(undo.enter_context(simulated_node(SIMULATED_GPU)))
        else:
            env = _with_library(env)
        env, facts = asked(env)
        refuse_other_kind(simulated, env["COTENANT_PROBE_GPU"])
        if not simulated:
            undo.enter_context(_gpu_kept_open(env))
        yield env, facts


def asked(env: dict) -> tuple:
    """Driver and GPU, and the environment in which NVML is asked about the GPU that CUDA counts as its first: NVML counts
    those that CUDA is not shown, too."""
    facts = _facts(env)
    return {**env, "COTENANT_PROBE_GPU": facts.pop("uuid")}, facts


def refuse_other_kind(simulated: bool, uuid: str) -> None:
    """A record of a driver must not depend on a flag alone: the GPU's identifier tells whether the driver is simulated."""
    if uuid.startswith(SIMULATED_UUID) and not simulated:
        raise NoDriver(f"the first GPU ({uuid}) is a simulated one: nothing here is a GPU result; --simulated starts a "
                       "simulated node of the probe's own")
    if simulated and not uuid.startswith(SIMULATED_UUID):
        raise NoDriver(f"--simulated, but the first GPU ({uuid}) is none of the simulator's: its driver is not the one that "
                       "was found")


@contextlib.contextmanager
def simulated_node(*gpus: str):
    """A simulated node with these GPUs; what leads programs to it."""
    with tempfile.TemporaryDirectory(prefix="ct-") as folder:
        arguments = [str(SIMULATOR), "serve", "--dir", folder]
        daemon = subprocess.Popen([*arguments, *(part for gpu in gpus for part in ("--gpu", gpu))],
                                  stdout=subprocess.PIPE, text=True)
        try:
            if not _first_line(daemon, _START_S):
                raise NoDriver("the simulated node does not start")
            yield {"LD_LIBRARY_PATH": f"{folder}/lib", "COTENANT_PROBE_NODE": folder}
        finally:
            daemon.terminate()
            daemon.wait()


def _first_line(process: subprocess.Popen, timeout_s: float) -> bool:
    """Whether a process has said something within the time; False also where it ended."""
    return bool(select.select([process.stdout], [], [], timeout_s)[0] and process.stdout.readline())


def _with_library(env: dict) -> dict:
    """With the folder of the driver's library in the loader's path, if the loader does not find it by itself."""
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    try:
        if subprocess.run(load, env=env, capture_output=True, timeout=_START_S).returncode == 0:
            return env
    except subprocess.TimeoutExpired:
        raise NoDriver(f"libcuda.so.1 is not loaded within {_START_S} s") from None
    before = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
    for folder in _FOLDERS:
        if os.path.exists(f"{folder}/libcuda.so.1"):
            return {**env, "LD_LIBRARY_PATH": ":".join([*before, folder])}
    return env


@contextlib.contextmanager
def _gpu_kept_open(env: dict):
    keeper = subprocess.Popen([sys.executable, "-c", _KEEPER], cwd=_HERE, env=env, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        # It ends at once where there is no NVML: then nothing is kept open. Nor is it where NVML does not answer in time.
        _first_line(keeper, _START_S)
        yield
    finally:
        keeper.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.communicate(timeout=_START_S)


def _facts(env: dict) -> dict:
    """Driver and GPU, asked in a process of its own."""
    try:
        answer = subprocess.run([sys.executable, "-c", _FACTS], cwd=_HERE, env=env, capture_output=True, text=True,
                                timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        raise NoDriver(f"the driver does not answer within {_ASK_S} s") from None
    if answer.returncode == 0:
        return json.loads(answer.stdout)
    why = (answer.stderr.strip() or f"it ended with {answer.returncode}").split("\n")[-1]
    raise NoDriver(f"no driver can be asked here ({why}); --simulated runs on a simulated node")
