"""Processes that a step drives: one request and one answer per line, ended and reaped whatever happens."""

import contextlib
import json
import os
import pathlib
import select
import subprocess
import sys
import time

END_S = 10
CLIENTS = pathlib.Path(__file__).parent / "clients"


class ChildError(Exception):
    """The child could not do it; `code` is what the driver answered, if it was the driver."""

    def __init__(self, text: str, code=None):
        super().__init__(text)
        self.code = code


class NoAnswer(ChildError):
    """The child did not answer in time."""


class Child:
    """A program of clients/, which says what it can be asked. `prefix` is a command that runs it."""

    def __init__(self, prefix=(), env=None, pass_fds=(), program="holder.py"):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(CLIENTS / program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})}, pass_fds=pass_fds,
        )
        self.pid = self.process.pid
        self._heard = b""

    def tell(self, what: str, **given) -> None:
        self.process.stdin.write(json.dumps({"do": what, **given}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float) -> dict:
        deadline = time.monotonic() + timeout_s
        out = self.process.stdout.fileno()
        while b"\n" not in self._heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NoAnswer(f"no answer within {timeout_s:g} s")
            more = os.read(out, 65536)
            if not more:
                raise ChildError("the process ended")
            self._heard += more
        line, self._heard = self._heard.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(answer["error"], answer.get("code"))
        return answer

    def ask(self, what: str, timeout_s: float = 20, **given) -> dict:
        self.tell(what, **given)
        return self.hear(timeout_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # who hangs in the driver is not ended by a signal
            self.process.wait(timeout=END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


@contextlib.contextmanager
def child(**how):
    """A child that is gone when the block is left."""
    made = Child(**how)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def family():
    """A list for children that all end when the block is left, at the same time: each may take a driver a while."""
    members = []
    try:
        yield members
    finally:
        for member in members:
            member.process.kill()
        for member in members:
            member.end()


def gpus(env: dict) -> list:
    """The GPUs that CUDA shows to a program with this environment: uuid, name and compute capability of each."""
    with child(env=env) as who:
        return who.ask("gpus", timeout_s=60)["gpus"]


def until(condition, timeout_s: float, pause_s: float = 0.002):
    """Seconds until a condition holds; None if it does not within the time."""
    started = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - started
        if time.monotonic() - started > timeout_s:
            return None
        time.sleep(pause_s)


def state(pid: int) -> str:
    """The kernel's letter for a process (R, S, D, T, Z ...); "" when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
