"""Whether programs of each kind start, compute and are held to a slice: bare, with our objects preloaded, and with our
object mounted over the driver's file; and whether their launches pass the gate where compute is leased."""

import contextlib
import importlib.util
import os
import pathlib
import statistics
import sys
import tempfile

import arbiter
import cuda
import grants
import tools
from step import Answer, Context, NotHere, Step
from steps.exports import loaded_path

FORMS = ("bare", "preload", "mounted")
#: Of the GPU, where compute is leased.
PERCENT = 50


class Ground:
    """A slice of the GPU, and the three forms of running a program in it."""

    def __init__(self, context: Context, folder: str):
        self.context, self.folder = context, pathlib.Path(folder)
        self.measured = grants.calibrate(context)
        total = cuda.facts()["gpu"]["totalBytes"]
        self.slice = min(8 << 30, total // 4 // cuda.MIB * cuda.MIB)
        self.grant = grants.Grant(context, str(self.folder / "grant"), self.slice, self.measured)
        self.runs = 0

    def amounts(self) -> list:
        """A half of the slice, and a granule more than the slice."""
        return [str(self.slice // 2), str(self.slice + 2 * cuda.MIB)]

    def command(self, form: str, program: list) -> list:
        if form != "mounted":
            return program
        self.runs += 1
        work = self.folder / f"mounted{self.runs}"
        work.mkdir()
        node = os.environ.get("COTENANT_PROBE_NODE")
        if node:  # a simulated driver finds its node beside its own folder
            os.symlink(f"{node}/node.sock", work / "node.sock")
        script = str(tools.PROGRAMS / "mounted.py")
        ours, grant = self.context.program("libcotenant.so"), str(self.grant.folder)
        return ["unshare", "-m", "--propagation", "private", sys.executable, script, loaded_path("libcuda.so"),
                str(work), ours, grant, *program]

    def run(self, form: str, program: list, timeout_s: float, **env: str) -> dict:
        preload = {"LD_PRELOAD": self.grant.both} if form == "preload" else {}
        answer = tools.run(self.command(form, program), tools.environment(**env, **preload), timeout_s)
        if answer["ran"]:
            begun = answer.pop("begunNs")
            if form == "mounted":  # without the time that the mounts took
                begun = int((self.folder / f"mounted{self.runs}" / "begun").read_text())
            answer["startSeconds"] = (answer.pop("startedNs") - begun) / 1e9
        return answer

    def leased(self, program: list, timeout_s: float, **env: str) -> dict:
        """Preloaded under an arbiter, which reports how many launches passed the gate."""
        self.runs += 1
        grant = grants.Grant(self.context, str(self.folder / f"leased{self.runs}"), self.slice, self.measured,
                             cores=PERCENT)
        judge = arbiter.Arbiter(self.context)
        try:
            judge.plan([(grant, PERCENT)])
            answer = tools.run(program, tools.environment(**env, LD_PRELOAD=grant.both), timeout_s)
            judge.report()  # which may be from before the end
            answer["launchesCounted"] = judge.report()["pages"][0]["launches"]
        finally:
            judge.end()
        if answer["ran"]:
            answer["startSeconds"] = (answer.pop("startedNs") - answer.pop("begunNs")) / 1e9
        return answer

    def compare(self, kind: str, before: dict, program: list, rounds: int, timeout_s: float, **env: str) -> dict:
        """Each form in turns; start times of all rounds, everything else of the last one. Until one has run, which then has
        read the program from the disk, each has three times as long as later ones. `before`: the kinds of programs that are
        known already, which are noted beside this one."""
        starts, last = {form: [] for form in FORMS}, {}
        for _ in range(rounds):
            for form in FORMS:
                if last.get(form, {}).get("ran") is False:
                    continue  # it will not get better
                read = any(seen["ran"] for seen in last.values())
                last[form] = self.run(form, program, timeout_s * (1 if read else 3), **env)
                self.context.note({"programs": {**before, kind: last}})
                if last[form]["ran"]:
                    starts[form].append(last[form].pop("startSeconds"))
        for form in FORMS:
            if starts[form]:
                last[form]["startSeconds"] = round(statistics.median(starts[form]), 3)
        if last["preload"]["ran"]:
            last["leased"] = self.leased(program, timeout_s * 2, **env)
        for form, seen in last.items():
            if seen["ran"]:
                seen["seesSlice"] = form != "bare" and seen["totalBytes"] == self.slice
        return last


@contextlib.contextmanager
def ground(context: Context):
    with tempfile.TemporaryDirectory(prefix="ctp-") as folder:
        yield Ground(context, folder)


def verdict(form: dict, slice_bytes: int) -> str:
    if not form["ran"]:
        return f"{'out of time' if form.get('outOfTime') else 'did not run'} ({form['why']})"
    gate = f", launches that passed the gate: {form['launchesCounted']}" if "launchesCounted" in form else ""
    held = form["totalBytes"] == slice_bytes and form["aboveResult"] == cuda.OUT_OF_MEMORY
    free = form["totalBytes"] > slice_bytes and form["aboveResult"] == 0
    parts = ["computed" if form["correct"] and form.get("graphCorrect", True) else "computed WRONG"]
    parts.append("saw and was held to the slice" if held else "saw and had the GPU" if free else
                 f"saw {form['totalBytes']} bytes, above: {form['aboveResult']}")
    if form["withinResult"] or form["afterResult"]:
        parts.append(f"within: {form['withinResult']}, afterwards: {form['afterResult']}")
    return f"{', '.join(parts)}, {form['startSeconds']:.2f} s to its first result{gate}"


def answer(kinds: dict, at: Ground) -> Answer:
    """`kinds`: per kind of program its forms."""
    parts = [f"{kind} {form} {verdict(result, at.slice)}" for kind, forms in kinds.items()
             for form, result in forms.items()]
    return Answer(
        "; ".join(parts),
        f"each program in a grant of {at.slice // cuda.MIB} MiB: plain, by LD_PRELOAD, in a mount namespace with our "
        "object over the driver's file and the real one in the second folder of the library path, and preloaded with "
        f"{PERCENT} % of the GPU under our arbiter",
        {"sliceBytes": at.slice, "calibration": at.measured, "programs": kinds},
    )


def driver_api(context: Context) -> Answer:
    cuda.library()
    with ground(context) as at:
        program = [sys.executable, str(tools.PROGRAMS / "driver.py"), *at.amounts(), "0" if context.simulated else "1"]
        return answer({"driver": at.compare("driver", {}, program, 3, 8)}, at)


def real_only(context: Context) -> None:
    if context.simulated:
        raise NotHere("NVIDIA's runtime has the driver prove that it is genuine; the simulated one does not imitate it")


def cudart(context: Context) -> Answer:
    real_only(context)
    compiler = tools.nvcc()
    cuda.library()
    kinds = {}
    with ground(context) as at:
        compute, libraries = cuda.facts()["gpu"]["compute"], tools.runtime_folder(compiler)
        paths = ":".join(path for path in (libraries, os.environ.get("LD_LIBRARY_PATH")) if path)
        for kind, env in (("static", {}), ("shared", {"LD_LIBRARY_PATH": paths})):
            program = str(at.folder / kind)
            try:
                tools.compile_cuda(compiler, "runtime.cu", program, compute, "-cudart", kind, f"-L{libraries}")
            except RuntimeError as problem:
                kinds[kind] = {form: {"ran": False, "why": str(problem)} for form in FORMS}
                continue
            kinds[kind] = at.compare(kind, kinds, [program, *at.amounts()], 3, 10, **env)
        return answer(kinds, at)


def pytorch(context: Context) -> Answer:
    real_only(context)
    if importlib.util.find_spec("torch") is None:
        raise NotHere("there is no PyTorch")
    cuda.library()
    with ground(context) as at:
        program = [sys.executable, str(tools.PROGRAMS / "pytorch.py"), *at.amounts()]
        return answer({"pytorch": at.compare("pytorch", {}, program, 2, 15)}, at)


QUESTION = ("interposer 7.3", "interposer 2.2")
STEPS = (
    Step("runtime.driver", QUESTION, "a driver-API program, bare, preloaded and mounted over", 60, driver_api),
    Step("runtime.cudart", QUESTION, "nvcc programs with both runtimes, bare, preloaded and mounted over", 90, cudart),
    Step("runtime.pytorch", QUESTION, "PyTorch, bare, preloaded and mounted over", 120, pytorch),
)
