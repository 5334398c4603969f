// Driver calls that fail after the reservation: the ledger is as before, to the byte.
import test from 'ava';
import { OUT_OF_MEMORY, readyClient, startClient } from '../../../support/native/client.ts';
import { startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account, charged } from '../../../support/product/ledger-row.ts';

const CONTEXT = 104 * MIB;
const ROUNDS = 20;

// Form, entry point that fails, the driver's error, and the commands that free the memory.
const FORMS: [string, string, number, (answer: number[]) => string[]][] = [
  [`alloc ${16 * MIB}`, 'cuMemAlloc_v2', 999, ([, at]) => [`free ${at}`]],
  ['alloc 512', 'cuMemAlloc_v2', 719, ([, at]) => [`free ${at}`]],
  ['pitch 1000000 40', 'cuMemAllocPitch_v2', 1, ([, at]) => [`free ${at}`]],
  [`managed ${16 * MIB}`, 'cuMemAllocManaged', OUT_OF_MEMORY, ([, at]) => [`free ${at}`]],
  [`physical ${16 * MIB}`, 'cuMemCreate', 700, ([, handle]) => [`unhandle ${handle}`]],
  [`pool-alloc ${16 * MIB}`, 'cuMemAllocAsync', 46, ([, at]) => [`pool-free ${at}`, 'sync', 'pool-trim 0']],
  [`pool-from ${16 * MIB}`, 'cuMemAllocFromPoolAsync', 46, ([, at]) => [`pool-free ${at}`, 'sync', 'pool-trim 0']],
  ['create 0', 'cuCtxCreate_v2', 46, ([, context]) => [`destroy ${context}`, 'context 0']],
];

// With much memory left, and with little, where some requests are charged before their call.
const CASES = FORMS.flatMap(([form, ...rest]) => {
  const contexts = form === 'create 0' ? 2 : 1;
  const little = contexts * CONTEXT + (/^(pitch|pool)/.test(form) ? 48 : 24) * MIB;
  return ([512 * MIB, little] as const).map((limit) => [limit, form, ...rest] as const);
});

for (const [limit, form, symbol, error, undo] of CASES) {
  const title = `${form} in ${limit / MIB} MiB: a driver that fails with ${error} leaves the account as it was`;
  test(`${title}, and the next request is charged`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: limit }]);
    const client = await readyClient(t, node, {
      preload: grant.cuda,
      env: { COTENANT_SIM_FAULTS: `${symbol}=${error}@1x${ROUNDS}` },
    });
    const before = account(grant);
    t.is(before.held, BigInt(CONTEXT));
    for (let round = 0; round < ROUNDS; round++) {
      t.is((await client.ask(form))[0], error);
      t.deepEqual(account(grant), before, `round ${round}`);
    }
    const answer = await client.ask(form);
    t.is(answer[0], 0);
    t.is(account(grant).held, BigInt(node.usage().clients[0]?.gpus[0]?.bytes ?? 0), 'what the GPU gave');
    for (const command of undo(answer)) t.is((await client.ask(command))[0], 0, command);
    t.deepEqual(charged(account(grant)), charged(before));
  });
}

test('a first context that the driver refuses is not charged, and the next attempt is', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
  const env = { COTENANT_SIM_FAULTS: `cuDevicePrimaryCtxRetain=46@1x${ROUNDS}` };
  const client = startClient(t, node, { preload: grant.cuda, env });
  await client.must('init');
  const before = account(grant);
  t.is(before.held, 0n);
  for (let round = 0; round < ROUNDS; round++) {
    t.is((await client.ask('context 0'))[0], 46);
    t.deepEqual(account(grant), before, `round ${round}`);
  }
  await client.must('context 0');
  t.is(account(grant).held, BigInt(CONTEXT));
});

test('a failed request for a shared granule changes nothing in a full grant', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 120 * MIB }]);
  // Seven granules beside the context, the eighth is refused by the grant; then the driver is at fault.
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    env: { COTENANT_SIM_FAULTS: `cuMemAlloc_v2=999@9x${ROUNDS}` },
  });
  await client.must('alloc 512');
  t.deepEqual(await client.ask(`fill-all ${2 * MIB}`), [OUT_OF_MEMORY, 7]);
  const before = account(grant);
  t.is(before.held, BigInt(120 * MIB));
  for (let round = 0; round < ROUNDS; round++) {
    t.is((await client.ask('alloc 512'))[0], 999);
    t.deepEqual(account(grant), before);
  }
  await client.must('alloc 512');
  t.deepEqual(account(grant), before, 'it cost nothing');
});

const RELEASES: [string, string, (answer: number[]) => string][] = [
  [`alloc ${16 * MIB}`, 'cuMemFree_v2', ([, at]) => `free ${at}`],
  ['alloc 512', 'cuMemFree_v2', ([, at]) => `free ${at}`],
  [`managed ${16 * MIB}`, 'cuMemFree_v2', ([, at]) => `free ${at}`],
  [`physical ${16 * MIB}`, 'cuMemRelease', ([, handle]) => `unhandle ${handle}`],
  ['create 0', 'cuCtxDestroy_v2', ([, context]) => `destroy ${context}`],
];

for (const [form, symbol, undo] of RELEASES) {
  test(`${form}: what ${symbol} fails to free stays charged until it succeeds`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
    const env = { COTENANT_SIM_FAULTS: `${symbol}=719@1x${ROUNDS}` };
    const client = await readyClient(t, node, { preload: grant.cuda, env });
    const before = account(grant);
    const answer = await client.ask(form);
    t.is(answer[0], 0);
    const taken = account(grant);
    t.true(taken.held > before.held);
    for (let round = 0; round < ROUNDS; round++) {
      t.is((await client.ask(undo(answer)))[0], 719);
      t.deepEqual(account(grant), taken);
    }
    t.is((await client.ask(undo(answer)))[0], 0);
    t.deepEqual(charged(account(grant)), charged(before));
    t.is(account(grant).freed, before.freed + taken.held - before.held);
  });
}

test('a refused mapping leaves what is mapped there already', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = charged(account(grant));
  const [result, at, large] = await client.ask(`vmm ${64 * MIB}`);
  t.is(result, 0);
  const small = await client.must(`physical ${2 * MIB}`);
  t.is((await client.ask(`map ${at} ${2 * MIB} ${small}`))[0], 1, 'the place is taken');
  await client.must(`unhandle ${large}`);
  t.is(account(grant).held - before.held, BigInt(66 * MIB), 'the large one is still mapped');
  await client.must(`unhandle ${small}`);
  t.is(account(grant).held - before.held, BigInt(64 * MIB), 'the small one never was');
  await client.must(`unmap ${at} ${64 * MIB}`);
  t.deepEqual(charged(account(grant)), before);
  t.is(node.usage().clients[0]?.gpus[0]?.vmm, 0);
});
