// What contexts hold beside allocations: limits of heap, stack and printf, and green contexts.
import test from 'ava';
import { OUT_OF_MEMORY, readyClient, startClient } from '../support/client.ts';
import { MIB, makeGrant } from '../support/grant.ts';
import { account, charged } from '../support/ledger-row.ts';
import { type SimulatedNode, startNode } from '../support/node.ts';

const CONTEXT = 104 * MIB;
const [STACK, FIFO, HEAP] = [0, 1, 2];
const KIB = 1024;

const books = (node: SimulatedNode) => node.books().clients[0]?.cards[0];
const granules = (bytes: number) => Math.ceil(bytes / (2 * MIB)) * 2 * MIB;

for (const [name, limit, perUnit] of [
  ['heap', HEAP, () => 1],
  ['printf buffer', FIFO, () => 1],
  ['stack', STACK, (threads: number) => threads],
] as const) {
  test(`${name}: what a limit takes beyond its first value is charged and refused at the grant; lowered, it is given back`, async (t) => {
    const node = await startNode(t, '--card', 't4');
    const client = startClient(t, node);
    await client.must('init');
    await client.must('context 0');
    const threads = (await client.must('attribute 16')) * (await client.must('attribute 39'));
    t.is(threads, 40 * 2048, 'a T4 has 40 SMs');
    const unit = perUnit(threads);
    const first = await client.must(`limit ${limit}`);
    const value = first + Math.ceil((25 * MIB) / unit / 16) * 16;
    await client.must(`set-limit ${limit} ${value}`);
    const cost = granules((value - first) * unit);
    t.is(books(node)?.limits, cost, 'the card gives it');
    await client.end();

    const grant = makeGrant(t, node, [{ card: 0, memoryBytes: CONTEXT + 64 * MIB }]);
    const held = await readyClient(t, node, { preload: grant.cuda });
    const before = account(grant);
    await held.must(`set-limit ${limit} ${value - 5}`);
    t.is(books(node)?.limits, cost);
    t.is(account(grant).held, BigInt(CONTEXT + cost));
    t.is(account(grant).context, BigInt(CONTEXT + cost), 'as part of the context');
    const absurd = 2 ** 53;
    for (const more of [first + Math.ceil((66 * MIB) / unit), absurd]) {
      t.is((await held.ask(`set-limit ${limit} ${more}`))[0], OUT_OF_MEMORY);
      t.is(account(grant).held, BigInt(CONTEXT + cost));
      t.is((await held.must(`limit ${limit}`)) > value - 16, true, 'the driver was not asked');
    }
    t.is((await held.ask(`alloc ${66 * MIB - cost}`))[0], OUT_OF_MEMORY, 'beside what the limit holds');
    await held.must(`set-limit ${limit} ${first - 16}`);
    t.deepEqual(charged(account(grant)), charged(before), 'below its first value it costs nothing');
    await held.must(`set-limit ${limit} ${value}`);
    await held.must('reset 0');
    t.is(account(grant).held, 0n, 'the end of the context takes it along');
    t.is(books(node)?.bytes, 0);
  });
}

test("other limits are the driver's own affair", async (t) => {
  const node = await startNode(t, '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 168 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = account(grant);
  await client.must(`set-limit 4 ${1 << 30}`);
  t.is((await client.ask('set-limit 99 1'))[0], 215);
  t.is((await client.ask('set-limit -1 1'))[0], 215);
  t.deepEqual(account(grant), before);
});

test('a driver that fails to tell or set a limit leaves the account as it was, and its error is handed on', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 168 * MIB }]);
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    env: { COTENANT_SIM_FAULTS: 'cuCtxGetLimit=999@1x1,cuDeviceGetAttribute=101@1x1,cuCtxSetLimit=46@1x2' },
  });
  const before = account(grant);
  const faults = [
    [`set-limit ${HEAP} ${40 * MIB}`, 999],
    [`set-limit ${STACK} ${2 * KIB}`, 101],
    [`set-limit ${HEAP} ${40 * MIB}`, 46],
    [`set-limit ${STACK} ${KIB + 512}`, 46],
  ] as const;
  for (const [command, error] of faults) {
    t.is((await client.ask(command))[0], error, command);
    t.deepEqual(charged(account(grant)), charged(before), command);
  }
  await client.must(`set-limit ${HEAP} ${40 * MIB}`);
  t.is(account(grant).held, BigInt(CONTEXT + 32 * MIB));
});

test('a limit whose value the driver does not tell afterwards is charged as it was asked for', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 168 * MIB }]);
  const env = { COTENANT_SIM_FAULTS: 'cuCtxGetLimit=999@2x1' };
  const client = await readyClient(t, node, { preload: grant.cuda, env });
  await client.must(`set-limit ${HEAP} ${40 * MIB}`);
  t.is(account(grant).held, BigInt(CONTEXT + 32 * MIB));
});

test('a green context is charged as a context, with the primary one that it keeps alive, and takes all of its own along', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 3 * CONTEXT + 64 * MIB }]);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  const green = await client.must('green 0 8');
  t.is(account(grant).held, BigInt(2 * CONTEXT));
  t.is(books(node)?.bytes, 2 * CONTEXT);
  const second = await client.must('green 0 8');
  t.is(account(grant).held, BigInt(3 * CONTEXT), 'the primary one is there');
  t.is((await client.ask('green 0 8'))[0], OUT_OF_MEMORY);
  t.is(books(node)?.bytes, 3 * CONTEXT);
  await client.must(`green-enter ${green}`);
  await client.must(`alloc ${32 * MIB}`);
  t.is(account(grant).held, BigInt(3 * CONTEXT + 32 * MIB), 'its context is no further one');
  await client.must(`set-limit ${HEAP} ${(8 + 16) * MIB}`);
  t.is(account(grant).held, BigInt(3 * CONTEXT + 48 * MIB));
  t.is((await client.ask(`alloc ${32 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`green-end ${green}`);
  t.is(account(grant).held, BigInt(2 * CONTEXT));
  t.is(books(node)?.bytes, 2 * CONTEXT);
  await client.must('context 0');
  await client.must(`green-end ${second}`);
  t.is(account(grant).held, BigInt(CONTEXT), 'the primary one is held by its own user now');
  await client.must('release 0');
  t.is(account(grant).held, 0n);
  const last = await client.must('green 0 8');
  await client.must(`green-end ${last}`);
  t.is(account(grant).held, 0n, 'with its last green context the primary one goes');
  t.is(books(node)?.bytes, 0);
});

test('a green context that the driver fails to make or to end leaves the account as it was', async (t) => {
  const node = await startNode(t, '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: 512 * MIB }]);
  const env = { COTENANT_SIM_FAULTS: 'cuGreenCtxCreate=46@1x2,cuGreenCtxDestroy=719@1x2' };
  const client = startClient(t, node, { preload: grant.cuda, env });
  await client.must('init');
  const before = account(grant);
  for (let round = 0; round < 2; round++) {
    t.is((await client.ask('green 0 8'))[0], 46);
    t.deepEqual(charged(account(grant)), charged(before));
  }
  const green = await client.must('green 0 8');
  for (let round = 0; round < 2; round++) {
    t.is((await client.ask(`green-end ${green}`))[0], 719);
    t.is(account(grant).held, BigInt(2 * CONTEXT));
  }
  await client.must(`green-end ${green}`);
  t.is(account(grant).held, 0n);
});

test('a green context that does not fit beside its primary one is refused whole', async (t) => {
  const node = await startNode(t, '--card', 't4', '--card', 't4');
  const grant = makeGrant(t, node, [{ card: 0, memoryBytes: CONTEXT + 64 * MIB }]);
  const client = startClient(t, node, { preload: grant.cuda });
  await client.must('init');
  t.is((await client.ask('green 0 8'))[0], OUT_OF_MEMORY);
  t.is((await client.ask('green 1 8'))[0], OUT_OF_MEMORY, 'a card that was not granted');
  t.is(account(grant).pending, 0n);
  t.is(node.books().cards[0]?.usedBytes, 0);
});
