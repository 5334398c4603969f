// Checkpoints: memory leaves the GPU and comes back, and the charge with it.
import test from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account, charged } from '../../../support/product/ledger-row.ts';

const CONTEXT = 104 * MIB;
const ILLEGAL_STATE = 401;
const [RUNNING, LOCKED, CHECKPOINTED] = [0, 1, 2];

const bytesOf = (node: SimulatedNode, client: Client) =>
  node.usage().clients.find((entry) => entry.pid === client.pid)?.gpus[0]?.bytes;

test('a checkpoint moves memory off the GPU, and a restore brings back all or nothing', async (t) => {
  const node = await startNode(t, '--gpu', 't4,memory=1Gi,reserved=64Mi,context=64Mi');
  const client = await readyClient(t, node);
  const at = await client.must(`alloc ${500 * MIB}`);
  await client.must(`set ${at} 4096 7`);
  const held = bytesOf(node, client);
  t.is((await client.ask('checkpoint-take'))[0], ILLEGAL_STATE, 'not before it is locked');
  await client.must('checkpoint-lock');
  t.is(await client.must('checkpoint-state'), LOCKED);
  await client.must('checkpoint-take');
  t.is(await client.must('checkpoint-state'), CHECKPOINTED);
  t.is(bytesOf(node, client), 0);
  t.is(node.usage().gpus[0]?.usedBytes, 0);
  const other = await readyClient(t, node);
  const taken = await other.must(`alloc ${600 * MIB}`);
  t.is((await client.ask('checkpoint-restore'))[0], OUT_OF_MEMORY, 'the GPU is taken');
  t.is((await client.ask('checkpoint-unlock'))[0], ILLEGAL_STATE);
  await other.must(`free ${taken}`);
  await client.must('checkpoint-restore');
  t.is(bytesOf(node, client), held);
  await client.must('checkpoint-unlock');
  t.is(await client.must('checkpoint-state'), RUNNING);
  t.deepEqual(await client.ask(`check ${at} 4096 7`), [0, 0]);
  await client.must(`free ${at}`);
  t.is(bytesOf(node, client), 64 * MIB);
});

test('a locked process waits in other calls; a dead checkpointed one leaves nothing', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  await client.must(`alloc ${100 * MIB}`);
  await client.must('checkpoint-lock');
  await client.must('checkpoint-take');
  await client.kill();
  await eventually(() => (node.usage().clients.length === 0 ? true : undefined), 'it is out of the books');
  t.is(node.usage().gpus[0]?.usedBytes, 0);
  const next = await readyClient(t, node);
  await next.must('checkpoint-lock');
  const winner = await Promise.race([
    next.ask('alloc 512').then(() => 'allocated'),
    new Promise((resolve) => setTimeout(() => resolve('waits'), 200)),
  ]);
  t.is(winner, 'waits');
});

test('another process can be checkpointed and restored as well', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const [one, other] = [await readyClient(t, node), await readyClient(t, node)];
  await one.must(`alloc ${32 * MIB}`);
  await other.must(`checkpoint-lock ${one.pid}`);
  await other.must(`checkpoint-take ${one.pid}`);
  t.is(bytesOf(node, one), 0);
  t.is(bytesOf(node, other), CONTEXT);
  await other.must(`checkpoint-restore ${one.pid}`);
  t.is(bytesOf(node, one), CONTEXT + 32 * MIB);
  await other.must(`checkpoint-unlock ${one.pid}`);
  t.is((await other.ask('checkpoint-lock 1'))[0], 1, 'no CUDA process');
});

test('memory that another process has open is not checkpointed, its charge stays', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const at = await client.must(`alloc ${32 * MIB}`);
  const [shared, ...handle] = await client.ask(`ipc-get ${at}`);
  t.is(shared, 0);
  const other = await readyClient(t, node);
  const opened = await other.must(`ipc-open new ${handle.join(' ')}`);
  const before = account(grant);
  await client.must('checkpoint-lock');
  t.is((await client.ask('checkpoint-take'))[0], 801);
  t.deepEqual(account(grant), before);
  await other.must(`ipc-close ${opened}`);
  await client.must('checkpoint-take');
  t.is((await other.ask(`ipc-open new ${handle.join(' ')}`))[0] === 0, false, 'nor opened while it is away');
  await client.must('checkpoint-restore');
  t.deepEqual(charged(account(grant)), charged(before));
});

test('a checkpoint releases the charge, and a restore that does not fit is refused', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * CONTEXT + 100 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  await client.must(`alloc ${60 * MIB}`);
  await client.must(`managed ${4 * MIB}`);
  const pooled = await client.must(`pool-alloc ${32 * MIB}`);
  const before = charged(account(grant));
  t.is(Number(before.held), CONTEXT + 96 * MIB);
  await client.must('checkpoint-lock');
  t.deepEqual(charged(account(grant)), before, 'a lock moves nothing');
  await client.must('checkpoint-take');
  t.deepEqual(charged(account(grant)), { held: 0n, pending: 0n, context: 0n, managed: 0n, pool: 0n });
  t.is(bytesOf(node, client), 0);
  const other = await readyClient(t, node, { preload: grant.cuda });
  const taken = await other.must(`alloc ${60 * MIB}`);
  t.is((await client.ask('checkpoint-restore'))[0], OUT_OF_MEMORY, 'refused at the grant, with free memory on the GPU');
  t.is(await client.must('checkpoint-state'), CHECKPOINTED, 'the driver was not asked');
  t.is(account(grant).pending, 0n);
  await other.must(`free ${taken}`);
  await client.must('checkpoint-restore');
  t.deepEqual(charged(account(grant)), before);
  t.is((await other.ask(`alloc ${60 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must('checkpoint-unlock');
  t.deepEqual(charged(account(grant)), before);
  await client.must(`pool-free ${pooled}`);
  await client.must('reset 0');
  t.is(account(grant).held, 0n);
});

test('a failed checkpoint or restore leaves the charge as it was', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const faults =
    'cuCheckpointProcessCheckpoint=999@1x2,cuCheckpointProcessRestore=999@1x2,cuCheckpointProcessUnlock=999@1x2';
  const client = await readyClient(t, node, { preload: grant.cuda, env: { COTENANT_SIM_FAULTS: faults } });
  await client.must(`alloc ${60 * MIB}`);
  const held = charged(account(grant));
  await client.must('checkpoint-lock');
  for (const [step, after] of [
    ['take', held],
    ['restore', { held: 0n, pending: 0n, context: 0n, managed: 0n, pool: 0n }],
    ['unlock', held],
  ] as const) {
    for (let round = 0; round < 2; round++) {
      t.is((await client.ask(`checkpoint-${step}`))[0], 999, step);
      t.deepEqual(charged(account(grant)), after, step);
    }
    await client.must(`checkpoint-${step}`);
  }
  t.deepEqual(charged(account(grant)), held);
});

test('a process restored by another one is charged again when it is unlocked', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 512 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const outside = await readyClient(t, node);
  await client.must(`alloc ${60 * MIB}`);
  const held = charged(account(grant));
  await client.must('checkpoint-lock');
  await client.must('checkpoint-take');
  await outside.must(`checkpoint-restore ${client.pid}`);
  t.is(account(grant).held, 0n);
  await client.must('checkpoint-unlock');
  t.deepEqual(charged(account(grant)), held);
  const neighbor = await readyClient(t, node, { preload: grant.cuda });
  await neighbor.must(`checkpoint-lock ${client.pid}`);
  await neighbor.must(`checkpoint-take ${client.pid}`);
  t.is(bytesOf(node, client), 0);
  t.deepEqual(charged(account(grant)), held, 'the ledger of the other is not ours to write');
});
