// Green contexts: they take little beside the primary one and are not charged; what is allocated while a view is current
// belongs to the primary context, and stays charged after the green context has ended. Oracle: an H100 with driver
// 580.159.04, test/gpu/observed/h100-580.159.04.json, step green.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, startClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const [FLOAT, SPARSE, MAP] = [0x20, 64, 1];
const HEAP = 2; // 8 MiB of it lie inside the context
/** Memory of a context on a T4, in MiB. */
const CONTEXT = 104;
/** What the driver takes for the first green context, and for each further one, in MiB: stages green and secondGreen. */
const [FIRST_GREEN, FURTHER_GREEN] = [6, 4];

/**
 * A process in a grant of a T4, and its memory in MiB, which is the same in the ledger and in the node's usage but for
 * what green contexts take.
 */
async function inGrant(t: ExecutionContext, memoryMiB: number) {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: memoryMiB * MIB }]);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  const gpu = () => node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0];
  const held = () => {
    const charged = Number(account(grant).held);
    t.is(charged, (gpu()?.bytes ?? 0) - (gpu()?.green ?? 0), 'the ledger has what the GPU has');
    return charged / MIB;
  };
  const limits = () => (gpu()?.limits ?? 0) / MIB;
  const green = () => (gpu()?.green ?? 0) / MIB;
  return { client, held, limits, green, peak: () => (gpu()?.peak ?? 0) / MIB };
}

/** A green context whose view is current, with at least so many multiprocessors. */
async function enter(client: Client, way = 'green-enter'): Promise<number> {
  const green = await client.must('green 0 4');
  await client.must(`${way} ${green}`);
  return green;
}

for (const way of ['green-enter', 'green-stream']) {
  test(`allocations in green contexts that end one by one stay within the grant (${way})`, async (t) => {
    const { client, held, peak } = await inGrant(t, 512);
    await client.must('context 0');
    const results: number[] = [];
    for (let round = 0; round < 4; round++) {
      const green = await enter(client, way);
      t.is(held(), CONTEXT + 128 * Math.min(round, 3));
      results.push((await client.ask(`alloc ${128 * MIB}`))[0] ?? -1);
      await client.must(`green-end ${green}`);
    }
    t.deepEqual(results, [0, 0, 0, OUT_OF_MEMORY]);
    t.true(peak() <= 512);
  });
}

// Each with its memory in MiB, and how it is freed.
const FORMS: readonly [string, number, (answer: readonly number[]) => string[]][] = [
  [`alloc ${32 * MIB}`, 32, ([, at]) => [`free ${at}`]],
  ['alloc 512', 2, ([, at]) => [`free ${at}`]],
  [`pitch ${MIB} 8`, 8, ([, at]) => [`free ${at}`]],
  [`managed ${16 * MIB}`, 16, ([, at]) => [`free ${at}`]],
  [`array 2d 1024 1024 0 ${FLOAT} 1 0 0`, 4, ([, array]) => [`array-destroy ${array}`]],
  [`array chain 2048 2048 0 ${FLOAT} 1 0 1`, 16, ([, chain]) => [`chain-destroy ${chain}`]],
  [`external ${8 * MIB}`, 8, ([, memory]) => [`external-destroy ${memory}`]],
  [`vmm ${16 * MIB}`, 16, ([, at, handle]) => [`unmap ${at} ${16 * MIB}`, `unhandle ${handle}`]],
];

for (const [form, takes, undo] of FORMS) {
  test(`memory of a green context's view stays charged until it is freed: ${form}`, async (t) => {
    const { client, held } = await inGrant(t, 512);
    await client.must('context 0');
    const green = await enter(client);
    const taken = await client.ask(form);
    t.is(taken[0], 0);
    t.is(held(), CONTEXT + takes);
    await client.must(`green-end ${green}`);
    t.is(held(), CONTEXT + takes, 'the green context has ended');
    await client.must('context 0');
    for (const command of undo(taken)) await client.must(command);
    t.is(held(), CONTEXT);
    t.not((await client.ask(undo(taken).at(-1) ?? ''))[0], 0, 'freed already');
    t.is(held(), CONTEXT);
    await client.must('reset 0');
    t.is(held(), 0);
  });
}

const ENDS: readonly [string, readonly string[]][] = [
  ['is reset', ['reset 0']],
  ['loses its last reference', ['release 0']],
];
for (const [how, commands] of ENDS) {
  test(`memory of an ended green context is released when the primary context ${how}`, async (t) => {
    const { client, held } = await inGrant(t, 512);
    await client.must('context 0');
    const green = await enter(client);
    await client.must(`alloc ${32 * MIB}`);
    await client.must('alloc 512');
    const array = await client.must(`array 3d 4096 4096 0 ${FLOAT} 1 ${SPARSE} 0`);
    const memory = await client.must(`physical ${4 * MIB}`);
    await client.must(`tiles ${MAP} ${array} 0 ${memory} 0 128`);
    await client.must(`unhandle ${memory}`);
    await client.must(`green-end ${green}`);
    t.is(held(), CONTEXT + 32 + 2 + 4);
    for (const command of commands) await client.must(command);
    t.is(held(), 0);
  });
}

test('the last green context on the primary one releases what all of them allocated', async (t) => {
  const { client, held } = await inGrant(t, 512);
  const first = await enter(client);
  await client.must(`alloc ${32 * MIB}`);
  const second = await enter(client);
  await client.must(`alloc ${16 * MIB}`);
  t.is(held(), CONTEXT + 48);
  await client.must(`green-end ${first}`);
  t.is(held(), CONTEXT + 48, 'what the first one left');
  await client.must(`green-end ${second}`);
  t.is(held(), 0);
});

test('a reset of the primary context leaves memory of a green one until that ends', async (t) => {
  const { client, held } = await inGrant(t, 512);
  await client.must('context 0');
  const green = await enter(client);
  await client.must(`alloc ${32 * MIB}`);
  await client.must('reset 0');
  t.is(held(), 32);
  await client.must(`green-end ${green}`);
  t.is(held(), 0);
});

test('a green context takes a few MiB beside the primary one, while that lives', async (t) => {
  const { client, held, green } = await inGrant(t, 512);
  const first = await client.must('green 0 4');
  t.deepEqual([held(), green()], [CONTEXT, FIRST_GREEN]);
  const second = await client.must('green 0 4');
  t.deepEqual([held(), green()], [CONTEXT, FIRST_GREEN + FURTHER_GREEN]);
  await client.must(`green-end ${first}`);
  t.deepEqual([held(), green()], [CONTEXT, FIRST_GREEN + FURTHER_GREEN], 'stage greenEnded');
  await client.must(`green-end ${second}`);
  t.deepEqual([held(), green()], [0, 0], 'stage secondGreenEnded');
});

test('a full grant has room for green contexts on its primary one', async (t) => {
  const { client, held } = await inGrant(t, CONTEXT + 64);
  await client.must('context 0');
  await client.must(`alloc ${64 * MIB}`);
  await enter(client);
  t.is(held(), CONTEXT + 64);
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
});

test('a grant without room for a context refuses a green one', async (t) => {
  const { client, held } = await inGrant(t, CONTEXT - 2);
  t.is((await client.ask('green 0 4'))[0], OUT_OF_MEMORY);
  t.is(held(), 0);
});

test('a green context is current by its own handle', async (t) => {
  const { client } = await inGrant(t, 512);
  const green = await client.must('green 0 4');
  t.is(await client.must(`green-enter ${green}`), green, 'stage view: isGreen');
});

// Stage heapLimit: the primary context answers what was set in the view.
test('a green context has the limits of the primary one, which are charged once', async (t) => {
  const { client, held, limits } = await inGrant(t, 512);
  await client.must('context 0');
  await client.must(`module ${MIB} 1`); // from now on the heap is there
  const green = await enter(client);
  await client.must(`set-limit ${HEAP} ${72 * MIB}`);
  t.is(limits(), 64);
  t.is(held(), CONTEXT + 64);
  await client.must('context 0');
  t.is(await client.must(`limit ${HEAP}`), 72 * MIB);
  await client.must(`set-limit ${HEAP} ${136 * MIB}`);
  t.is(held(), CONTEXT + 128);
  await client.must(`green-enter ${green}`);
  t.is((await client.ask(`set-limit ${HEAP} ${512 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`green-end ${green}`);
  t.is(held(), CONTEXT + 128);
  await client.must('context 0');
  await client.must(`set-limit ${HEAP} ${8 * MIB}`);
  t.is(held(), CONTEXT);
});
