// Symbol look-ups by the driver itself and by tools in front of it, GPUs in any order, and debugged processes.
import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY, readyClient, startClient } from '../../../support/native/client.ts';
import { BUILD, environment, interposerFiles, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';

test("the driver's own look-ups find the driver, also while it is being loaded", (t) => {
  const folder = temporaryFolder(t);
  for (const name of interposerFiles()) symlinkSync(join(BUILD, name), join(folder, name));
  const version = (preload?: string) =>
    execFileSync(join(BUILD, 'tests/client'), ['libcuda.so.1', 'version', 'version'], {
      input: '',
      encoding: 'utf8',
      env: environment({ LD_LIBRARY_PATH: join(BUILD, 'tests/self_lookup') }, preload),
    })
      .trim()
      .split('\n');
  t.deepEqual(version(), ['0 4', '0 6']);
  t.deepEqual(version(join(folder, 'libcotenant.so')), ['0 4', '0 6']);
});

test('RTLD_NEXT and RTLD_DEFAULT still lead through other preloaded tools', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
  const [one, two] = [join(BUILD, 'tests/tool1.so'), join(BUILD, 'tests/tool2.so')];
  for (const [preload, through] of [
    [[grant.cuda], 0],
    [[one, grant.cuda], 1],
    [[two, one, grant.cuda], 3],
    [[two, grant.cuda, one], 2],
    [[grant.cuda, one, two], 0],
  ] as const) {
    const client = await readyClient(t, node, { preload: preload.join(' ') });
    t.is(await client.must('default-info'), 300 * MIB + through);
    t.is((await client.ask('info'))[2], 300 * MIB, "asked of the driver's library itself no tool comes in between");
    await client.end();
  }
});

test('limits follow the GPU, in whatever order a program chooses its GPUs', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4', '--gpu', 't4');
  const limits = [200 * MIB, 300 * MIB, 250 * MIB];
  const grant = makeGrant(
    t,
    node,
    limits.map((memoryBytes, gpu) => ({ gpu, memoryBytes })),
  );
  const uuid = [0, 1, 2].map((gpu) => node.uuid(gpu));
  const own = (gpu: number) => {
    const others = uuid.filter((_, index) => index !== gpu);
    const length = [...(uuid[gpu] ?? '')].findIndex((_, end) =>
      others.every((other) => !other.startsWith((uuid[gpu] ?? '').slice(0, end + 1))),
    );
    return (uuid[gpu] ?? '').slice(0, length + 1);
  };
  for (const [visible, gpus] of [
    [undefined, [0, 1, 2]],
    ['2,0', [2, 0]],
    ['1', [1]],
    [`${uuid[1]}`, [1]],
    [`${uuid[2]},${uuid[1]},${uuid[0]}`, [2, 1, 0]],
    [`${own(2)},${own(0)}`, [2, 0]],
    [`2,${uuid[0]}`, [2, 0]],
    [`1,MIG-${uuid[0]}/1/0,0`, [1]],
    ['0,-1,2', [0]],
  ] as const) {
    const env: Record<string, string> = visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: visible };
    const client = startClient(t, node, { preload: grant.cuda, env });
    await client.must('init');
    t.is(await client.must('count'), gpus.length, visible);
    for (const [device, gpu] of gpus.entries()) {
      const limit = limits[gpu] ?? 0;
      t.is(await client.must(`total ${device}`), limit, `${visible}: device ${device}`);
      await client.must(`context ${device}`);
      const context = node.usage().gpus[gpu]?.contextBytes ?? 0;
      t.is((await client.ask(`alloc ${limit - context + 2 * MIB}`))[0], OUT_OF_MEMORY, visible);
      await client.must(`alloc ${limit - context}`);
      t.is(node.usage().gpus[gpu]?.usedBytes, limit, `${visible}: GPU ${gpu} is full to its own limit`);
    }
    await client.kill();
  }
});

test('a debugger and a profiler are noted in the ledger and change no limit', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const folder = temporaryFolder(t);
  const injected = join(folder, 'libToolsInjection64.so');
  copyFileSync(join(BUILD, 'tests/tool1.so'), injected);
  for (const [preload, observers] of [
    [undefined, 0],
    [injected, 2],
  ] as const) {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
    const client = await readyClient(t, node, { preload: `${preload ?? ''} ${grant.cuda}` });
    const slot = 64 + 64; // behind the header and one GPU's total
    t.is(Number(readFileSync(join(grant.folder, 'ledger')).readBigUInt64LE(slot + 40)), observers);
    t.is((await client.ask(`alloc ${300 * MIB}`))[0], OUT_OF_MEMORY);
    await client.end();
  }
});
