"""What our object adds to a launch and to an allocation, over a driver that is not idle: the measured program of the
benchmarks (test/bench/programs/calls.c), bare and in a grant, in turns and on one processor: another one may
lie nearer to the GPU or farther from it."""

import contextlib
import os
import pathlib
import select
import statistics
import subprocess
import tempfile

import cuda
import grants
import tools
from step import Answer, Context, Step

MIB = cuda.MIB
SLICE = 8 << 30
ROUNDS = 11
WAIT_S = 10
#: Name and command. The median over blocks of calls leaves out what neighbors took.
COMMANDS = (
    ("launch", "launch 5000 500 0"), ("allocFree2MiB", f"alloc 500 10 0 {2 * MIB}"),
    ("allocFree512B", "alloc 500 10 0 512"),
)


class Caller:
    def __init__(self, program: str, env: dict, processor: int):
        self.child = subprocess.Popen([program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      bufsize=1, preexec_fn=lambda: os.sched_setaffinity(0, {processor}))

    def ask(self, command: str) -> float:
        """Median of nanoseconds per call."""
        self.child.stdin.write(f"{command}\n")
        if not select.select([self.child.stdout], [], [], WAIT_S)[0]:
            raise TimeoutError(f"{command}: no answer within {WAIT_S} s")
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"{command}: the program ended with {self.child.wait()}")
        return float(line.split()[0])

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def latency(context: Context) -> Answer:
    program = context.program("bench", "calls")
    cuda.library()
    data = {}
    processor = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder, contextlib.ExitStack() as undo:
        grant = grants.Grant(context, str(pathlib.Path(folder) / "grant"), SLICE, grants.calibrate(context))
        callers = []
        for env in ({}, {"LD_PRELOAD": grant.cuda}, {}):
            callers.append(Caller(program, tools.environment(**env), processor))
            undo.callback(callers[-1].end)
        for name, command in COMMANDS:
            samples = [[], [], []]
            for round_number in range(ROUNDS + 2):
                for turn in range(3):
                    which = (turn + round_number) % 3
                    value = callers[which].ask(command)
                    if round_number >= 2:
                        samples[which].append(value)
            bare, ours, again = samples
            data[name] = {
                "bareNs": round(statistics.median(bare), 1), "oursNs": round(statistics.median(ours), 1),
                "addedNs": round(statistics.median(b - a for a, b in zip(bare, ours)), 1),
                "noiseNs": round(abs(statistics.median(b - a for a, b in zip(bare, again))), 1),
            }
            context.note(data)
    return Answer(
        "; ".join(f"{name} {entry['bareNs']:.0f} ns, ours adds {entry['addedNs']:.0f} (noise {entry['noiseNs']:.0f})"
                  for name, entry in data.items()),
        "native/build/bench/calls bare, preloaded, bare once more, on one processor, "
        f"{ROUNDS} rounds in turns, medians of differences",
        data,
    )


STEPS = (Step("latency", ("interposer 7.3",), "what our object adds to a launch and an allocation", 45, latency),)
