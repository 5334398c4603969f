// Parts of the probe (test/gpu/probe) where a driver or a machine does not do as the simulated node does: a GPU that is
// not the first, calls that are refused, parts that are missing. What whole runs say is in probe.test.ts.
import { execFile, spawnSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { BUILD, startNode, temporaryFolder } from '../../support/native/node.ts';
import { disagreements, type Observation, type StepResult } from './facts.ts';

const PROBE = join(import.meta.dirname, '../../gpu/probe');

const noPython = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 9))']).status !== 0;
const test = testUnless(noPython ? 'there is no python3, or one older than 3.9' : undefined);

/** What a few lines of Python, beside the probe's own files, print as their last line: JSON. */
async function python(code: string, env: Record<string, string> = {}): Promise<unknown> {
  const { stdout } = await promisify(execFile)(
    'python3',
    ['-c', `import sys; sys.path.insert(0, ${JSON.stringify(PROBE)})\n${code}`],
    {
      encoding: 'utf8',
      env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1', ...env },
    },
  );
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
}

test("NVML is asked about CUDA's first GPU, whichever NVML counts as its first", async (t) => {
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 'l4');
  const names = await python(
    `
import ctypes, json, os, machine
env, told = machine.asked(dict(os.environ))
os.environ.update(env)
import nvml
name = ctypes.create_string_buffer(96)
nvml.call("nvmlDeviceGetName", nvml.gpu(), name, len(name))
print(json.dumps([told["gpu"]["name"], name.value.decode()]))`,
    { LD_LIBRARY_PATH: node.lib, CUDA_VISIBLE_DEVICES: '1' },
  );
  t.deepEqual(names, ['NVIDIA L4', 'NVIDIA L4']);
});

test('a driver that is not the simulated one is not taken for it because of a flag', async (t) => {
  const refused = (await python(`
import json, machine
def said(simulated, uuid):
    try:
        machine.refuse_other_kind(simulated, uuid)
    except machine.NoDriver as problem:
        return str(problem)
real, ours = "GPU-00000000-0000-4000-8000-000000000000", machine.SIMULATED_UUID + "04000000"
print(json.dumps([said(True, real), said(True, ours), said(False, real)]))`)) as (string | null)[];
  t.regex(refused[0] ?? '', /--simulated, but the first GPU \(GPU-0{8}\S+\) is none of the simulator's/);
  t.deepEqual(refused.slice(1), [null, null]);
});

test('a driver that does not answer holds up the start for a while, and not for good', async (t) => {
  const took = (await python(`
import json, machine, os, time
machine._START_S, machine._KEEPER = 0.2, "import time; time.sleep(600)"
begun = time.monotonic()
with machine._gpu_kept_open(dict(os.environ)):
    print(json.dumps(time.monotonic() - begun))`)) as number;
  t.true(took < 60, `${took} s`);
});

test('without the engine that the interposer loads no grant is made, and it is named', async (t) => {
  const root = temporaryFolder(t);
  const build = join(root, 'native/build');
  mkdirSync(join(build, 'tests'), { recursive: true });
  const said = (): Promise<unknown> =>
    python(`
import json, pathlib, grants, machine, step
root = pathlib.Path(${JSON.stringify(root)})
for module in (step, machine):
    module.ROOT, module.BUILD = root, root / "native/build"
try:
    why = None
    grants.Grant(step.Context(True, False), str(root / "grant"), 1 << 30)
except step.NotHere as reason:
    why = str(reason)
print(json.dumps({"why": why, "missing": machine.not_built()}))`);
  for (const name of ['libcotenant.so', 'libcotenant-nvml.so', 'tests/grant'])
    symlinkSync(join(BUILD, name), join(build, name));
  const { why, missing } = (await said()) as { why: string; missing: string[] };
  t.regex(why, /^native\/build\/libcotenant-engine\.\d+\.so is not built/);
  t.true(
    missing.some((name) => /libcotenant-engine\.\d+\.so/.test(name)),
    missing.join(),
  );
});

/** Runs a step's function in a process that finds a node; what it noted, and its answer or what ended it. `patch`:
 * lines of Python before. */
type Seen = { notes: Record<string, unknown>[]; answer?: string; data?: Record<string, unknown>; problem?: string };
async function asked(t: ExecutionContext, module: string, run: string, patch = '', faults = ''): Promise<Seen> {
  const node = await startNode(t, '--gpu', 'h100');
  return (await python(
    `
import json
from steps import ${module} as step
from step import Context, NotHere
${patch}
notes, said = [], {}
try:
    told = step.${run}(Context(True, True, note=lambda data: notes.append(json.loads(json.dumps(data)))))
    said = {"answer": told.answer, "data": told.data}
except Exception as problem:
    said = {"problem": f"{type(problem).__name__}: {problem}"}
print(json.dumps({"notes": notes, **said}))`,
    { LD_LIBRARY_PATH: node.lib, COTENANT_PROBE_NODE: node.folder, COTENANT_SIM_FAULTS: faults },
  )) as Seen;
}

const SOON = 'step.FOLLOW_S = 0.02';

test('a form of memory that the driver refuses loses only its own results', async (t) => {
  const { data, answer } = await asked(t, 'nvml_memory', 'memory', SOON, 'cuMemImportFromShareableHandle=999');
  t.deepEqual(data?.refused, ['vmmImported']);
  const stages = Object.keys((data?.changes ?? {}) as object);
  for (const name of ['vmmOwnerReleased', 'ipcOpened', 'pinned', 'managed', 'managedFreed'])
    t.true(stages.includes(name), name);
  for (const name of ['vmmImportedMapped', 'vmmImporterReleased']) t.false(stages.includes(name), name);
  t.regex(answer ?? '', /vmmImported refused \(999\), vmmImportedMapped not asked/);
});

test('results on forms of memory are kept when a later form ends the step', async (t) => {
  const { notes, problem } = await asked(
    t,
    'nvml_memory',
    'memory',
    `${SOON}\ndef end(*_): raise ValueError("no more")\nstep.ipc = end`,
  );
  t.is(problem, 'ValueError: no more');
  const stages = Object.keys((notes.at(-1)?.changes ?? {}) as object);
  for (const name of ['context', 'linear', 'poolFreed', 'vmmImporterReleased']) t.true(stages.includes(name), name);
});

const LIST = 'nvmlDeviceGetComputeRunningProcesses_v3';

test('a refused list does not report any process as missing', async (t) => {
  const killed = await asked(t, 'nvml_memory', 'kill', '', `${LIST}=999`);
  for (const name of ['small', 'large']) {
    const one = killed.data?.[name] as Record<string, unknown>;
    t.deepEqual([one.wasListed, one.offListS, one.listRefused, one.listedInState], [null, null, [999], {}], name);
    t.is(typeof one.freeS, 'number');
  }
  t.regex(killed.answer ?? '', /; the list was refused \(999\); /);

  const moved = await asked(t, 'nvml_memory', 'memory', SOON, `${LIST}=999`);
  t.is(moved.data?.processListed, null);
  const linear = (moved.data?.changes as Record<string, Record<string, unknown>> | undefined)?.linear;
  t.deepEqual([linear?.processes, linear?.wholeList, linear?.listRefused], [{ owner: null, other: null }, null, 999]);
  t.regex(
    moved.answer ?? '',
    /linear gpu, .*the driver refuses the list \(999\), so that only the GPU's figures say anything$/,
  );

  const dead = await asked(t, 'nvml_memory', 'zombies', '', `${LIST}=999`);
  const running = dead.data?.running as Record<string, unknown>;
  t.deepEqual([running.listed, running.listRefused], [null, 999]);

  const detailed = await asked(t, 'nvml_lists', 'detail', '', `${LIST}=999`);
  t.is(detailed.data?.sameAsComputeList, null);
});

test('a list that is refused once is not taken for one without the process', async (t) => {
  // The second look, which is the first after the signal.
  const { data } = await asked(t, 'nvml_memory', 'kill', '', `${LIST}=999@2x1`);
  const small = data?.small as Record<string, unknown>;
  t.deepEqual([small.wasListed, small.listRefused], [true, [999]]);
  t.is(typeof small.offListS, 'number');
});

test('missing stages of green contexts are reported and do not count as isolation', async (t) => {
  const { data, answer } = await asked(t, 'green', 'green', '', 'cuCtxFromGreenCtx=801');
  t.regex(
    answer ?? '',
    /^NOT ANSWERED: in a bare process view \(cuCtxFromGreenCtx answered 801\), streams \(left out after view\), /,
  );
  t.regex(answer ?? '', /what was taken in its view is NOT ANSWERED .*; NO launch was made, /);
  const missing = data?.unansweredStages as { bare: string[]; granted: string[] };
  for (const stage of ['view', 'launchesMade', 'blockFreed']) t.true(missing.bare.includes(stage), stage);
  for (const stage of ['secondGreen', 'primaryReleased', 'secondGreenEnded'])
    t.false(missing.bare.includes(stage), stage);
  const holds = data?.holds as Record<string, boolean>;
  t.deepEqual(
    Object.entries(holds).filter(([, held]) => !held),
    [],
    'what was not asked does not fail to hold',
  );
  const run = (simulated: boolean, facts: StepResult['data']): Observation => ({
    format: 1,
    simulated,
    driver: '',
    cuda: 13000,
    steps: [{ id: 'green', questions: [], status: 'answered', answer: '', how: '', data: facts }],
  });
  const whole = { ...data, unansweredStages: { bare: [], granted: [] } };
  t.deepEqual(
    disagreements('gpu.json', run(false, data ?? {}), run(true, whole), []).map((line) => line.replace(/: \[.*/, '')),
    ['gpu.json: green/unansweredStages/bare', 'gpu.json: green/unansweredStages/granted'],
  );
});

test("memory taken in a green context's view is decided by error texts and figures", async (t) => {
  const seen = `
import json
import steps.green as step
import tools
sys.path.insert(0, str(tools.PROGRAMS))
from green import least_of, Resource
MIB = 1 << 20
def fate(codes, figures, result=0):
    names = ("heapLimit", "greenEnded", "blockFreed")
    seen = {name: {"result": 0, "gpuBytes": None if value is None else value * MIB} for name, value in zip(names, figures)}
    seen["block"] = {"result": 0}
    seen["greenEnded"].update(result=result, facts=dict(zip(("rangeResult", "attributeResult"), codes)))
    told = step.fate_of_block(seen, "gpuBytes")
    return [told["goesWithIt"], told["byTheDriver"], told["byNvml"]]
few = Resource()
print(json.dumps([
    fate((500, 1), (2520, 960, 960)), fate((0, 0), (2520, 1980, 956)), fate((201, 719), (2520, 1980, 956)),
    fate((None, 709), (2520, 1980, 1980)), fate((500, 1), (2520, 1980, 956)), fate((0, 500), (None, None, None)),
    fate((1, 1), (None, None, None)), fate((500, 1), (2520, 960, 960), result=719), least_of(few)]))`;
  t.deepEqual(await python(seen), [
    [true, true, true],
    [false, false, false],
    [false, null, false],
    [null, null, null],
    [null, true, false],
    [null, null, null],
    [true, true, null],
    [null, null, null],
    8,
  ]);
});

test('a step that no signal ends is reported and does not hold up the probe', async (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'steps'));
  const steps = `
import time
from step import Step
ALL = (Step("deaf", (), "hangs in the driver", 20, lambda context: time.sleep(60)),)
`;
  writeFileSync(join(folder, 'steps/__init__.py'), steps);
  // A signal that does nothing stands for a process that takes none.
  const { result, took, group, row } = (await python(
    `
import json, os, signal, time, probe
kill, killed = os.killpg, []
probe.os.killpg = lambda group, number: killed.append(group)
probe.END_S, probe.GONE_S = 0.2, 0.2
begun = time.monotonic()
result = probe.run_outside(probe.ALL[0], [], dict(os.environ), 1.0)
took = time.monotonic() - begun
kill(killed[0], signal.SIGKILL)
print(json.dumps({"result": result, "took": took, "group": killed[0], "row": probe.row(result)}))`,
    { COTENANT_PROBE_STEPS: folder },
  )) as { result: Record<string, unknown>; took: number; group: number; row: string };
  t.is(result.status, 'out of time');
  const left = result.left as { pid: number; name: string; state: string }[];
  t.deepEqual(
    left.map(({ pid }) => pid),
    [group],
  );
  t.regex(left[0]?.name ?? '', /python/);
  t.regex(row, new RegExp(`STILL THERE, although killed: ${group} \\(python`));
  t.true(took < 30, `${took} s`);
});

test('the time until the first step begins is of the total', async (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'steps'));
  const steps = `
from step import Answer, Step
ALL = (Step("fine", (), "answers", 20, lambda context: Answer("yes", "looked", {})),)
`;
  writeFileSync(join(folder, 'steps/__init__.py'), steps);
  const said = await python(
    `
import contextlib, io, json, os, time, probe
@contextlib.contextmanager
def slow(simulated):
    time.sleep(1.5)
    yield dict(os.environ), {"driver": "1", "cuda": 13000, "gpu": {"name": "gpu", "compute": "9.0", "totalBytes": 1}}
probe.machine.node = slow
sys.argv = ["probe.py", "--simulated", "--total", "6"]
with contextlib.redirect_stdout(io.StringIO()) as out:
    code = probe.main()
print(json.dumps([code, out.getvalue()]))`,
    { COTENANT_PROBE_STEPS: folder },
  );
  const [code, text] = said as [number, string];
  t.is(code, 1);
  t.regex(text, /out of time +fine .*\n +the probe's 6 s are used up/);
});

test("a later kind of program keeps others' results and has time to read the disk", async (t) => {
  const seen = await python(`
import json
from steps import runtime
from step import Context
notes, times, ran = [], [], {"bare": False, "preload": True, "mounted": True}
at = runtime.Ground.__new__(runtime.Ground)
at.context, at.slice = Context(True, False, note=lambda data: notes.append(json.loads(json.dumps(data)))), 1
def run(form, program, timeout_s, **env):
    times.append(timeout_s)
    return {"ran": True, "startSeconds": 1.0, "totalBytes": 1} if ran[form] else {"ran": False, "why": "not"}
at.run, at.leased = run, lambda *_, **__: {"ran": False, "why": "not"}
at.compare("shared", {"static": {"known": True}}, ["program"], 1, 10)
print(json.dumps([sorted(notes[-1]["programs"]), notes[-1]["programs"]["static"], times]))`);
  t.deepEqual(seen, [['shared', 'static'], { known: true }, [30, 30, 10]]);
});

test('a program that takes too long is reported as out of time, not as failing', async (t) => {
  const words = await python(`
import json, tools
from steps import runtime
late = tools.run(["sleep", "60"], tools.environment(), 0.1)
print(json.dumps([runtime.verdict(late, 1), runtime.verdict(tools.run(["false"], tools.environment(), 20), 1)]))`);
  t.deepEqual(words, ['out of time (not within 0.1 s)', 'did not run (ended with 1: )']);
});

const PARTS: { module: string; run: string; known: string; not: string; patch?: string; faults?: string }[] = [
  // Faults: the second block of the large process, the first pool of the other threshold, the end of the load.
  { module: 'nvml_memory', run: 'kill', known: 'small', not: 'large', faults: 'cuMemAlloc_v2=999@2x1' },
  { module: 'pools', run: 'pools', known: 'thresholdZero', not: 'churn', faults: 'cuMemPoolCreate=999@7x1' },
  { module: 'mps', run: 'mps', known: 'memory', not: 'busyPercent', faults: 'cuModuleUnload=999' },
  { module: 'latency', run: 'latency', known: 'launch', not: 'allocFree2MiB', faults: 'cuMemFree_v2=999' },
  {
    module: 'nvml_utilization',
    run: 'utilization',
    known: 'alone',
    not: 'together',
    patch: 'def end(*_): raise ValueError("no more")\nstep.alone, step.together = lambda device: {"period": None}, end',
  },
];
for (const { module, run, known, not, patch, faults } of PARTS) {
  test(`${module}.${run} keeps its results when it does not finish`, async (t) => {
    const { notes, problem } = await asked(t, module, run, patch, faults);
    t.regex(problem ?? '', /Error: /);
    const keys = Object.keys(notes.at(-1) ?? {});
    t.true(keys.includes(known) && !keys.includes(not), `${keys} before ${problem}`);
  });
}

test('a driver error in one of two dependent processes is not reported as waiting', async (t) => {
  const seen = await python(`
import json, ranks
from children import ChildError, NoAnswer
class Rank:
    def __init__(self, problem): self.problem = problem
    def tell(self, *_, **__): pass
    def hear(self, timeout_s):
        if self.problem: raise self.problem
        return {"seconds": 1.0, "right": True}
def run(*problems):
    pair = ranks.Pair("", [], None, {}, [])
    pair.ranks = [Rank(problem) for problem in problems]
    with ranks.Running(pair, 1.0) as running:
        running._thread.join()
    return [running.stuck, running.failed]
late, error = NoAnswer("no answer within 20 s"), ChildError("CudaError: answered 719", 719)
print(json.dumps([run(late, None), run(late, error), run(error, late), run(None, ChildError("the process ended"))]))`);
  t.deepEqual(seen, [
    ['1 steps: no answer within 20 s', null],
    [null, 'CudaError: answered 719'],
    [null, 'CudaError: answered 719'],
    [null, 'the process ended'],
  ]);
});

test("a client's own MPS mistake is not attributed to the daemon", async (t) => {
  const seen = await python(`
import contextlib, json
from children import ChildError
from step import Context, NotHere
from steps import mps
mps.nvml.gpu = lambda: None
mps.daemon = lambda: contextlib.nullcontext({})
def with_code(code):
    def observe(*_): raise ChildError(f"CudaError: answered {code}", code)
    mps.observe = observe
    try:
        mps.mps(Context(False, False))
    except (ChildError, NotHere) as problem:
        return type(problem).__name__
print(json.dumps([with_code(code) for code in (805, 719, None)]))`);
  t.deepEqual(seen, ['NotHere', 'ChildError', 'ChildError']);
});

test('a symbol lookup that the driver refuses is reported with its result', async (t) => {
  const patch = `
look_up, library = step.look_up, step.cuda.library
class Refusing:
    def cuGetProcAddress_v2(self, *words): return 999
def first_refused(*words):
    step.look_up, step.cuda.library = look_up, Refusing
    try:
        return look_up(*words)
    finally:
        step.cuda.library = library
step.look_up = first_refused`;
  const { data, answer, problem } = await asked(t, 'identity', 'identity', patch);
  t.is(problem, undefined);
  const checks = data?.resultsAndStatus as Record<string, number>;
  t.is(checks['999 -1'], 1);
  t.regex(answer ?? '', /^look-ups were REFUSED, by result and status: \{'999 -1': 1\}; /);
});

test('figures of a process are asked in the form that the driver has', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--driver', '470.57.02');
  const seen = await python(
    'import ctypes, json, figures, nvml\nprint(json.dumps([figures.processes(), hasattr(nvml.library(), nvml.list_name("Compute", 3))]))',
    { LD_LIBRARY_PATH: node.lib },
  );
  t.deepEqual(seen, [{}, false]);
});
