"""A container's files for a program of the probe: limits page, ledger and our objects in one folder, as an agent would
publish them; and what the ledger says afterwards (native/shared-memory/ledger.h)."""

import json
import os
import pathlib
import struct
import subprocess

from step import ENGINE, Context

SLOTS = 64
MIB = 1 << 20


def calibrate(context: Context, uuid=None, env=None) -> dict:
    """What cotenant-calibrate measures on a GPU, the first one unless named; with its complaint instead where it
    cannot."""
    program = context.program("cotenant-calibrate")
    chosen = {"CUDA_VISIBLE_DEVICES": uuid} if uuid else {}
    done = subprocess.run([program], env={**os.environ, **(env or {}), **chosen}, capture_output=True, text=True,
                          timeout=20)
    if done.returncode == 0:
        return json.loads(done.stdout)
    return {"uuid": uuid or uuid_of(), "contextBytes": 0, "granuleBytes": 2 * MIB, "releasesLate": False,
            "complaint": done.stderr.strip()}


def uuid_of(device: int = 0) -> str:
    import ctypes

    import cuda

    raw = ctypes.create_string_buffer(16)
    cuda.call("cuInit", 0)
    cuda.call("cuDeviceGetUuid_v2" if hasattr(cuda.library(), "cuDeviceGetUuid_v2") else "cuDeviceGetUuid", raw, device)
    text = raw.raw.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Grant:
    """On the GPU that was `measured`, or on each of several. `cores`, a percentage, has launches leased; an arbiter then
    says by whom (arbiter.py)."""

    def __init__(self, context: Context, folder: str, memory_bytes: int, *measured: dict, cores=None):
        self.gpus = len(measured)
        self.folder = pathlib.Path(folder)
        context.program(ENGINE)
        self.folder.mkdir()
        built = pathlib.Path(context.program("libcotenant.so")).parent
        for path in built.glob("libcotenant*.so"):
            os.symlink(path, self.folder / path.name)
        gpus = [":".join((
            gpu["uuid"].replace("GPU-", "").replace("-", ""), str(memory_bytes), str(gpu["contextBytes"]),
            str(gpu["granuleBytes"]), "1" if gpu["releasesLate"] else "0",
            *([] if cores is None else [str(cores)]),
        )) for gpu in measured]
        subprocess.run([context.program("tests", "grant"), folder, str(SLOTS), "1", *gpus], check=True, timeout=20)
        #: For LD_PRELOAD: CUDA alone, and with NVML.
        self.cuda = str(self.folder / "libcotenant.so")
        self.both = f"{self.cuda} {self.folder / 'libcotenant-nvml.so'}"

    def ledger(self) -> dict:
        """What all slots together hold on the first GPU of the grant, and what was denied."""
        text = (self.folder / "ledger").read_bytes()
        gpus, slots = struct.unpack_from("<II", text, 12)
        amounts = {"heldBytes": 0, "pendingBytes": 0, "freedBytes": 0, "contextBytes": 0, "managedBytes": 0,
                 "poolBytes": 0}
        for slot in range(slots):
            row = struct.unpack_from("<6Q", text, 64 + gpus * 64 + slot * (64 + gpus * 64) + 64)
            for name, value in zip(amounts, row):
                amounts[name] += value
        amounts["denied"] = struct.unpack_from("<Q", text, 64)[0]
        return amounts
