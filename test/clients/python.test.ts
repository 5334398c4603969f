// Third-party Python programs: the test programs of NVIDIA's driver bindings and of Numba, each without Cotenant,
// preloaded and mounted. The same tests pass in each way. Also NVIDIA's own runtime.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY } from '../support/native/client.ts';
import { BUILD, startNode } from '../support/native/node.ts';
import { MIB } from '../support/product/grant.ts';
import { type PythonEnvironment, pythonEnvironment } from '../support/toolchains/venv.ts';
import { checksums, complete, startHolder, surroundings, WAYS } from './client.ts';

const BLOCK = 64 * MIB;
const SLICE = 2048 * MIB;
const GPU = 'l4,memory=6Gi';
const LONG = process.env.COTENANT_CLIENTS === 'long';

// The last release whose wheel contains its tests.
const bindings = pythonEnvironment([
  'cuda-python==12.4.0',
  'numpy==1.26.4',
  'pytest==9.2.0',
  'nvidia-cuda-runtime-cu12==12.9.79',
]);
const numba = pythonEnvironment([
  'numba-cuda[cu13]==0.30.4',
  'numba==0.68.1',
  'cuda-toolkit==13.5.0',
  'filecheck==1.0.6',
  'pytest==9.2.0',
  'psutil==7.2.2',
]);

/** Skips the test with the reason if the packages cannot be installed. */
function withPackages(
  title: string,
  environment: PythonEnvironment,
  implementation: (t: ExecutionContext, python: string, packages: string) => Promise<void>,
): void {
  if (!environment.ok) {
    test.serial.skip(`${title} (${environment.reason})`, () => {});
    return;
  }
  const { folder } = environment;
  const [lib = ''] = readdirSync(join(folder, 'lib'));
  test.serial(title, async (t) => {
    t.timeout(900_000);
    await implementation(t, join(folder, 'bin/python'), join(folder, 'lib', lib, 'site-packages'));
  });
}

const folders = [
  join(BUILD, 'simulated'),
  ...[bindings, numba].flatMap((environment) => (environment.ok ? [join(environment.folder, 'lib')] : [])),
];
const before = checksums(folders);

/** Name and result of each test, from the output of pytest -v and unittest -v. */
function results(text: string): Record<string, string> {
  const pytest = [...text.matchAll(/^\S*?(\w+\.py::\S+) (PASSED|FAILED|SKIPPED|ERROR)/gm)];
  const unittest = [...text.matchAll(/^\w+ \((\S+)\)(?:\n.*?)? \.\.\. (?:.*?\n)*?(ok|FAIL|ERROR|skipped)\b/gm)];
  return Object.fromEntries([...pytest, ...unittest].map(([, name = '', how = '']) => [name, how.toLowerCase()]));
}

/** Runs test programs in each way; the results must be the same, with at least `passing` passed tests. */
async function alike(
  t: ExecutionContext,
  cuda: string,
  commands: readonly (readonly string[])[],
  passing: number,
): Promise<void> {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4', '--cuda', cuda);
  const found: Record<string, Record<string, string>> = {};
  for (const way of WAYS) {
    const env = surroundings(t, node, way, SLICE, { PYTHONDONTWRITEBYTECODE: '1' });
    found[way] = {};
    for (const command of commands) {
      const { out, errors, signal } = await complete(t, command, env, node.folder);
      t.is(signal, null, `${way}: ${command.at(-1)}: ${errors.slice(-2000)}`);
      Object.assign(found[way], results(out + errors));
    }
  }
  const { direct = {}, preloaded, mounted } = found;
  const passed = Object.values(direct).filter((how) => how === 'passed' || how === 'ok').length;
  t.log(`${passed} of ${Object.keys(direct).length} pass on the simulated driver, in each way`);
  t.true(passed >= passing, `${passed} pass without us`);
  t.deepEqual(preloaded, direct);
  t.deepEqual(mounted, direct);
}

withPackages(
  "the test programs of NVIDIA's driver bindings end as without Cotenant",
  bindings,
  async (t, python, packages) => {
    const programs = ['test_cuda.py', 'test_cudart.py', 'test_interoperability.py', 'test_cython.py'];
    const pytest = [python, '-m', 'pytest', '-v', '--tb=no', '-p', 'no:cacheprovider'];
    await alike(
      t,
      '12040',
      programs.map((name) => [...pytest, join(packages, 'cuda/tests', name)]),
      44,
    );
  },
);

const MODULES = ['array_attr', 'context_stack', 'cuda_memory', 'deallocations', 'detect', 'emm_plugins', 'events'];
const MORE = ['host_alloc', 'pinned', 'reset_device', 'select_device', 'streams'];
withPackages("Numba's own tests of its driver layer end as without Cotenant", numba, async (t, python) => {
  const all = 'numba.cuda.tests.cudadrv';
  const chosen = LONG ? [all] : [...MODULES, ...MORE].map((name) => `${all}.test_${name}`);
  await alike(t, '13000', [[python, '-m', 'numba.runtests', '-v', ...chosen]], LONG ? 200 : 60);
});

withPackages('Numba fills the GPU, or its grant, and raises its usual exception', numba, async (t, python) => {
  const node = await startNode(t, '--gpu', GPU, '--gpu', GPU);
  const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
  const kept: number[] = [];
  for (const way of WAYS) {
    const available = way === 'direct' ? node.usable(0) : SLICE;
    const program = [python, '-W', 'ignore', join(import.meta.dirname, 'programs/python/numba_fill.py')];
    const holder = await startHolder(t, program, surroundings(t, node, way, SLICE));
    const { filled } = holder;
    // Memory of its kernel and its runtime, the same in each way.
    kept.push(filled.free - filled.idle);
    const blocks = Math.floor(filled.idle / BLOCK);
    t.deepEqual([filled.total, filled.free], [available, available - contextBytes], way);
    t.deepEqual([filled.blocks, filled.refusal, filled.again], [blocks, OUT_OF_MEMORY, 0], way);
    const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
    t.is(held?.bytes, available - filled.idle + blocks * BLOCK, `${way}: the driver's own count`);
    t.is(await holder.end(), 0, way);
  }
  t.deepEqual(kept, [kept[0], kept[0], kept[0]]);
});

for (const [environment, library] of [
  [bindings, 'nvidia/cuda_runtime/lib/libcudart.so.12'],
  [numba, 'nvidia/cu13/lib/libcudart.so.13'],
] as const) {
  const title = `NVIDIA's ${library.split('/').at(-1)} does not take the simulated driver for a genuine one, with us or without`;
  withPackages(title, environment, async (t, python, packages) => {
    const node = await startNode(t, '--gpu', GPU);
    const program = [python, join(import.meta.dirname, 'programs/python/runtime.py'), join(packages, library)];
    const answers: Record<string, unknown> = {};
    for (const way of WAYS) {
      const { out, errors } = await complete(t, program, surroundings(t, node, way, SLICE));
      answers[way] = out === '' ? errors : JSON.parse(out);
    }
    t.log(answers.direct);
    t.not((answers.direct as { memory: number }).memory, 0);
    t.deepEqual([answers.preloaded, answers.mounted], [answers.direct, answers.direct]);
  });
}

test.serial('the libraries of driver and packages are unchanged after the tests', (t) => {
  t.true(Object.keys(before).length >= 6);
  t.deepEqual(checksums(folders), before);
});
