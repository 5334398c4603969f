import { execFileSync } from 'node:child_process';
import { readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY, readyClient, startClient } from '../../../support/native/client.ts';
import { BUILD, environment, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { type GrantGpu, MIB, makeGrant } from '../../../support/product/grant.ts';

const [INVALID_DEVICE, NOT_SUPPORTED] = [101, 801];
const GIB = 1024 * MIB;
/** What a real driver did (test/gpu/observed/README.md). */
const OBSERVED = join(import.meta.dirname, '../../../gpu/observed/h100-580.159.04.json');

test('a program sees its grant as total memory, and more is refused as out of memory', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  t.is(await client.must('total 0'), GIB);
  t.deepEqual(await client.ask('info'), [0, GIB - context, GIB]);
  await client.must(`alloc ${512 * MIB}`);
  t.deepEqual(await client.ask('info'), [0, GIB - context - 512 * MIB, GIB]);
  t.is((await client.ask(`alloc ${512 * MIB}`))[0], OUT_OF_MEMORY);
  t.is(node.usage().clients[0]?.gpus[0]?.bytes, context + 512 * MIB, 'the driver was not asked for it');
});

test('grants of 512 and 513 MiB differ by exactly 1 MiB, as shown and as enforced', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const fill = async (mib: number): Promise<{ total: number; held: number }> => {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: mib * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const total = await client.must('total 0');
    t.is((await client.ask(`fill-all ${2 * MIB}`))[0], OUT_OF_MEMORY);
    t.is((await client.ask(`fill-managed 65536`))[0], OUT_OF_MEMORY);
    const held = node.usage().clients.find((entry) => entry.pid === client.pid)?.gpus[0]?.bytes ?? 0;
    await client.end();
    return { total, held };
  };
  const [small, large] = [await fill(512), await fill(513)];
  t.deepEqual(small, { total: 512 * MIB, held: 512 * MIB });
  t.deepEqual(large, { total: 513 * MIB, held: 513 * MIB });
});

test('every form of allocation is charged, refused beyond the grant, and released', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const left = async () => (await client.ask('info'))[1] ?? -1;
  const whole = await left();
  const forms: [string, (at: number[]) => string[]][] = [
    ['alloc', ([, at]) => [`free ${at}`]],
    ['managed', ([, at]) => [`free ${at}`]],
    ['vmm', ([, at, handle]) => [`unmap ${at} ${32 * MIB}`, `unhandle ${handle}`]],
    ['pool-alloc', ([, at]) => [`pool-free ${at}`, 'sync', 'pool-trim 0']],
  ];
  for (const [form, undo] of forms) {
    t.is((await client.ask(`${form} ${whole + 2 * MIB}`))[0], OUT_OF_MEMORY, `${form}: one granule too much`);
    t.is((await client.ask(`${form} 18446744073709551615`))[0] === 0, false, `${form}: an absurd size`);
    const taken = await client.ask(`${form} ${32 * MIB}`);
    t.is(taken[0], 0, form);
    t.is(await left(), whole - 32 * MIB, `${form} is charged`);
    t.is((await client.ask(`${form} ${whole - 30 * MIB}`))[0], OUT_OF_MEMORY, `${form}: beside what is held`);
    for (const command of undo(taken)) t.is((await client.ask(command))[0], 0, command);
    t.is(await left(), whole, `${form} is given back`);
  }
  const [result, , pitch = 0] = await client.ask('pitch 1000000 40');
  t.is(result, 0);
  t.is(await left(), whole - Math.ceil((pitch * 40) / (2 * MIB)) * 2 * MIB);
  t.is((await client.ask(`host ${512 * MIB}`))[0], 0, 'host memory is not device memory');
});

type Rounding = { readonly [bytes: string]: { readonly blocks: number; readonly bytes: number } };

test('blocks are charged what they were observed to take of an H100', async (t) => {
  const observed = JSON.parse(readFileSync(OBSERVED, 'utf8')) as {
    readonly steps: readonly { readonly id: string; readonly data: { readonly linear?: Rounding } }[];
  };
  const rows = Object.entries(observed.steps.find(({ id }) => id === 'rounding.linear')?.data.linear ?? {});
  t.true(rows.some(([bytes, { blocks }]) => Number(bytes) === MIB && blocks > 1));
  const node = await startNode(t, '--gpu', 'h100');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 1024 * MIB }]);
  for (const [size, { blocks, bytes }] of rows.filter(([, row]) => row.blocks <= 512)) {
    const client = await readyClient(t, node, { preload: grant.cuda });
    const before = (await client.ask('info'))[1] ?? 0;
    const held = () => node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.bytes ?? 0;
    const heldBefore = held();
    for (let block = 0; block < blocks; block++) await client.must(`alloc ${size}`);
    t.is(before - ((await client.ask('info'))[1] ?? 0), bytes, `${blocks} blocks of ${size} bytes by the ledger`);
    t.is(held() - heldBefore, bytes, `${blocks} blocks of ${size} bytes by the driver`);
    await client.end();
  }
});

test('physical memory stays charged while mapped, also after its handle was released', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  for (let taken = 0; ; taken++) {
    const [result, , handle] = await client.ask(`vmm ${16 * MIB}`);
    if (result !== 0) {
      t.is(taken, Math.floor((256 - 104) / 16));
      break;
    }
    t.is((await client.ask(`unhandle ${handle}`))[0], 0);
  }
  t.true((node.usage().clients[0]?.gpus[0]?.bytes ?? 0) <= 256 * MIB);
});

test('a context is charged, refused if it does not fit, and releases all when it ends', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 250 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const second = await client.must('create 0');
  t.is((await client.ask('create 0'))[0], OUT_OF_MEMORY, '104 MiB each: a third does not fit into 250');
  await client.must(`alloc ${32 * MIB}`);
  await client.must(`destroy ${second}`);
  await client.must('context 0');
  t.deepEqual(await client.ask('info'), [0, (250 - 104) * MIB, 250 * MIB]);
  await client.must(`alloc ${64 * MIB}`);
  await client.must('reset 0');
  await client.must('context 0');
  t.deepEqual(await client.ask('info'), [0, (250 - 104) * MIB, 250 * MIB]);
});

test('small requests fit into a shared granule also when the grant is full', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 120 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  await client.must('alloc 512');
  await client.ask(`fill-all ${2 * MIB}`);
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
  t.is((await client.ask('alloc 1000000'))[0], 0);
  t.is((await client.ask('alloc 1000000'))[0], 0);
  t.is((await client.ask('alloc 1000000'))[0], OUT_OF_MEMORY, 'no gap is that large any more');
  t.true((node.usage().clients[0]?.gpus[0]?.peak ?? 0) <= 120 * MIB);
});

test('a failing driver call is rolled back, and its error is returned', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const faults = 'cuMemAlloc_v2=999,cuMemAllocManaged=2,cuMemCreate=700,cuMemAllocAsync=46,cuMemFree_v2=719x1';
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    env: { COTENANT_SIM_FAULTS: `${faults},cuMemAlloc_v2=999` },
  });
  const [, before] = await client.ask('info');
  for (const [form, error] of [
    ['alloc', 999],
    ['managed', 2],
    ['vmm', 700],
    ['pool-alloc', 46],
  ] as const) {
    for (let round = 0; round < 20; round++) t.is((await client.ask(`${form} ${16 * MIB}`))[0], error, form);
  }
  t.is((await client.ask('info'))[1], before, 'nothing is left announced or charged');
});

test('a free that the driver refuses leaves the charge', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    env: { COTENANT_SIM_FAULTS: 'cuMemFree_v2=719@1x1' },
  });
  const at = await client.must(`alloc ${32 * MIB}`);
  const [, left] = await client.ask('info');
  t.is((await client.ask(`free ${at}`))[0], 719);
  t.is((await client.ask('info'))[1], left);
  t.is((await client.ask(`free ${at}`))[0], 0);
  t.is((await client.ask('info'))[1], (left ?? 0) + 32 * MIB);
});

test('several GPUs have limits of their own, whatever the order of devices', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4', '--gpu', 't4');
  const gpus: GrantGpu[] = [
    { gpu: 0, memoryBytes: 200 * MIB },
    { gpu: 2, memoryBytes: 300 * MIB },
  ];
  const grant = makeGrant(t, node, gpus);
  const reversed = `${node.uuid(2)},${node.uuid(0)}`;
  const client = startClient(t, node, { preload: grant.cuda, env: { CUDA_VISIBLE_DEVICES: reversed } });
  await client.must('init');
  t.is(await client.must('total 0'), 300 * MIB);
  t.is(await client.must('total 1'), 200 * MIB);
  await client.must('context 1');
  await client.ask(`fill-all ${2 * MIB}`);
  await client.must('context 0');
  t.is((await client.ask(`alloc ${(300 - 104) * MIB}`))[0], 0, 'the full GPU leaves the other whole');
});

test('a GPU that is not granted is no device of the program', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  for (const call of ['total 1', 'context 1', 'create 1']) t.is((await client.ask(call))[0], INVALID_DEVICE, call);
  t.is(node.usage().gpus[1]?.usedBytes, 0);
});

test('memory of a device that does not exist is an invalid device', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  for (const client of [await readyClient(t, node), await readyClient(t, node, { preload: grant.cuda })]) {
    for (const id of [-1, 1, 99]) {
      await client.must(`location 1 ${id}`);
      t.is((await client.ask(`physical ${2 * MIB}`))[0], INVALID_DEVICE, `physical ${id}`);
      t.is((await client.ask('pool-make'))[0], INVALID_DEVICE, `pool ${id}`);
    }
  }
});

test('stream-ordered memory is not supported on a device without pools', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  const names = ['cuMemAllocAsync', 'cuDeviceGetMemPool', 'cuDeviceGetDefaultMemPool', 'cuMemPoolCreate'];
  const env = { COTENANT_SIM_FAULTS: names.map((name) => `${name}=${NOT_SUPPORTED}`).join(',') };
  for (const preload of ['', grant.cuda]) {
    const client = await readyClient(t, node, { env, preload });
    t.is((await client.ask(`pool-alloc ${2 * MIB}`))[0], NOT_SUPPORTED, preload);
    t.is((await client.ask('pool-make'))[0], NOT_SUPPORTED, preload);
  }
});

// OptiX passes one pointer alone: Project-HAMi/HAMi-core#321, found with driver 580.
test('memory info with one pointer has the container in it', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  t.is(await client.must('info-total'), 200 * MIB);
  t.is(await client.must('info-free'), 96 * MIB);
  t.is((await (await readyClient(t, node)).ask('info-total'))[1], node.usable(0));
});

test('a running program follows the limits page: up at once, down without freeing', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const at = await client.must(`alloc ${90 * MIB}`);
  t.is((await client.ask(`alloc ${90 * MIB}`))[0], OUT_OF_MEMORY);
  grant.rewrite([{ gpu: 0, memoryBytes: 400 * MIB }]);
  t.is(await client.must('total 0'), 400 * MIB);
  await client.must(`alloc ${90 * MIB}`);
  grant.rewrite([{ gpu: 0, memoryBytes: 150 * MIB }]);
  t.deepEqual(await client.ask('info'), [0, 0, 150 * MIB]);
  t.is((await client.ask('alloc 512'))[0], OUT_OF_MEMORY);
  await client.must(`set ${at} 4096 5`);
  t.deepEqual(await client.ask(`check ${at} 4096 5`), [0, 0]);
});

test('without a readable limits page or ledger the GPU stays closed, with a reason', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const ways: [string, (folder: string) => void][] = [
    ['no limits page at', (folder) => rmSync(join(folder, 'limits'))],
    [
      'not a limits page of a known version',
      (folder) => {
        const page = readFileSync(join(folder, 'limits'));
        page.writeUInt32LE(99, 8);
        writeFileSync(join(folder, 'limits'), page);
      },
    ],
    ['GPU or slot count does not fit the size of', (folder) => truncateSync(join(folder, 'limits'), 4096)],
    ['no ledger at', (folder) => rmSync(join(folder, 'ledger'))],
    ['too short', (folder) => truncateSync(join(folder, 'ledger'), 100)],
  ];
  for (const [words, spoil] of ways) {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
    spoil(grant.folder);
    const env = environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda);
    const script = 'init\ninit\ncontext 0\nalloc 512\npool-alloc 512\nvmm 2097152\nmanaged 512\n';
    const shell = `exec ${join(BUILD, 'tests/client')} 2>&1`;
    const output = execFileSync('/bin/sh', ['-c', shell], { input: script, encoding: 'utf8', env });
    const said = output.split('\n').filter((line) => line.startsWith('cotenant:'));
    t.is(said.length, 1, `once: ${output}`);
    t.true(said[0]?.includes(words), output);
    const results = output
      .split('\n')
      .filter((line) => /^\d+ /.test(line))
      .map((line) => Number(line.split(' ')[0]));
    t.true(results.length === 7 && results.every((result) => result !== 0), output);
    t.is(node.usage().gpus[0]?.usedBytes, 0);
  }
});

test('a limits page that is never consistent grants nothing', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 200 * MIB }]);
  const page = readFileSync(join(grant.folder, 'limits'));
  page.writeBigUInt64LE(2n ** 40n, 64 + 16); // a limit that its check word does not cover
  writeFileSync(join(grant.folder, 'limits'), page);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  t.is((await client.ask('context 0'))[0], OUT_OF_MEMORY);
});

test('memory of a killed process is free for the next one at once', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
  for (let round = 0; round < 20; round++) {
    const client = await readyClient(t, node, { preload: grant.cuda });
    const [result] = await client.ask(`alloc ${190 * MIB}`);
    t.is(result, 0, `round ${round}`);
    await client.kill();
  }
});

test('processes of one container share its grant, another container has its own', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const one = makeGrant(t, node, [{ gpu: 0, memoryBytes: 400 * MIB }]);
  const other = makeGrant(t, node, [{ gpu: 0, memoryBytes: 400 * MIB }]);
  const first = await readyClient(t, node, { preload: one.cuda });
  const second = await readyClient(t, node, { preload: one.cuda });
  const neighbor = await readyClient(t, node, { preload: other.cuda });
  await first.must(`alloc ${150 * MIB}`);
  t.deepEqual(await second.ask('info'), [0, (400 - 2 * 104 - 150) * MIB, 400 * MIB]);
  t.is((await second.ask(`alloc ${60 * MIB}`))[0], OUT_OF_MEMORY);
  t.is((await neighbor.ask(`alloc ${(400 - 104) * MIB}`))[0], 0);
});

test('launches reach the GPU, and a closed gate holds them until it opens', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 400 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const ran = () => node.usage().clients[0]?.gpus[0]?.smNs ?? 0;
  const [, ms = 0] = await client.ask('timed 10 1000');
  t.is(ran(), 10_000_000, 'all of them, by the books');
  t.true(ms >= 9.999, `${ms} ms between the events around them`);
  const page = join(grant.folder, 'limits');
  const gate = (closed: number) => execFileSync(join(BUILD, 'tests/set_gate'), [page, String(closed)]);
  gate(1);
  const before = ran();
  const launched = client.ask('launch 1 1000');
  let done = false;
  void launched.then(() => {
    done = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 200)); // long enough for a launch that is not held
  t.false(done);
  t.is(ran(), before);
  gate(0);
  t.deepEqual(await launched, [0, 0]);
  await client.ask('sync');
  t.is(ran(), before + 1_000_000);
});

test('without a driver a preloaded program gets the error that there is no device', (t) => {
  const folder = temporaryFolder(t);
  const script = 'init\ncontext 0\nalloc 512\n';
  execFileSync('ln', ['-s', join(BUILD, 'libcotenant.so'), folder]);
  const output = execFileSync(join(BUILD, 'tests/client'), {
    input: script,
    encoding: 'utf8',
    env: environment({}, join(folder, 'libcotenant.so')),
  });
  t.deepEqual(
    output
      .trim()
      .split('\n')
      .map((line) => line.split(' ')[0]),
    ['100', '100', '100'],
  );
});

test('a program that never calls CUDA runs as without the interposer', (t) => {
  const folder = temporaryFolder(t);
  execFileSync('ln', ['-s', join(BUILD, 'libcotenant.so'), join(BUILD, 'libcotenant-nvml.so'), folder]);
  const preload = `${join(folder, 'libcotenant.so')} ${join(folder, 'libcotenant-nvml.so')}`;
  const plain = execFileSync('/bin/sh', ['-c', 'echo hello; ls -d /; id -u'], {
    encoding: 'utf8',
    env: { PATH: '/usr/bin:/bin' },
  });
  const preloaded = execFileSync('/bin/sh', ['-c', 'echo hello; ls -d /; id -u'], {
    encoding: 'utf8',
    env: environment({ PATH: '/usr/bin:/bin' }, preload),
  });
  t.is(preloaded, plain);
});

test('memory that a pool gave back at a synchronization is shown as free', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 1024 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = await client.ask('info');
  const at = await client.must(`pool-alloc ${64 * MIB}`);
  t.is((await client.ask('info'))[1], (before[1] ?? 0) - 64 * MIB);
  await client.must(`pool-free ${at}`);
  await client.must('sync');
  t.deepEqual(await client.ask('info'), before);
});
