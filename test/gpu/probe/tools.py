"""Programs of the probe: where they lie, how they are compiled here, and how one is run to its end."""

import json
import os
import pathlib
import shutil
import subprocess
import time

from step import NotHere

COMPILE_S = 30
PROGRAMS = pathlib.Path(__file__).parent / "programs"


def nvcc() -> str:
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not found:
        raise NotHere("there is no nvcc")
    return found


def runtime_folder(compiler: str) -> str:
    """Where the shared runtime of this compiler lies, for the library path."""
    root = pathlib.Path(compiler).resolve().parents[1]
    for place in ("lib64", "lib", "targets/x86_64-linux/lib"):
        if list((root / place).glob("libcudart.so.*")):
            return str(root / place)
    raise NotHere(f"{root} has no libcudart.so")


def compile_cuda(compiler: str, source: str, out: str, compute: str, *options: str) -> None:
    command = [compiler, "-O1", f"-arch=sm_{compute.replace('.', '')}", *options, "-o", out, str(PROGRAMS / source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"nvcc does not compile {source} within {COMPILE_S} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"nvcc does not compile {source}: {(done.stderr or done.stdout).strip()[-1000:]}")


def run(command: list, env: dict, timeout_s: float) -> dict:
    """The program's one line of JSON, and when it was begun; or how it ended instead."""
    begun = time.monotonic_ns()
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"ran": False, "outOfTime": True, "why": f"not within {timeout_s:g} s"}
    except OSError as problem:
        return {"ran": False, "why": str(problem)}
    lines = done.stdout.strip().split("\n")
    if done.returncode != 0 or not lines[-1].startswith("{"):
        said = (done.stderr.strip() or done.stdout.strip()).split("\n")[-1]
        return {"ran": False, "why": f"ended with {done.returncode}: {said[-500:]}"}
    return {"ran": True, "begunNs": begun, **json.loads(lines[-1])}


def environment(**more: str) -> dict:
    """This process's environment, without what would bring objects of ours or others into the program."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**env, **more}
