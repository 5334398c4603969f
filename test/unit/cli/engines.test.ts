// `cotenant docker run`: which options are its own, cGPU's variables, and what would give a container more than its
// share.
import test from 'ava';
import { cgpuShare, docker, podman, variablesOf } from '../../../src/cli/commands/grants/engines.ts';
import { type Parsed, parse } from '../../../src/cli/lib/command.ts';

const GIB = 2 ** 30;
const parsed = (...args: readonly string[]): Parsed => {
  const result = parse(docker, args);
  if (result === 'help') throw new Error('help');
  return result;
};

test('own options come first, and everything else is passed on', (t) => {
  const { values, operands } = parsed(
    'run',
    '-m',
    '4Gi',
    '--gpu-cores=25',
    '--rm',
    '-m',
    '2g',
    'img',
    'python',
    '-m',
    'x',
  );
  t.like(values, { 'gpu-memory': '4Gi', 'gpu-cores': '25' });
  t.deepEqual(operands, ['--rm', '-m', '2g', 'img', 'python', '-m', 'x']);
  t.like(parsed('run', '-m4Gi', '--no-memory-isolation', 'img', '--gpus', '2'), {
    values: { 'gpu-memory': '4Gi', 'no-memory-isolation': true },
    operands: ['img', '--gpus', '2'],
  });
  t.is(parse(docker, ['run', '-m', '4Gi', '--help']), 'help');
  t.deepEqual(parsed('run', 'img', '--help').operands, ['img', '--help']);
  t.throws(() => parse(podman, ['ps']), { message: /podman ps: only "podman run" needs a grant/ });
});

test('variables are read in every form that docker takes', (t) => {
  process.env.COTENANT_TEST_VALUE = 'x';
  const variables = variablesOf(['-e', 'A=1', '--env', 'B=2=3', '--env=C=4', '-eD=5', '-e', 'COTENANT_TEST_VALUE']);
  t.deepEqual(Object.fromEntries(variables), { A: '1', B: '2=3', C: '4', D: '5', COTENANT_TEST_VALUE: 'x' });
});

const PREFIX = 'ALIYUN_COM_GPU';
test("cGPU's variables ask for its share of the GPU, its weight and its priority", (t) => {
  const share = (...entries: readonly (readonly [string, string])[]) =>
    cgpuShare(parsed('run', 'img'), new Map(entries));
  t.like(share([`${PREFIX}_MEM_CONTAINER`, '3'], [`${PREFIX}_MEM_DEV`, '15']), {
    shares: [{ memory: { kind: 'units', units: 3, unitBytes: GIB, rounding: 'cgpu' } }],
    isolateMemory: true,
    compute: {},
  });
  t.like(share([`${PREFIX}_MEM_CONTAINER`, '3'], [`${PREFIX}_SCHD_WEIGHT`, '4'], [`${PREFIX}_HIGH_PRIO`, '1']), {
    compute: { weight: 4, policy: 'weighted', priority: 'high' },
  });
  t.like(share([`${PREFIX}_MEM_CONTAINER`, '3'], ['CGPU_DISABLE', 'true']), { isolateMemory: false });
  t.is(share([`${PREFIX}_MEM_CONTAINER`, '0']), undefined, 'zero switches cGPU off');
  t.is(share(['CGPU_DISABLE', '1']), undefined);
  t.throws(() => share([`${PREFIX}_MEM_CONTAINER`, '3Gi']), {
    message: /MEM_CONTAINER=3Gi: want 0 to 65536 GiB; write 3$/,
  });
  t.throws(() => share([`${PREFIX}_MEM_CONTAINER`, '3'], [`${PREFIX}_SCHD_WEIGHT`, '"4"']), {
    message: /want 1 to 25; write 4$/,
  });
  t.throws(() => share([`${PREFIX}_MEM_CONTAINER`, '16'], [`${PREFIX}_MEM_DEV`, '15']), { message: /is more than/ });
});

for (const gpus of ['all', 'device=0', '"device=0,2"', 'count=2', 'driver=nvidia,count=1']) {
  test(`docker's own --gpus ${gpus} before -m is known for what it is`, (t) => {
    const message = new RegExp(
      `^--gpus ${gpus}: is docker's own option for whole GPUs; leave it out, or write the number`,
    );
    t.throws(() => parsed('run', '--gpus', gpus, '-m', '1Gi', 'img'), { message });
  });
}

const REFUSED: readonly (readonly [args: readonly string[], says: RegExp])[] = [
  [['-m', '1Gi', '--restart', 'always', 'img'], /--restart always: the share ends with the container/],
  [['-m', '1Gi', '--restart=on-failure:3', 'img'], /--restart on-failure:3/],
  [['-m', '1Gi', '--rm', '--gpus', 'all', 'img'], /--gpus all: gives docker's container whole GPUs/],
  [['-m', '1Gi', '--device', 'nvidia.com/gpu=0', 'img'], /--device nvidia.com\/gpu=0/],
  [['-m', '1Gi', '--runtime=nvidia', 'img'], /--runtime nvidia/],
  [['-m', '1Gi', '-e', 'NVIDIA_VISIBLE_DEVICES=all', 'img'], /NVIDIA_VISIBLE_DEVICES/],
  [['--rm', '-m', '1Gi', 'img'], /cotenant's options come directly after "docker run"/],
  [['--rm', 'img'], /--gpu-memory is missing/],
  [['-m', '1Gi', '-e', `${PREFIX}_MEM_CONTAINER=1`, 'img'], /want one of them/],
  [['-m', '1Gi'], /the image is missing/],
];
for (const [args, says] of REFUSED) {
  test(`refused before an engine starts: ${args.join(' ')}`, async (t) => {
    await t.throwsAsync(
      docker.run(parsed('run', ...args), async () => []),
      { message: says },
    );
  });
}
