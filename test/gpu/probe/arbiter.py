"""The arbiter of compute (native/compute/arbiterd) without an agent: given shares, asked each second what it charged."""

import contextlib
import json
import os
import select
import subprocess
import time

import grants
from step import Context

#: Of the policies of native/compute/arbiterd: each has its share, no more.
FIXED = 3
_PPM_OF_A_PERCENT = 10_000


class Arbiter:
    def __init__(self, context: Context):
        self._child = subprocess.Popen([context.program("cotenant-arbitrate")], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        self._number, self._heard, self._pages = 0, b"", {}

    def plan(self, shares: list) -> None:
        """Percent for each grant, of each GPU that it has. Returns when it is in force."""
        self._number += 1
        gpus = range(max(grant.gpus for grant, _ in shares))
        lines = [f"plan {self._number}", *(f"gpu {gpu} 0" for gpu in gpus)]
        for index, (grant, percent) in enumerate(shares):
            lines += [f"page {index} {grants.SLOTS} {grant.gpus} {grant.folder / 'ledger'}",
                      *(f"on {gpu} {FIXED} {percent * _PPM_OF_A_PERCENT} 0 0 0 0" for gpu in range(grant.gpus))]
        self._child.stdin.write(("\n".join([*lines, "end"]) + "\n").encode())
        self._child.stdin.flush()
        deadline = time.monotonic() + 15
        while self.report()["plan"] != self._number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"plan {self._number} is not in force")

    def report(self, timeout_s: float = 15) -> dict:
        """The first report that comes from now on: plan, and of each page by number what was charged until then, on its
        first GPU and on all. It may be of a moment just before, but never one that lay in the pipe."""
        while self._readable(0):
            self._read()
        while b"\n" in self._heard:
            self._take_line()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            if not self._readable(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"nothing from the arbiter within {timeout_s:g} s")
            self._read()
        plan = self._take_line()
        return {"plan": plan, "pages": {number: gpus[0] for number, gpus in self._pages.items()},
                "gpus": dict(self._pages)}

    def _readable(self, timeout_s: float) -> bool:
        return bool(select.select([self._child.stdout], [], [], timeout_s)[0])

    def _read(self) -> None:
        more = os.read(self._child.stdout.fileno(), 65536)
        if not more:
            raise RuntimeError(f"the arbiter ended with {self._child.wait()}")
        self._heard += more

    def _take_line(self) -> int:
        """Keeps what a report says of each page, for not each one names all; its plan's number."""
        line, self._heard = self._heard.split(b"\n", 1)
        report = json.loads(line)
        if "problem" in report:
            raise RuntimeError(f"the arbiter: {report['problem']}")
        for page in report.get("pages", []):
            if "broken" in page:
                raise RuntimeError(f"the arbiter: page {page['id']}: {page['broken']}")
            self._pages[int(page["id"])] = page["gpus"]
        return report["plan"]

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
