// Green contexts: what is allocated while a view is current belongs to the primary context, and stays charged after the
// green context has ended.
import test, { type ExecutionContext } from 'ava';
import { type Client, OUT_OF_MEMORY, startClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account } from '../../../support/product/ledger-row.ts';

const [FLOAT, SPARSE, MAP] = [0x20, 64, 1];
const HEAP = 2; // 8 MiB of it lie inside the context
/** Memory of a context on a T4, in MiB. */
const CONTEXT = 104;

/** A process in a grant of a T4, and its memory in MiB, which is the same in the ledger and in the node's usage. */
async function inGrant(t: ExecutionContext, memoryMiB: number) {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: memoryMiB * MIB }]);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  const gpu = () => node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0];
  const held = () => {
    const charged = Number(account(grant).held);
    t.is(charged, gpu()?.bytes ?? 0, 'the ledger has what the GPU has');
    return charged / MIB;
  };
  return { client, held, peak: () => (gpu()?.peak ?? 0) / MIB };
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
      t.is(held(), 2 * CONTEXT + 128 * Math.min(round, 2), 'the green context costs as much each time');
      results.push((await client.ask(`alloc ${128 * MIB}`))[0] ?? -1);
      await client.must(`green-end ${green}`);
    }
    t.deepEqual(results, [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]);
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
    t.is(held(), 2 * CONTEXT + takes);
    await client.must(`green-end ${green}`);
    t.is(held(), CONTEXT + takes, 'the green context has ended');
    await client.must('context 0');
    for (const command of undo(taken)) await client.must(command);
    t.is(held(), CONTEXT);
    for (const command of undo(taken)) t.not((await client.ask(command))[0], 0);
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
  t.is(held(), 3 * CONTEXT + 48);
  await client.must(`green-end ${first}`);
  t.is(held(), 2 * CONTEXT + 48, 'what the first one left');
  await client.must(`green-end ${second}`);
  t.is(held(), 0);
});

test('a reset of the primary context leaves memory of a green one until that ends', async (t) => {
  const { client, held } = await inGrant(t, 512);
  await client.must('context 0');
  const green = await enter(client);
  await client.must(`alloc ${32 * MIB}`);
  await client.must('reset 0');
  t.is(held(), CONTEXT + 32);
  await client.must(`green-end ${green}`);
  t.is(held(), 0);
});

test('limits of ended green contexts are charged to the primary one, at their highest', async (t) => {
  const { client, held } = await inGrant(t, 512);
  await client.must('context 0');
  for (const [mib, stays] of [
    [72, 64],
    [40, 64],
    [136, 128],
  ] as const) {
    const green = await enter(client);
    await client.must(`set-limit ${HEAP} ${mib * MIB}`);
    held();
    await client.must(`green-end ${green}`);
    t.is(held(), CONTEXT + stays, `${mib} MiB`);
  }
  const green = await enter(client);
  t.is((await client.ask(`set-limit ${HEAP} ${208 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`green-end ${green}`);
  await client.must('context 0');
  t.is(await client.must(`limit ${HEAP}`), 136 * MIB);
  await client.must(`set-limit ${HEAP} ${8 * MIB}`);
  t.is(held(), CONTEXT);
});
