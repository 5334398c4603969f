// Programs of the CUDA runtime, without Cotenant, preloaded and mounted: one linked to the shared runtime, for which
// cudart/ stands in, and one with NVIDIA's static runtime, which does not accept the simulated driver.
import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY } from '../support/native/client.ts';
import { BUILD, COMPILER, startNode, temporaryFolder } from '../support/native/node.ts';
import { MIB } from '../support/product/grant.ts';
import { pythonEnvironment } from '../support/toolchains/venv.ts';
import { checksums, complete, type Filled, startHolder, surroundings, WAYS } from './client.ts';

const BLOCK = 64 * MIB;
const SLICE = 1024 * MIB;
const GPU = 'l4,memory=6Gi';
const INVALID_DEVICE_FUNCTION = 98;
const NOT_SUPPORTED = 801;

const nvidia = pythonEnvironment(['nvidia-cuda-runtime-cu12==12.9.79']);
const packages = nvidia.ok ? join(nvidia.folder, 'lib') : '';
const folders = [join(BUILD, 'simulated'), join(BUILD, 'tests/cudart'), ...(nvidia.ok ? [packages] : [])];
const before = checksums(folders);

type Runtime = Filled & {
  readonly devices: number;
  readonly name: string;
  readonly propertyTotal: number;
  /** 1: data written to blocks of the GPU was read back unchanged. */
  readonly same: number;
  /** Bytes that the pool kept while its release threshold was unlimited. */
  readonly reserved: number;
  readonly nodes: Readonly<Record<'all' | 'kernel' | 'fill' | 'allocation' | 'free', number>>;
  /** Result of launching something that is no kernel, and the thread's last error afterwards. */
  readonly strange: readonly number[];
  readonly dot: number;
  /** Last error at the refusal: peeked, taken, and once more. */
  readonly errors: readonly number[];
  readonly poolRefusal: number;
  readonly graphRefusal: number;
  readonly notSupported: number;
};

test.serial('a program of the shared CUDA runtime fills the GPU, or its grant', async (t) => {
  const node = await startNode(t, '--gpu', GPU, '--gpu', GPU);
  const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
  for (const way of WAYS) {
    const available = way === 'direct' ? node.usable(0) : SLICE;
    const blocks = Math.floor((available - contextBytes) / BLOCK);
    const holder = await startHolder(t, [join(BUILD, 'tests/clients/runtime')], surroundings(t, node, way, SLICE));
    const filled = holder.filled as Runtime;
    t.deepEqual([filled.devices, filled.name], [2, 'NVIDIA L4'], way);
    t.deepEqual([filled.total, filled.propertyTotal], [available, available], `${way}: the total, by both ways to ask`);
    t.deepEqual(
      [filled.free, filled.idle],
      [available - contextBytes, available - contextBytes],
      `${way}: all came back`,
    );
    t.is(filled.same, 1, `${way}: copies and fills`);
    t.is(filled.reserved, 96 * MIB, `${way}: the pool`);
    t.deepEqual(filled.nodes, { all: 5, kernel: 2, fill: 1, allocation: 1, free: 1 }, `${way}: the captured graph`);
    t.deepEqual(filled.strange, [INVALID_DEVICE_FUNCTION, INVALID_DEVICE_FUNCTION], way);
    t.deepEqual([filled.dot, filled.notSupported], [NOT_SUPPORTED, 1], `${way}: reported and counted`);
    t.deepEqual([filled.blocks, filled.refusal, filled.again], [blocks, OUT_OF_MEMORY, 0], way);
    t.deepEqual(filled.errors, [OUT_OF_MEMORY, OUT_OF_MEMORY, 0], `${way}: the thread's last error`);
    t.deepEqual([filled.poolRefusal, filled.graphRefusal], [OUT_OF_MEMORY, OUT_OF_MEMORY], way);
    t.is(filled.full, available - contextBytes - blocks * BLOCK, `${way}: free at the end`);
    const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
    t.is(held?.bytes, contextBytes + blocks * BLOCK, `${way}: the driver's own count`);
    t.true((held?.peak ?? Infinity) <= available, `${way}: never more than granted`);
    t.is(await holder.end(), 0, way);
    t.deepEqual(holder.errors(), [], way);
  }
});

if (nvidia.ok) {
  test.serial("NVIDIA's runtime linked into a program does not accept the simulated driver", async (t) => {
    const [lib = ''] = readdirSync(packages);
    const archive = join(packages, lib, 'site-packages/nvidia/cuda_runtime/lib/libcudart_static.a');
    const program = join(temporaryFolder(t), 'static');
    const object = join(BUILD, 'tests/clients/runtime-static.o');
    execFileSync(COMPILER, [object, archive, '-ldl', '-lpthread', '-lrt', '-o', program]);
    const node = await startNode(t, '--gpu', GPU);
    const answers: Record<string, unknown> = {};
    for (const way of WAYS) {
      const { out, errors, code } = await complete(t, [program], surroundings(t, node, way, SLICE));
      t.is(code, 0, `${way}: ${errors}`);
      answers[way] = JSON.parse(out);
    }
    t.log(answers.direct);
    t.not((answers.direct as { memory: number }).memory, 0);
    t.deepEqual([answers.preloaded, answers.mounted], [answers.direct, answers.direct]);
  });
} else {
  test.serial.skip(`NVIDIA's runtime linked into a program (${nvidia.reason})`, () => {});
}

test.serial('the libraries are unchanged after the tests', (t) => {
  t.true(Object.keys(before).length >= 7);
  t.deepEqual(checksums(folders), before);
});
