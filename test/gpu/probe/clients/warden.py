"""Ends an MPS daemon when the process that started it is gone, however it went: it waits for the end of its input, which
that process alone holds open. Arguments: the daemon's pid."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import time

control = int(sys.argv[1])


def servers() -> list:
    """Descendants of the daemon, which may be in sessions of their own."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, fresh = set(), {control}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return sorted(found)


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


known = set()
while True:
    # Servers come and go with clients; once the daemon is gone nothing tells whose they were.
    known.update(servers())
    if select.select([sys.stdin], [], [], 0.2)[0] and not sys.stdin.buffer.read1(1):
        break
known.update(servers())
try:
    subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", timeout=8, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
except (OSError, subprocess.TimeoutExpired):
    pass
deadline = time.monotonic() + 3
while time.monotonic() < deadline and any(alive(pid) for pid in {control, *known}):
    time.sleep(0.05)
for pid in (control, *known):
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
