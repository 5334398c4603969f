// Graphs and stream capture: what the simulated driver does, and how the interposer limits their memory.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { type Client, OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { BUILD, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { MIB, makeGrant } from '../../../support/product/grant.ts';
import { account, charged } from '../../../support/product/ledger-row.ts';

const CONTEXT = 104 * MIB;
const RESERVED = 2;

const graphBytes = (node: SimulatedNode) => node.usage().clients[0]?.gpus[0]?.graph ?? -1;

/** A graph that allocates, fills, and frees again; without `free` the memory lives on after a launch. */
async function memoryGraph(client: Client, bytes: number, free = true): Promise<{ graph: number; at: number }> {
  const graph = await client.must('graph');
  const at = await client.must(`node-alloc ${graph} ${bytes}`);
  await client.must(`node-set ${graph} ${at} ${Math.min(bytes, 4096)}`);
  if (free) await client.must(`node-free ${graph} ${at}`);
  return { graph, at };
}

test('a graph allocates at its first launch, keeps it, and a trim gives it back', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  const { graph } = await memoryGraph(client, 15 * MIB);
  const exec = await client.must(`instantiate ${graph}`);
  t.is(graphBytes(node), 0, 'an executable graph alone holds nothing');
  t.is((await client.ask(`instantiate ${graph}`))[0], 801, 'one executable graph at a time');
  await client.must(`graph-launch ${exec}`);
  t.is(graphBytes(node), 16 * MIB);
  await client.must(`graph-launch ${exec}`);
  t.is(graphBytes(node), 16 * MIB, 'the same again');
  await client.must(`exec-end ${exec}`);
  await client.must(`graph-end ${graph}`);
  t.is(graphBytes(node), 16 * MIB, 'kept');
  const other = await memoryGraph(client, 16 * MIB);
  const next = await client.must(`instantiate-params ${other.graph} 2`);
  t.is(graphBytes(node), 16 * MIB, 'and used by the next, which was uploaded as it was instantiated');
  await client.must('graph-trim 0');
  t.is(graphBytes(node), 0);
  await client.must(`graph-upload ${next}`);
  t.is(await client.must(`graph-memory 0 ${RESERVED}`), 16 * MIB);
  t.is(await client.must('graph-memory 0 3'), 16 * MIB, 'the most that it was');
  await client.must('graph-trim 0');
  await client.must('graph-mark 0 3');
  t.is(await client.must('graph-memory 0 3'), 0);
});

test('memory that a graph does not free lives on, and blocks its next launch', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  const { graph, at } = await memoryGraph(client, 4 * MIB, false);
  const exec = await client.must(`instantiate ${graph}`);
  t.is((await client.ask(`set ${at} 4096 1`))[0], 1, 'no memory there yet');
  await client.must(`graph-launch ${exec}`);
  t.deepEqual(await client.ask(`check ${at} 4096 7`), [0, 0], 'filled by the graph');
  t.is((await client.ask(`graph-launch ${exec}`))[0], 1);
  await client.must('graph-trim 0');
  t.is(graphBytes(node), 4 * MIB, 'in use');
  t.is(await client.must('graph-memory 0 0'), 4 * MIB);
  await client.must(`free ${at}`);
  t.is(await client.must('graph-memory 0 0'), 0);
  t.is((await client.ask(`free ${at}`))[0], 1, 'not twice');
  await client.must(`graph-launch ${exec}`);
  await client.must(`pool-free ${at}`);
  await client.must(`exec-end ${exec}`);
  const freeing = await client.must(`instantiate ${graph} 1`);
  await client.must(`graph-launch ${freeing}`);
  await client.must(`graph-launch ${freeing}`);
  t.is(graphBytes(node), 4 * MIB, 'freed at the next launch, as asked for');
  await client.must('reset 0');
  t.is(node.usage().clients[0]?.gpus[0]?.bytes, 0, 'the end of the last context takes it along');
});

test('a capturing stream records launches, fills and allocations, and runs nothing', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const client = await readyClient(t, node);
  const ran = () => node.usage().clients[0]?.gpus[0]?.smNs ?? -1;
  const [stream, other] = [await client.must('stream'), await client.must('stream')];
  t.is((await client.ask('capture 0'))[0], 900, 'not the default stream');
  t.is((await client.ask(`capture-end ${stream}`))[0], 401, 'no capture has begun');
  await client.must(`capture ${stream}`);
  t.is(await client.must(`capturing ${stream}`), 1);
  const at = await client.must(`stream-alloc ${stream} ${6 * MIB}`);
  await client.must(`stream-set ${stream} ${at} 4096`);
  await client.must(`stream-launch ${stream} 1000`);
  await client.must(`stream-joins ${stream} ${other}`);
  t.is(await client.must(`capturing ${other}`), 1);
  await client.must(`stream-launch ${other} 2000`);
  t.is((await client.ask(`capture-end ${other}`))[0], 903, 'begun elsewhere');
  await client.must(`stream-joins ${other} ${stream}`);
  const graph = await client.must(`capture-end ${stream}`);
  t.deepEqual([await client.must(`capturing ${stream}`), await client.must(`capturing ${other}`)], [0, 0]);
  await client.ask('sync');
  t.deepEqual([ran(), graphBytes(node)], [0, 0]);
  const exec = await client.must(`instantiate ${graph}`);
  for (const round of [1, 2]) {
    await client.must(`graph-launch ${exec} ${stream}`);
    await client.ask('sync');
    t.is(ran(), round * 3_000_000);
    t.deepEqual(await client.ask(`check ${at} 4096 9`), [0, 0]);
    await client.must(`stream-free ${other} ${at}`);
  }
  await client.must(`capture ${stream}`);
  t.is((await client.ask(`stream-sync ${stream}`))[0], 900, 'waiting for it voids the capture');
  t.is(await client.must(`capturing ${stream}`), 2);
  t.is((await client.ask(`stream-launch ${stream} 10`))[0], 901);
  t.is((await client.ask(`capture-end ${stream}`))[0], 901);
});

test('the charge for graphs is what the driver has reserved after each call', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const before = charged(account(grant));
  const beside = () => Number(account(grant).held) - CONTEXT;
  const { graph, at } = await memoryGraph(client, 31 * MIB, false);
  const exec = await client.must(`instantiate ${graph}`);
  t.deepEqual(charged(account(grant)), before, 'checked, not charged');
  await client.must(`graph-launch ${exec}`);
  t.deepEqual([beside(), graphBytes(node)], [32 * MIB, 32 * MIB]);
  t.is(Number(account(grant).pool), 32 * MIB);
  t.deepEqual(await client.ask('info'), [0, (256 - 32) * MIB - CONTEXT, 256 * MIB]);
  await client.must(`free ${at}`);
  t.is(beside(), 32 * MIB, 'still reserved');
  await client.must(`exec-end ${exec}`);
  await client.must(`graph-end ${graph}`);
  t.deepEqual([beside(), graphBytes(node)], [32 * MIB, 32 * MIB]);
  await client.must('graph-trim 0');
  t.deepEqual(charged(account(grant)), before);
  const other = await memoryGraph(client, 8 * MIB);
  const uploaded = await client.must(`instantiate ${other.graph}`);
  await client.must(`graph-upload ${uploaded}`);
  t.is(beside(), 8 * MIB);
  await client.must('reset 0');
  t.is(account(grant).held, 0n, 'the end of the last context takes it along');
});

for (const form of ['instantiate', 'instantiate-1', 'instantiate-2', 'instantiate-params', 'instantiate-ptsz']) {
  test(`${form}: only a graph that does not fit into the grant is refused`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 168 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const graph = await client.must('graph');
    await client.must(`alloc-node ${graph} ${32 * MIB}`);
    const child = await client.must('graph');
    await client.must(`node-alloc ${child} ${30 * MIB}`);
    await client.must(`node-child ${graph} ${child}`);
    const before = account(grant);
    const fits = await client.must(`${form} ${graph}`);
    await client.must(`exec-end ${fits}`);
    await client.must(`node-alloc ${graph} ${3 * MIB}`);
    const [result] = await client.ask(`${form} ${graph}`);
    t.is(result, OUT_OF_MEMORY, '32 + 30 + 4 of 64 MiB, in a graph and the one within it');
    t.deepEqual(charged(account(grant)), charged(before));
    const absurd = await memoryGraph(client, 60 * 1024 * MIB);
    t.is((await client.ask(`${form} ${absurd.graph}`))[0], OUT_OF_MEMORY);
    t.is(graphBytes(node), 0);
  });
}

for (const launch of ['graph-launch', 'graph-launch-ptsz', 'graph-upload']) {
  test(`${launch}: memory allocated since the graph was instantiated is not used twice`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 168 * MIB }]);
    const client = await readyClient(t, node, { preload: grant.cuda });
    const { graph } = await memoryGraph(client, 40 * MIB);
    const exec = await client.must(`instantiate ${graph}`);
    const linear = await client.must(`alloc ${30 * MIB}`);
    const before = account(grant);
    t.is((await client.ask(`${launch} ${exec}`))[0], OUT_OF_MEMORY);
    t.deepEqual(account(grant), before);
    t.is(graphBytes(node), 0, 'the driver was not asked');
    await client.must(`free ${linear}`);
    await client.must(`${launch} ${exec}`);
    t.is(graphBytes(node), 40 * MIB);
    t.is(account(grant).held, BigInt(CONTEXT + 40 * MIB));
    t.is(
      (await client.ask(`alloc ${30 * MIB}`))[0],
      0,
      'what graphs keep unused is let go before a request is refused',
    );
    t.is(graphBytes(node), 0);
    t.is((await client.ask(`${launch} ${exec}`))[0], OUT_OF_MEMORY, 'and then it is not there for the graph');
    t.true((node.usage().clients[0]?.gpus[0]?.peak ?? 0) <= 168 * MIB);
  });
}

test('a graph with reserved memory can be launched in a full grant, on any stream', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 168 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const { graph } = await memoryGraph(client, 40 * MIB);
  await client.must(`node-kernel ${graph} 2000000`);
  const exec = await client.must(`instantiate-params ${graph} 2`);
  const stream = await client.must('stream');
  await client.must(`alloc ${24 * MIB}`);
  await client.must(`graph-launch ${exec}`);
  // Busy, so trimming takes nothing from it; but it was tried.
  t.is((await client.ask(`alloc ${2 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`graph-launch ${exec}`);
  await client.must(`graph-launch ${exec} ${stream}`);
  t.is(account(grant).held, BigInt(168 * MIB));
  t.is(account(grant).pending, 0n);
  t.is(node.usage().clients[0]?.gpus[0]?.peak, 168 * MIB);
});

test('an allocation on a capturing stream is charged when its graph is launched', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 168 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const stream = await client.must('stream');
  const before = charged(account(grant));
  const record = async (bytes: number): Promise<number> => {
    await client.must(`capture ${stream}`);
    const at = await client.must(`stream-alloc ${stream} ${bytes}`);
    await client.must(`stream-free ${stream} ${at}`);
    return client.must(`capture-end ${stream}`);
  };
  const [small, large] = [await record(20 * MIB), await record(100 * MIB)];
  t.deepEqual(charged(account(grant)), before);
  t.is((await client.ask(`instantiate ${large}`))[0], OUT_OF_MEMORY, 'it is refused where it becomes executable');
  const exec = await client.must(`instantiate ${small}`);
  await client.must(`graph-launch ${exec} ${stream}`);
  t.is(Number(account(grant).held), CONTEXT + 20 * MIB);
  t.is(graphBytes(node), 20 * MIB);
});

test('a driver that fails at any step of a graph leaves the charge as it was', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const steps = [
    'cuGraphGetNodes=999@1x2',
    'cuGraphNodeGetType=999@1x2',
    'cuGraphMemAllocNodeGetParams=999@1x2',
    'cuGraphInstantiateWithFlags=46@1x2',
    'cuGraphUpload=46@1x2',
    'cuGraphLaunch=46@1x2',
    'cuGraphExecDestroy=719@1x2',
    'cuDeviceGraphMemTrim=719@1x2',
  ];
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    env: { COTENANT_SIM_FAULTS: steps.join(',') },
  });
  const { graph } = await memoryGraph(client, 16 * MIB);
  const before = account(grant);
  const failing = async (command: string, errors: readonly number[], after: () => unknown, expected: unknown) => {
    for (const error of errors) {
      t.is((await client.ask(command))[0], error, command);
      t.deepEqual(after(), expected, `${command}, ${error}`);
    }
  };
  const same = () => charged(account(grant));
  await failing(`instantiate ${graph}`, [999, 999, 999, 999, 999, 999, 46, 46], same, charged(before));
  const exec = await client.must(`instantiate ${graph}`);
  await failing(`graph-upload ${exec}`, [46, 46], same, charged(before));
  await failing(`graph-launch ${exec}`, [46, 46], same, charged(before));
  await client.must(`graph-launch ${exec}`);
  const taken = charged(account(grant));
  t.is(Number(taken.held), CONTEXT + 16 * MIB);
  await failing(`exec-end ${exec}`, [719, 719], same, taken);
  await client.must(`graph-launch ${exec}`);
  await client.must(`exec-end ${exec}`);
  await failing('graph-trim 0', [719, 719], same, taken);
  await client.must('graph-trim 0');
  t.deepEqual(same(), charged(before));
});

test('graph launches wait at a closed gate; captured ones do not', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 256 * MIB }]);
  const client = await readyClient(t, node, { preload: grant.cuda });
  const gate = (closed: number) =>
    execFileSync(join(BUILD, 'tests/set_gate'), [join(grant.folder, 'limits'), String(closed)]);
  const stream = await client.must('stream');
  const plain = await client.must('graph');
  await client.must(`node-kernel ${plain} 100`);
  const { graph } = await memoryGraph(client, 4 * MIB);
  for (const [index, command] of [`instantiate ${plain}`, `instantiate ${graph}`].entries()) {
    const exec = await client.must(command);
    gate(1);
    await client.must(`capture ${stream}`);
    t.is((await client.ask(`stream-launch ${stream} 10`))[0], 0, 'recorded at a closed gate');
    await client.must(`capture-end ${stream}`);
    const launched = client.ask(`graph-launch ${exec}`);
    let done = false;
    void launched.then(() => {
      done = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 200)); // long enough for a launch that is not held
    t.false(done, `graph ${index}`);
    t.is(graphBytes(node), 0);
    gate(0);
    t.is((await launched)[0], 0);
  }
  t.is(graphBytes(node), 4 * MIB);
});
