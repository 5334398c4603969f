// Arrays: what they take from the GPU by the simulated driver's layout, what the interposer charges for them, and
// physical memory mapped under sparse arrays and arrays of deferred mapping.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { eventually, type Kind, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account, charged } from '../../../support/product/ledger-row.ts';

const [U8, HALF, FLOAT, BC1, BC7, NV12, UNORM16X4] = [0x01, 0x10, 0x20, 0x91, 0x9d, 0xb0, 0xc5];
const [LAYERED, CUBEMAP, SPARSE, DEFERRED] = [1, 4, 64, 128];
const [MAP, UNMAP] = [1, 2];
const ROUNDS = 20;

const booked = (node: SimulatedNode, client: Client, kind: Kind | 'bytes') =>
  node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.[kind] ?? -1;

/** A grant of 512 MiB on a T4, whose context takes 104 MiB. */
async function inGrant(t: ExecutionContext, env: Record<string, string> = {}, memoryBytes = 512 * MIB) {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes }]);
  const client = await readyClient(t, node, { preload: grant.cuda, env });
  return { node, grant, client };
}

// Form, width, height, depth, format, channels, flags, levels; bytes of the layout before granules.
type Shape = readonly [string, number, number, number, number, number, number, number];
const SHAPES: readonly [string, Shape, number][] = [
  ['one row', ['2d', 100_000, 0, 0, FLOAT, 4, 0, 0], 1_600_000],
  ['a picture', ['2d', 1920, 1080, 0, U8, 4, 0, 0], 1920 * 4 * 1080],
  ['rows of a size that is padded', ['2d', 1001, 1001, 0, U8, 1, 0, 0], 1024 * 1008],
  ['the 32-bit form of old', ['old-2d', 2048, 2048, 0, HALF, 2, 0, 0], 2048 * 4 * 2048],
  ['a block of voxels', ['3d', 200, 200, 200, FLOAT, 1, 0, 0], 832 * 200 * 200],
  ['the 32-bit form of voxels', ['old-3d', 128, 128, 128, FLOAT, 2, 0, 0], 1024 * 128 * 128],
  ['layers', ['3d', 512, 512, 9, U8, 1, LAYERED, 0], 512 * 512 * 9],
  ['layers of one row', ['3d', 4096, 0, 300, FLOAT, 1, LAYERED, 0], 16_384 * 300],
  ['a cubemap', ['3d', 600, 600, 6, FLOAT, 1, CUBEMAP, 0], 2432 * 600 * 6],
  ['layers of cubemaps', ['3d', 256, 256, 18, FLOAT, 1, CUBEMAP + LAYERED, 0], 1024 * 256 * 18],
  ['compressed to 8 bytes per square', ['2d', 4096, 4096, 0, BC1, 4, 0, 0], 1024 * 8 * 1024],
  ['compressed to 16 bytes per square', ['2d', 4097, 4097, 0, BC7, 4, 0, 0], 16_448 * 1032],
  ['video', ['2d', 3840, 2160, 0, NV12, 3, 0, 0], 5760 * 2160],
  ['normalized', ['2d', 1024, 1024, 0, UNORM16X4, 4, 0, 0], 8192 * 1024],
  ['a chain of one level', ['chain', 1024, 1024, 0, FLOAT, 1, 0, 1], 4096 * 1024],
  [
    'a whole chain',
    ['chain', 2048, 2048, 0, FLOAT, 1, 0, 12],
    [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1].reduce(
      (sum, side) => sum + Math.max(64, side * 4) * Math.max(8, side),
      0,
    ),
  ],
  [
    'a chain of more levels than there can be',
    ['chain', 512, 4, 0, FLOAT, 4, 0, 20_000],
    Array.from({ length: 10 }, (_, level) => Math.max(64, (512 >> level) * 16) * 8).reduce((sum, n) => sum + n, 0),
  ],
  ['a chain of voxels, whose depth halves', ['chain', 256, 256, 256, U8, 1, 0, 2], 256 ** 3 + 128 ** 3],
  ['a chain of layers, which do not', ['chain', 256, 256, 256, U8, 1, LAYERED, 2], 256 ** 3 + 128 * 128 * 256],
];
const gone = (form: string) => (form === 'chain' ? 'chain-destroy' : 'array-destroy');

test('each shape of array is charged its layout in granules until it is destroyed', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = account(grant);
  for (const [name, shape, layout] of SHAPES) {
    const array = await client.must(`array ${shape.join(' ')}`);
    const bytes = Math.ceil(layout / (2 * MIB)) * 2 * MIB;
    t.is(booked(node, client, 'array'), bytes, `${name}: the GPU's books`);
    t.is(account(grant).held - before.held, BigInt(bytes), `${name}: the charge`);
    t.is((await client.ask('info'))[1], 512 * MIB - booked(node, client, 'bytes'), `${name}: what is left`);
    await client.must(`${gone(shape[0])} ${array}`);
    t.is(booked(node, client, 'array'), 0, name);
    t.deepEqual(charged(account(grant)), charged(before), name);
  }
});

test('an array that does not fit is refused before the driver is called', async (t) => {
  const { node, client } = await inGrant(t, {}, (104 + 64) * MIB);
  const refused = async (what: string) => {
    t.is((await client.ask(`array ${what}`))[0], OUT_OF_MEMORY, what);
    t.is(booked(node, client, 'array'), 0);
  };
  await refused(`2d 8192 2056 0 ${FLOAT} 1 0 0`); // 64 MiB and 8 rows
  await refused(`old-2d 8192 2056 0 ${FLOAT} 1 0 0`);
  await refused(`3d 1024 1024 17 ${FLOAT} 1 0 0`);
  await refused(`old-3d 1024 1024 17 ${FLOAT} 1 ${LAYERED} 0`);
  await refused(`chain 4096 4096 0 ${FLOAT} 1 0 13`);
  await refused(`3d 18446744073709551615 18446744073709551615 2 ${FLOAT} 4 0 0`);
  await client.must(`array 2d 8192 2048 0 ${FLOAT} 1 0 0`);
  t.is(booked(node, client, 'bytes'), (104 + 64) * MIB);
  t.is((await client.ask(`array 2d 1 0 0 ${U8} 1 0 0`))[0], OUT_OF_MEMORY, 'the smallest takes a granule');
});

const FORMS: readonly [string, string, string, string][] = [
  ['2d', 'cuArrayCreate_v2', 'array-destroy', 'cuArrayDestroy'],
  ['old-2d', 'cuArrayCreate', 'array-destroy', 'cuArrayDestroy'],
  ['3d', 'cuArray3DCreate_v2', 'array-destroy', 'cuArrayDestroy'],
  ['old-3d', 'cuArray3DCreate', 'array-destroy', 'cuArrayDestroy'],
  ['chain', 'cuMipmappedArrayCreate', 'chain-destroy', 'cuMipmappedArrayDestroy'],
];
for (const [form, create, undo, destroy] of FORMS) {
  test(`a failed ${create} leaves no charge, a failed ${destroy} leaves all of it`, async (t) => {
    const env = { COTENANT_SIM_FAULTS: `${create}=46@1x${ROUNDS},${destroy}=719@1x${ROUNDS}` };
    const { node, grant, client } = await inGrant(t, env);
    const before = account(grant);
    const command = `array ${form} 2000 2000 0 ${FLOAT} 1 0 1`;
    for (let round = 0; round < ROUNDS; round++) {
      t.is((await client.ask(command))[0], 46);
      t.deepEqual(account(grant), before, `round ${round}`);
    }
    const array = await client.must(command);
    const taken = account(grant);
    t.is(taken.held, BigInt(booked(node, client, 'bytes')));
    t.is(taken.held - before.held, BigInt(16 * MIB));
    for (let round = 0; round < ROUNDS; round++) {
      t.is((await client.ask(`${undo} ${array}`))[0], 719);
      t.deepEqual(account(grant), taken);
    }
    await client.must(`${undo} ${array}`);
    t.deepEqual(charged(account(grant)), charged(before));
    t.is(account(grant).freed - before.freed, BigInt(16 * MIB));
    t.not((await client.ask(`${undo} ${array}`))[0], 0, 'a second time is the driver to answer');
    t.deepEqual(charged(account(grant)), charged(before));
  });
}

test("invalid arguments get the driver's error and cost nothing", async (t) => {
  const { grant, client } = await inGrant(t);
  const before = account(grant);
  for (const shape of [`2d 0 8 0 ${U8} 1 0 0`, '2d 8 8 0 77 1 0 0', `3d 8 9 6 ${U8} 1 ${CUBEMAP} 0`])
    t.is((await client.ask(`array ${shape}`))[0], 1, shape);
  for (const entry of ['cuArrayCreate_v2', 'cuArray3DCreate', 'cuMipmappedArrayCreate', 'cuImportExternalMemory'])
    t.is((await client.ask(`call ${entry}`))[0], 1, entry);
  t.deepEqual(account(grant), before);
});

test('the end of a context ends its arrays and their charge, and no others', async (t) => {
  const { node, grant, client } = await inGrant(t);
  await client.must(`array 2d 1024 1024 0 ${FLOAT} 1 0 0`);
  const kept = account(grant).held;
  const second = await client.must('create 0');
  await client.must(`array chain 2048 2048 0 ${FLOAT} 1 0 3`);
  await client.must(`array 3d 100 100 100 ${U8} 1 0 0`);
  t.is(account(grant).held, BigInt(booked(node, client, 'bytes')));
  await client.must(`destroy ${second}`);
  t.is(account(grant).held, kept);
  t.is(booked(node, client, 'array'), 4 * MIB);
  await client.must('reset 0');
  t.is(account(grant).held, 0n);
  t.is(booked(node, client, 'bytes'), 0);
});

test('arrays are described in all forms, levels have their size, rows can be copied', async (t) => {
  const { grant, client } = await inGrant(t);
  const array = await client.must(`array 3d 301 77 0 ${HALF} 2 2 0`);
  t.deepEqual(await client.ask(`array-describe ${array}`), [0, 1, 301, 77, 0, HALF, 2, 2]);
  t.deepEqual(await client.ask(`array-copy ${array} ${301 * 4} 77`), [0, 0]);
  t.is((await client.ask(`array-copy ${array} ${301 * 4 + 1} 77`))[0], 1, 'past the end of a row');
  const chain = await client.must(`array chain 300 80 40 ${FLOAT} 1 0 9`);
  const held = account(grant).held;
  const level = await client.must(`chain-level ${chain} 3`);
  t.deepEqual(await client.ask(`array-describe ${level}`), [0, 1, 37, 10, 5, FLOAT, 1, 0]);
  t.is(await client.must(`chain-level ${chain} 3`), level, 'the same one again');
  t.deepEqual(await client.ask(`array-copy ${level} ${37 * 4} 10`), [0, 0]);
  t.is((await client.ask(`chain-level ${chain} 9`))[0], 1);
  t.not((await client.ask(`array-destroy ${level}`))[0], 0, 'a level goes with its chain');
  t.not((await client.ask(`array-destroy ${chain}`))[0], 0, 'a chain is no array');
  t.is(account(grant).held, held, 'a level costs nothing');
  await client.must(`chain-destroy ${chain}`);
  t.not((await client.ask(`array-describe ${level}`))[0], 0);
});

test('an array of deferred mapping costs nothing and keeps what is mapped under it', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = charged(account(grant));
  for (const form of ['3d', 'chain']) {
    const chain = form === 'chain' ? 1 : 0;
    const array = await client.must(`array ${form} 2000 1000 0 ${FLOAT} 1 ${DEFERRED} 1`);
    t.deepEqual(charged(account(grant)), before, 'without memory');
    const needs = await client.must(`array-needs ${array} ${chain}`);
    t.is(needs, 8 * MIB);
    const handle = await client.must(`physical ${needs}`);
    await client.must(`tiles ${MAP} ${array} ${chain} ${handle} 0 0`);
    await client.must(`unhandle ${handle}`);
    t.is(account(grant).held - before.held, BigInt(needs), 'mapped');
    t.is(booked(node, client, 'vmm'), needs);
    if (chain) await client.must(`tiles ${UNMAP} ${array} ${chain} 0 0 0`);
    await client.must(`${gone(form)} ${array}`);
    t.deepEqual(charged(account(grant)), before, form);
    t.is(booked(node, client, 'vmm'), 0);
  }
  const plain = await client.must(`array 2d 100 100 0 ${FLOAT} 1 0 0`);
  t.not((await client.ask(`array-needs ${plain} 0`))[0], 0, 'an array that has its memory does not say');
});

test('a part of a sparse array keeps its memory until unmapped or the array ends', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = charged(account(grant));
  const held = () => Number(account(grant).held - before.held) / MIB;
  const second = await client.must('create 0');
  const context = held();
  const make = async () => {
    const handle = await client.must(`physical ${4 * MIB}`);
    return { handle, drop: () => client.must(`unhandle ${handle}`) };
  };
  const array = await client.must(`array 3d 4096 4096 0 ${FLOAT} 1 ${SPARSE} 0`);
  t.is(held(), context, 'without memory');
  const [a, b, c] = [await make(), await make(), await make()];
  await client.must(`tiles ${MAP} ${array} 0 ${a.handle} 0 128 ${MAP} ${array} 0 ${b.handle} 128 128`);
  await client.must(`tiles ${MAP} ${array} 0 ${c.handle} 256 128`);
  for (const { drop } of [a, b, c]) await drop();
  t.is(held(), context + 12);
  await client.must(`tiles ${UNMAP} ${array} 0 0 0 128`);
  t.is(held(), context + 8, 'one part');
  const d = await make();
  await client.must(`tiles ${UNMAP} ${array} 0 0 128 128 ${MAP} ${array} 0 ${d.handle} 128 128`);
  await d.drop();
  t.is(held(), context + 8, 'one part for another, in one call');
  const wrong = await make();
  t.is((await client.ask(`tiles ${MAP} ${array} 0 ${wrong.handle} 256 128`))[0], 1, 'the place is taken');
  await wrong.drop();
  t.is(held(), context + 8, 'a refused mapping keeps nothing');
  t.is(booked(node, client, 'vmm'), 8 * MIB);
  await client.must(`tiles ${UNMAP} ${array} 0 0 192 128`);
  t.is(held(), context + 8, 'half of one and half of its neighbor keep both');
  await client.ask(`tiles ${UNMAP} ${array} 0 0 192 128`);
  t.is(held(), context + 8, 'the same half once more is no other half');
  await client.must(`tiles ${UNMAP} ${array} 0 0 128 64`);
  t.is(held(), context + 4, 'the other half');
  t.is(booked(node, client, 'vmm'), 4 * MIB);
  await client.must(`array-destroy ${array}`);
  t.is(held(), context, 'the array goes, and takes the rest along');
  const other = await client.must(`array 3d 4096 4096 0 ${FLOAT} 1 ${SPARSE} 0`);
  const e = await make();
  await client.must(`tiles ${MAP} ${other} 0 ${e.handle} 0 128`);
  await e.drop();
  await client.must(`destroy ${second}`);
  t.is(held(), 0, 'and so does the context');
  t.is(booked(node, client, 'vmm'), 0);
});

test('any boxes cut out of a mapped 3D array leave the memory of the rest', async (t) => {
  const { node, grant, client } = await inGrant(t);
  const before = charged(account(grant));
  const array = await client.must(`array 3d 64 64 64 ${FLOAT} 1 ${SPARSE} 0`);
  const box = (operation: number, handle: number, ...places: number[]) =>
    client.ask(`box ${operation} ${array} ${handle} ${places.join(' ')}`);
  const handle = await client.must(`physical ${4 * MIB}`);
  t.is((await box(MAP, handle, 0, 0, 0, 0, 64, 64, 64))[0], 0);
  await client.must(`unhandle ${handle}`);
  const kept = () => [Number(account(grant).held - before.held), booked(node, client, 'vmm')];
  // Out of the middle, then off all sides of it, a slice across, and what remains in two.
  for (const [level, ...places] of [
    [0, 16, 16, 16, 32, 32, 32],
    [0, 0, 0, 0, 64, 64, 16],
    [0, 0, 0, 48, 64, 64, 16],
    [0, 0, 0, 16, 64, 16, 32],
    [0, 0, 48, 16, 64, 16, 32],
    [0, 48, 16, 16, 16, 32, 32],
    [0, 0, 16, 16, 8, 32, 32],
  ] as const) {
    t.is((await box(UNMAP, 0, level, ...places))[0], 0);
    t.deepEqual(kept(), [4 * MIB, 4 * MIB], `${places}`);
  }
  t.is((await box(UNMAP, 0, 1, 0, 0, 0, 64, 64, 64))[0], 1, 'another level');
  t.deepEqual(kept(), [4 * MIB, 4 * MIB]);
  t.is((await box(UNMAP, 0, 0, 8, 0, 0, 8, 64, 64))[0], 0, 'the last of it');
  t.deepEqual(kept(), [0, 0]);
});

test('an array that the driver fails to destroy keeps its mapped memory', async (t) => {
  const { node, grant, client } = await inGrant(t, { COTENANT_SIM_FAULTS: 'cuArrayDestroy=719@1x1' });
  const before = charged(account(grant));
  const array = await client.must(`array 3d 4096 4096 0 ${FLOAT} 1 ${SPARSE} 0`);
  const handle = await client.must(`physical ${4 * MIB}`);
  await client.must(`tiles ${MAP} ${array} 0 ${handle} 0 128`);
  await client.must(`unhandle ${handle}`);
  t.is((await client.ask(`array-destroy ${array}`))[0], 719);
  t.is(account(grant).held - before.held, BigInt(4 * MIB));
  await client.must(`tiles ${UNMAP} ${array} 0 0 0 128`);
  t.deepEqual(charged(account(grant)), before, 'its parts can still be unmapped');
  await client.must(`array-destroy ${array}`);
  t.is(booked(node, client, 'vmm'), 0);
});

test('an array on a perturbed driver takes one granule more than is charged', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--perturb', '11');
  const granule = node.usage().gpus[0]?.granuleBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 1024 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = account(grant);
  await client.must(`array 2d 4096 4096 0 ${FLOAT} 1 0 0`);
  t.is(account(grant).held - before.held, BigInt(64 * MIB));
  t.is(booked(node, client, 'array'), 64 * MIB + granule);
});

test('pitched rows are charged with the padding of the driver, or refused', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--perturb', '11');
  const [gpu] = node.usage().gpus;
  const [granule, context] = [gpu?.granuleBytes ?? 0, gpu?.contextBytes ?? 0];
  const round = (bytes: number) => Math.ceil(bytes / granule) * granule;
  const rows = 16 * 1024;
  t.true(round(512 * rows) < round(2048 * rows), 'what is announced is less than what comes');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: context + round(2048 * rows) }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = account(grant);
  const [result, at, pitch] = await client.ask(`pitch 500 ${rows}`);
  t.deepEqual([result, pitch], [0, 2048]);
  t.is(account(grant).held - before.held, BigInt(round(2048 * rows)));
  // The row that the padding was learned from leaves the books late.
  await eventually(
    () => (booked(node, client, 'linear') === round(2048 * rows) ? true : undefined),
    'the GPU holds as much as is charged',
  );
  await client.must(`free ${at}`);
  t.deepEqual(charged(account(grant)), charged(before));
  grant.rewrite([{ gpu: 0, memoryBytes: context + round(2048 * rows) - granule }]);
  const asked = performance.now();
  t.is((await client.ask(`pitch 500 ${rows}`))[0], OUT_OF_MEMORY);
  t.true(performance.now() - asked < 2000, 'it did not wait for what it had itself announced');
  t.deepEqual(charged(account(grant)), charged(before), 'it was given back');
});
