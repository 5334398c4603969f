import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, startNode, temporaryFolder } from '../../support/native/node.ts';
import { asked, python, test } from './asking.ts';

test("NVML is asked about CUDA's first GPU, whichever NVML counts as its first", async (t) => {
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 'l4');
  const names = await python(
    `
import ctypes, json, os, machine
env, facts = machine.asked(dict(os.environ))
os.environ.update(env)
import nvml
name = ctypes.create_string_buffer(96)
nvml.call("nvmlDeviceGetName", nvml.gpu(), name, len(name))
print(json.dumps([facts["gpu"]["name"], name.value.decode()]))`,
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

const SOON = 'step.FOLLOW_S = 0.02';

test('a form of memory that the driver refuses loses only its own results', async (t) => {
  const { data, answer } = await asked(t, 'nvml.memory', 'memory', {
    patch: SOON,
    faults: 'cuMemImportFromShareableHandle=999',
  });
  t.deepEqual(data?.refused, ['vmmImported']);
  const stages = Object.keys((data?.changes ?? {}) as object);
  for (const name of ['vmmOwnerReleased', 'ipcOpened', 'pinned', 'managed', 'managedFreed'])
    t.true(stages.includes(name), name);
  for (const name of ['vmmImportedMapped', 'vmmImporterReleased']) t.false(stages.includes(name), name);
  t.regex(answer ?? '', /vmmImported refused \(999\), vmmImportedMapped not asked/);
});

test('results on forms of memory are kept when a later form ends the step', async (t) => {
  const { notes, problem } = await asked(t, 'nvml.memory', 'memory', {
    patch: `${SOON}\ndef end(*_): raise ValueError("no more")\nstep.ipc = end`,
  });
  t.is(problem, 'ValueError: no more');
  const stages = Object.keys((notes.at(-1)?.changes ?? {}) as object);
  for (const name of ['context', 'linear', 'poolFreed', 'vmmImporterReleased']) t.true(stages.includes(name), name);
});

const LIST = 'nvmlDeviceGetComputeRunningProcesses_v3';

test('a refused list does not report any process as missing', async (t) => {
  const killed = await asked(t, 'nvml.memory', 'kill', { faults: `${LIST}=999` });
  for (const name of ['small', 'large']) {
    const one = killed.data?.[name] as Record<string, unknown>;
    t.deepEqual([one.wasListed, one.offListS, one.listRefused, one.listedInState], [null, null, [999], {}], name);
    t.is(typeof one.freeS, 'number');
  }
  t.regex(killed.answer ?? '', /; the list was refused \(999\); /);

  const moved = await asked(t, 'nvml.memory', 'memory', { patch: SOON, faults: `${LIST}=999` });
  t.is(moved.data?.processListed, null);
  const linear = (moved.data?.changes as Record<string, Record<string, unknown>> | undefined)?.linear;
  t.deepEqual([linear?.processes, linear?.wholeList, linear?.listRefused], [{ owner: null, other: null }, null, 999]);
  t.regex(
    moved.answer ?? '',
    /linear gpu, .*the driver refuses the list \(999\), so that only the GPU's figures say anything$/,
  );

  const dead = await asked(t, 'nvml.memory', 'zombies', { faults: `${LIST}=999` });
  const running = dead.data?.running as Record<string, unknown>;
  t.deepEqual([running.listed, running.listRefused], [null, 999]);

  const detailed = await asked(t, 'nvml.lists', 'detail', { faults: `${LIST}=999` });
  t.is(detailed.data?.sameAsComputeList, null);
});

test('a list that is refused once is not taken for one without the process', async (t) => {
  // The second look, which is the first after the signal.
  const { data } = await asked(t, 'nvml.memory', 'kill', { faults: `${LIST}=999@2x1` });
  const small = data?.small as Record<string, unknown>;
  t.deepEqual([small.wasListed, small.listRefused], [true, [999]]);
  t.is(typeof small.offListS, 'number');
});

const PARTS: { module: string; run: string; known: string; not: string; patch?: string; faults?: string }[] = [
  // Faults: the second block of the large process, the first pool of the other threshold, the end of the load.
  { module: 'nvml.memory', run: 'kill', known: 'small', not: 'large', faults: 'cuMemAlloc_v2=999@2x1' },
  { module: 'pools', run: 'pools', known: 'thresholdZero', not: 'churn', faults: 'cuMemPoolCreate=999@7x1' },
  { module: 'mps', run: 'mps', known: 'memory', not: 'busyPercent', faults: 'cuModuleUnload=999' },
  { module: 'latency', run: 'latency', known: 'launch', not: 'allocFree2MiB', faults: 'cuMemFree_v2=999' },
  {
    module: 'nvml.utilization',
    run: 'utilization',
    known: 'alone',
    not: 'together',
    patch: 'def end(*_): raise ValueError("no more")\nstep.alone, step.together = lambda device: {"period": None}, end',
  },
];
for (const { module, run, known, not, ...how } of PARTS) {
  test(`${module}.${run} keeps its results when it does not finish`, async (t) => {
    const { notes, problem } = await asked(t, module, run, how);
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
  const { data, answer, problem } = await asked(t, 'identity', 'identity', { patch });
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

test('the parts of the documented rules have all of them, those never asked first', async (t) => {
  const parts = await python(`
import json
from steps import conformance
names, known = ["a/1", "a/2", "b/1", "b/2", "c/1"], {"a/1", "b/1"}
print(json.dumps([conformance.part_of(names, known, part) for part in range(conformance.PARTS)]))`);
  t.deepEqual(parts, [
    ['a/2', 'b/2', 'c/1'],
    ['a/1', 'b/1'],
  ]);
});
