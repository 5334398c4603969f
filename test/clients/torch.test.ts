// PyTorch's and Triton's wheels without Cotenant, preloaded and mounted. Their CUDA runtime is the preloaded stand-in
// of cudart/: the loader takes a loaded object of the requested name and does not look in the wheel's folders. The
// wheels are gigabytes, so these tests run in test:long only.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { BUILD, startNode } from '../support/native/node.ts';
import { MIB } from '../support/product/grant.ts';
import { checksums, startHolder, surroundings, WAYS } from './client.ts';
import { wheels } from './wheels.ts';

const BLOCK = 80 * MIB;
const SLICE = 2048 * MIB;
const GPU = 'l4,memory=6Gi';
const KERNEL_US = 50;
const LAUNCHES = 200;
const PROGRAMS = join(import.meta.dirname, 'programs/python');
const STAND_IN = { LD_PRELOAD: join(BUILD, 'tests/cudart/libcudart.so.12'), PYTHONDONTWRITEBYTECODE: '1' };

const torch = wheels();
const python = torch.ok ? join(torch.folder, 'bin/python') : '';
const [lib = ''] = torch.ok ? readdirSync(join(torch.folder, 'lib')) : [];
const packages = torch.ok ? join(torch.folder, 'lib', lib, 'site-packages') : '';
const folders = torch.ok
  ? [join(BUILD, 'simulated'), ...['nvidia', 'torch', 'triton'].map((name) => join(packages, name))]
  : [];
const before = checksums(folders);

function withTorch(title: string, implementation: (t: ExecutionContext) => Promise<void> | void): void {
  if (!torch.ok) {
    test.serial.skip(`${title} (${torch.reason})`, () => {});
    return;
  }
  test.serial(title, async (t) => {
    t.timeout(900_000);
    await implementation(t);
  });
}

type Said = {
  readonly total: number;
  readonly free: number;
  readonly idle: number;
  readonly full: number;
  readonly blocks: number;
  readonly propertyTotal: number;
  readonly error: string;
  readonly message: string;
  readonly notSupported: number;
  /** The part that no limit affects. */
  readonly alike: {
    readonly available: boolean;
    readonly steps: readonly (readonly unknown[])[];
    /** Calls that need the runtimes inside cuBLAS and cuDNN. */
    readonly refused: readonly string[];
  };
};

for (const [allocator, kind, configuration] of [
  ['PyTorch', 'linear', 'expandable_segments:False'],
  ['PyTorch with expandable segments', 'vmm', 'expandable_segments:True'],
] as const) {
  withTorch(`${allocator} fills the GPU, or its grant, up to OutOfMemoryError`, async (t) => {
    const node = await startNode(t, '--gpu', GPU, '--gpu', GPU, '--kernel-us', String(KERNEL_US));
    const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
    const found: Record<string, unknown> = {};
    for (const way of WAYS) {
      const usableBytes = way === 'direct' ? node.usable(0) : SLICE;
      const env = surroundings(t, node, way, SLICE, { ...STAND_IN, PYTORCH_CUDA_ALLOC_CONF: configuration });
      const holder = await startHolder(t, [python, join(PROGRAMS, 'torch_fill.py')], env);
      const said = holder.filled as unknown as Said;
      t.deepEqual(
        [said.total, said.propertyTotal],
        [usableBytes, usableBytes],
        `${way}: the total, by both ways to ask`,
      );
      t.is(said.free, usableBytes - contextBytes, way);
      t.true(said.alike.available, way);
      const [tensor, copied, , emptied] = said.alike.steps;
      t.deepEqual(tensor, ['tensor', 100 * MIB, 100 * MIB], `${way}: allocated and reserved`);
      t.deepEqual(copied?.slice(3), [true, true], `${way}: copied there and back, pinned`);
      t.deepEqual(emptied, ['emptied', 0, 0], way);
      t.is(said.notSupported, 0, way);
      t.deepEqual(
        said.alike.refused.map((text) => /CU\w+_STATUS_\w+/.exec(text)?.[0]),
        ['CUBLAS_STATUS_NOT_INITIALIZED', 'CUDNN_STATUS_NOT_INITIALIZED'],
        way,
      );
      const blocks = Math.floor(said.idle / BLOCK);
      t.deepEqual([said.blocks, said.full], [blocks, said.idle - blocks * BLOCK], way);
      t.is(said.error, 'torch.OutOfMemoryError', `${way}: ${said.message}`);
      t.regex(said.message, /^CUDA out of memory\. Tried to allocate 80\.00 MiB\./, way);
      t.true(
        said.message.includes(`has a total capacity of ${(usableBytes / 1024 / MIB).toFixed(2)} GiB`),
        said.message,
      );
      const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
      t.is(held?.bytes, usableBytes - said.idle + blocks * BLOCK, `${way}: the driver's own count`);
      t.true((held?.[kind] ?? 0) >= blocks * BLOCK, `${way}: by the allocator that was asked for`);
      t.true((held?.peak ?? Infinity) <= usableBytes, `${way}: never more than granted`);
      // All kernels last the same, so the time is the number of launches, including replayed ones.
      found[way] = [said.alike, said.free - said.idle, (held?.smNs ?? 0) / (KERNEL_US * 1000)];
      t.is(await holder.end(), 0, `${way}: ${holder.errors().join('\n')}`);
    }
    t.log(found.direct);
    t.deepEqual([found.preloaded, found.mounted], [found.direct, found.direct]);
  });
}

withTorch('a Triton kernel is compiled for the GPU, loaded and launched as often as asked', async (t) => {
  const node = await startNode(t, '--gpu', GPU, '--kernel-us', String(KERNEL_US));
  const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
  for (const way of WAYS) {
    const env = surroundings(t, node, way, SLICE, {
      ...STAND_IN,
      TRITON_CACHE_DIR: join(node.folder, `triton-${way}`),
    });
    const holder = await startHolder(t, [python, join(PROGRAMS, 'triton_add.py'), String(LAUNCHES)], env);
    const said = holder.filled as unknown as { readonly reserved: number };
    t.deepEqual(
      said,
      {
        target: ['cuda', 89],
        name: 'add',
        capability: [8, 9],
        elf: '\x7fELF',
        entries: 1,
        loaded: true,
        reserved: 20 * MIB,
      } as unknown as typeof said,
      way,
    );
    t.true(existsSync(env.TRITON_CACHE_DIR ?? ''), `${way}: compiled in this run`);
    const held = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0];
    t.is(held?.bytes, contextBytes + said.reserved, `${way}: the driver's own count`);
    t.is(held?.smNs, LAUNCHES * KERNEL_US * 1000, `${way}: the time of so many kernels`);
    t.is(await holder.end(), 0, `${way}: ${holder.errors().join('\n')}`);
  }
});

withTorch("the driver's libraries and those of the wheels are unchanged", (t) => {
  t.true(Object.keys(before).length >= 50);
  t.true(Object.keys(before).some((path) => path.endsWith('libtorch_cuda.so')));
  t.deepEqual(checksums(folders), before);
});
