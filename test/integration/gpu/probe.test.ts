// The probe of a real driver (test/gpu/probe), run on the simulated node: every question has a step, every step answers
// or says why not, one that fails costs only itself; and what drivers were observed to do agrees with the simulated
// one.
import { type ChildProcess, execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { startNode, temporaryFolder } from '../../support/native/node.ts';
import { COMPARED, type Disagreement, disagreements, type Observation, pathsOf, type StepResult } from './facts.ts';
import { noneLeft, PROBE, probe, ROOT } from './probe-run.ts';

const OBSERVED = join(ROOT, 'test/gpu/observed');
/** The two lists of questions to a driver, and what else the design marks as one. */
const QUESTIONS = [
  ...['2.2', '2.4', '4.1', '4.5', '5.4'].map((section) => `interposer ${section}`),
  ...Array.from({ length: 10 }, (_, index) => `interposer 7.${index + 1}`),
  ...[...'abcdefghij'].map((letter) => `exporter 9.${letter}`),
];
const PROBE_MS = 500_000;
/** Runs of the probe that share its steps. */
const AT_ONCE = 3;

const noPython = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 9))']).status !== 0;
const test = testUnless(noPython ? 'there is no python3, or one older than 3.9' : undefined);

const complaints = (steps: readonly StepResult[]) =>
  steps
    .filter(({ status }) => status === 'failed' || status === 'out of time')
    .map(({ id, status, answer, said }) => `${id} ${status}: ${answer}\n${said ?? ''}`);

test('on the simulated node each step answers or says why not, as real drivers do', async (t) => {
  t.timeout(PROBE_MS);
  execFileSync('make', ['-C', join(ROOT, 'native'), '--silent', '--no-print-directory', '-j2', 'bench']);
  const listed = execFileSync('python3', [PROBE, '--list'], { encoding: 'utf8' }).trim().split('\n');
  const names = listed.map((line) => line.split(' ')[0] ?? '');
  // Most steps wait for most of their time. Each run has a node of its own.
  const runs = await Promise.all(
    Array.from({ length: AT_ONCE }, (_, run) => {
      const own = names.filter((_, index) => index % AT_ONCE === run).flatMap((name) => ['--step', name]);
      return probe(t, ['--simulated', '--managed', '--patience', '10', ...own]); // the tests' machine may be busy
    }),
  );
  const [first] = runs;
  const found = new Map(runs.flatMap(({ report }) => (report?.steps ?? []).map((step) => [step.id, step] as const)));
  const steps = names.flatMap((name) => found.get(name) ?? []);
  const report = first?.report && { ...first.report, steps };
  t.deepEqual(complaints(steps), []);
  for (const run of runs) {
    t.is(run.code, 0, run.text);
    t.true(run.report?.simulated);
    await noneLeft(run.mark);
  }
  for (const step of steps) {
    t.regex(step.answer, /\S/, step.id);
    t.is(step.how === '', step.status === 'not here', `${step.id} says how it was obtained`);
  }
  const asked = new Set(steps.flatMap((step) => step.questions));
  t.deepEqual(
    QUESTIONS.filter((question) => !asked.has(question)),
    [],
    'questions without a step',
  );

  if (!report) return;
  t.deepEqual(
    COMPARED.filter((path) => pathsOf(report, path).length === 0),
    [],
    'facts to compare of which the simulated node says nothing',
  );
  const known = JSON.parse(readFileSync(join(ROOT, 'test/gpu/disagreements.json'), 'utf8')) as Disagreement[];
  const files = readdirSync(OBSERVED).filter((name) => name.endsWith('.json'));
  t.true(files.includes('simulated-h100.json'));
  t.deepEqual(
    known.filter(
      ({ observations: of, reason }) =>
        of.length === 0 || of.some((name) => !files.includes(name)) || reason.trim() === '',
    ),
    [],
    'listed disagreements without an observation or a reason',
  );
  const observations = files.map(
    (name) => [name, JSON.parse(readFileSync(join(OBSERVED, name), 'utf8')) as Observation] as const,
  );
  t.deepEqual(
    observations.flatMap(([name, observed]) => disagreements(name, observed, report, known)),
    [],
  );
  const ids = (observation: Observation | undefined) => observation?.steps.map((step) => step.id);
  const committed = observations.find(([name]) => name === 'simulated-h100.json')?.[1];
  t.deepEqual(ids(committed), ids(report), 'simulated-h100.json is of the steps that there are');
});

test('programs that only run on real GPUs are Python that can be read', (t) => {
  const read =
    'import ast, pathlib, sys; [ast.parse(path.read_text(), str(path)) for path in pathlib.Path(sys.argv[1]).rglob("*.py")]';
  t.is(spawnSync('python3', ['-c', read, join(ROOT, 'test/gpu/probe')], { encoding: 'utf8' }).stderr, '');
});

test('a step with a new question runs before all repetitions', (t) => {
  const code =
    'import json, steps; print(json.dumps([[step.id, step.questions] for step in steps.ALL] + [list(steps.FIRST)]))';
  const result = JSON.parse(
    execFileSync('python3', ['-c', code], {
      encoding: 'utf8',
      env: { ...process.env, PYTHONPATH: join(ROOT, 'test/gpu/probe'), PYTHONDONTWRITEBYTECODE: '1' },
    }),
  ) as [string, string[]][];
  const first = result.pop() as unknown as string[];
  t.deepEqual(
    result.slice(0, first.length).map(([id]) => id),
    first,
  );
  const asked = new Set(result.slice(0, first.length).flatMap(([, questions]) => questions));
  t.deepEqual(
    QUESTIONS.filter((question) => !asked.has(question)),
    [],
    'questions that only later steps ask',
  );
});

test("the table names driver and GPU, and each step's question, answer and method", async (t) => {
  const { text } = await probe(t, ['--simulated', '--step', 'identity', '--step', 'gating.nccl']);
  t.regex(text, /^driver 580\.95\.05, CUDA 13\.0, NVIDIA H100 .*; SIMULATED: nothing here is a GPU result$/m);
  t.regex(
    text,
    /^answered +identity .* s {2}interposer 7\.1, interposer 2\.4: .*\n +of \d+ variants .*\n +how: cuGetProcAddress_v2 twice/m,
  );
  t.regex(text, /^not here +gating\.nccl .* s {2}interposer 7\.10: .*\n +NCCL's kernels .*\ndriver /m);
  t.regex(text, /^interposer 2\.4 +identity answered$/m);
  t.regex(text, /^interposer 7\.10 +gating\.nccl not here$/m);
});

test('an unknown step is refused with the names of those that there are', async (t) => {
  const { code, text } = await probe(t, ['--simulated', '--step', 'exports', '--step', 'exprots']);
  t.is(code, 2);
  t.regex(text, /no step exprots; there are exports, /);
});

const TROUBLE = `
import ctypes, os, subprocess, time
from step import Answer, NotHere, Step

def fine(context): return Answer("yes", "looked", {"one": 1})
def hang(context):
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)
def crash(context): ctypes.string_at(0)
def end(context): os._exit(0)
def wrong(context): raise ValueError("what is this?")
def absent(context): raise NotHere("there is no such thing")
def leaver(context):
    subprocess.Popen(["sleep", "600"])
    return fine(context)
def half(context):
    fine(context)
    return Answer("yes", "looked", {"not JSON": object()})
def noting(context):
    context.note({"first": 1})
    context.note({"first": 1, "second": 2})
    raise ValueError("no third")
def cut(context):
    context.note({"first": 1})
    time.sleep(600)
def lingerer(context):
    import atexit
    atexit.register(time.sleep, 600)
    return fine(context)

ALL = (
    Step("hang", (), "hangs", 2, hang), Step("crash", (), "crashes", 20, crash), Step("end", (), "ends", 20, end),
    Step("wrong", (), "raises", 20, wrong), Step("absent", (), "is not here", 20, absent),
    Step("leaver", (), "leaves a process", 20, leaver), Step("half", (), "answers half", 20, half),
    Step("noting", (), "notes and raises", 20, noting), Step("cut", (), "notes and hangs", 10, cut),
    Step("lingerer", (), "hangs after its answer", 10, lingerer), Step("long", (), "has less time than it may take", 481, fine),
    Step("endless", (), "hangs until the end", 481, hang), Step("fine", (), "answers", 20, fine),
)
`;

/** The environment in which the probe finds these steps, or some of them in the words of Python. */
function troubles(t: ExecutionContext, some = 'ALL'): Record<string, string> {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'steps'));
  writeFileSync(join(folder, 'steps/__init__.py'), `${TROUBLE}ALL = ${some}\n`);
  return { COTENANT_PROBE_STEPS: folder };
}

test('a step that hangs, crashes or leaves processes behind costs only itself', async (t) => {
  // Each has a time of its own that a busy machine does not use up, and all of them too.
  const { code, text, report, mark } = await probe(t, ['--simulated'], troubles(t, 'ALL[:-3]'));
  t.deepEqual(
    (report?.steps ?? []).map(({ id, status }) => [id, status]),
    [
      ['hang', 'out of time'],
      ['crash', 'failed'],
      ['end', 'failed'],
      ['wrong', 'failed'],
      ['absent', 'not here'],
      ['leaver', 'answered'],
      ['half', 'failed'],
      ['noting', 'failed'],
      ['cut', 'out of time'],
      ['lingerer', 'answered'],
    ],
    text,
  );
  t.is(code, 1);
  const answers = new Map((report?.steps ?? []).map((step) => [step.id, step]));
  t.is(answers.get('hang')?.answer, 'not within 2 s');
  t.is(answers.get('wrong')?.answer, 'ValueError: what is this?');
  t.is(answers.get('absent')?.answer, 'there is no such thing');
  t.deepEqual(answers.get('leaver')?.data, { one: 1 });
  t.deepEqual(answers.get('noting')?.data, { first: 1, second: 2 }, 'what it had noted is kept');
  t.is(answers.get('noting')?.answer, 'ValueError: no third');
  t.deepEqual(answers.get('cut')?.data, { first: 1 });
  t.deepEqual(answers.get('lingerer')?.data, { one: 1 });
  t.is(answers.get('lingerer')?.afterwards, 'not within 10 s');
  await noneLeft(mark);
});

test('a step may take what is left of the total, and the next ones are not begun', async (t) => {
  const { code, text, report, mark } = await probe(t, ['--simulated', '--total', '30'], troubles(t, 'ALL[-3:]'));
  t.deepEqual(
    (report?.steps ?? []).map(({ id, status }) => [id, status]),
    [
      ['long', 'answered'],
      ['endless', 'out of time'],
      ['fine', 'out of time'],
    ],
    text,
  );
  t.is(code, 1);
  t.is(report?.steps.at(-1)?.answer, "the probe's 30 s are used up");
  await noneLeft(mark);
});

test('a repeated step replaces only its own result, on the same machine only', async (t) => {
  const out = join(temporaryFolder(t), 'report.json');
  const again = async (...steps: string[]) =>
    probe(t, ['--simulated', ...steps.flatMap((name) => ['--step', name])], troubles(t), { out });
  await again('leaver', 'absent');
  const { report } = await again('fine', 'absent');
  t.deepEqual(
    report?.steps.map(({ id, status }) => [id, status]),
    [
      ['absent', 'not here'],
      ['leaver', 'answered'],
      ['fine', 'answered'],
    ],
  );
  writeFileSync(out, JSON.stringify({ ...report, driver: '1.2.3' }));
  const other = await again('fine');
  t.is(other.code, 2);
  t.regex(other.text, /report\.json is of another machine: driver there is 1\.2\.3, here \d+/);
  t.is(other.report?.driver, '1.2.3');
});

test('the interposer is not asked in the place of the driver', async (t) => {
  const form = join(ROOT, 'native/build/libcotenant.so');
  const folder = temporaryFolder(t);
  copyFileSync(form, join(folder, 'libcuda.so.1'));
  const { code, text, report } = await probe(t, ['--step', 'fine'], { ...troubles(t), LD_LIBRARY_PATH: folder });
  t.is(code, 2);
  t.regex(text, /Cotenant's interposer is in this process/);
  t.is(report, undefined);
});

test('a simulated driver is not taken for a real one because a flag is missing', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { code, text, report } = await probe(t, ['--step', 'fine'], { ...troubles(t), LD_LIBRARY_PATH: node.lib });
  t.is(code, 2);
  t.regex(text, /the first GPU \(GPU-51a0c07e-4a27-4551-8d21-6e10\w+\) is a simulated one: .*--simulated/);
  t.is(report, undefined);
});

test('a probe that gets SIGTERM ends its step and the simulator, and keeps results', async (t) => {
  const interrupt = (child: ChildProcess, step: string) => {
    if (step === 'endless') child.kill('SIGTERM');
  };
  const steps = ['--step', 'absent', '--step', 'endless'];
  const { code, report, mark } = await probe(t, ['--simulated', ...steps], troubles(t), { interrupt });
  t.is(code, 143);
  t.deepEqual(
    report?.steps.map(({ id, status }) => [id, status]),
    [['absent', 'not here']],
    'what was found out until then is in the file',
  );
  await noneLeft(mark);
});

const step = (id: string, data: StepResult['data'], status: StepResult['status'] = 'answered'): StepResult => ({
  id,
  questions: [],
  status,
  answer: '',
  how: '',
  data,
});
const observation = (simulated: boolean, ...steps: StepResult[]): Observation => ({
  format: 1,
  simulated,
  driver: '',
  cuda: 13000,
  steps,
});
const entry = (fact: string, of = 'gpu.json'): Disagreement => ({ observations: [of], fact, reason: 'harmless' });
const SIMULATED = observation(
  true,
  step('memory', { granule: 2, sizes: { '1': 2, '3': 4 }, releasedS: 1 }),
  step('lists', { all: { a: { code: 0, count: 2 }, b: { code: 0, count: 2 } } }),
);
const DIFFERENT = [step('memory', { granule: 2, sizes: { '1': 2, '3': 6 }, releasedS: 9 })];
const COMPARISONS: {
  what: string;
  observed: Observation;
  known?: Disagreement[];
  compared?: string[];
  wrong: string[];
}[] = [
  { what: 'the same facts', observed: SIMULATED, wrong: [] },
  {
    what: 'another value, times left out',
    observed: observation(false, ...DIFFERENT),
    wrong: ['gpu.json: memory/sizes/3: 6, simulated 4'],
  },
  {
    what: 'a listed difference of hardware',
    observed: observation(false, ...DIFFERENT),
    known: [entry('memory/sizes')],
    wrong: [],
  },
  {
    what: 'a difference for another file or with a longer name',
    observed: observation(false, ...DIFFERENT),
    known: [entry('memory/sizes', 'other.json'), entry('memory/size')],
    wrong: ['gpu.json: memory/sizes/3: 6, simulated 4', 'gpu.json: memory/size is listed and does not disagree'],
  },
  {
    what: 'a listed difference of a simulated run',
    observed: observation(true, ...DIFFERENT),
    known: [entry('memory/sizes')],
    wrong: ['gpu.json: memory/sizes/3: 6, simulated 4'],
  },
  {
    what: 'one fact of each entry, and no other',
    observed: observation(false, step('lists', { all: { a: { code: 0, count: 9 }, b: { code: 1 }, other: {} } })),
    compared: ['lists/all/*/code'],
    wrong: ['gpu.json: lists/all/b/code: 1, simulated 0'],
  },
  { what: 'a step that could not answer', observed: observation(false, step('memory', {}, 'not here')), wrong: [] },
  {
    what: 'a step that came to nothing',
    observed: observation(false, step('memory', {}, 'failed'), step('other', {}, 'out of time')),
    known: [entry('other')],
    wrong: ['gpu.json: memory: failed: '],
  },
  {
    what: 'a listed difference that does not exist',
    observed: observation(false, step('memory', { granule: 2, sizes: {} })),
    known: [entry('memory/granule')],
    wrong: ['gpu.json: memory/granule is listed and does not disagree'],
  },
];
for (const { what, observed, known = [], compared = ['memory'], wrong } of COMPARISONS) {
  test(`comparison of observations: ${what}`, (t) => {
    const found = disagreements('gpu.json', observed, SIMULATED, known, compared);
    t.deepEqual(found, wrong);
  });
}
