// The extender as a process with the heap that the chart gives it, beside a stand-in for the API server of a cluster
// whose objects are many, large, or go wrong. test/bench/scale measures the full size.
import { Agent, request } from 'node:http';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { eventually } from '../../support/native/node.ts';
import { type Daemon, startExtender } from '../../support/product/daemon.ts';
import { GPUS_PER_NODE, type StandIn, startStandIn } from '../../support/services/stand-in.ts';
import { recordOf } from '../../unit/scheduler/cluster.ts';

/** The chart's limit, which the container must not reach. */
const LIMIT_MIB = 384;

function caller(t: ExecutionContext, { url }: Daemon) {
  const agent = new Agent({ keepAlive: true, maxSockets: 4 });
  t.teardown(() => agent.destroy());
  return async (verb: string, body: object): Promise<Record<string, unknown>> => {
    const said = JSON.stringify(body);
    const { promise, resolve, reject } = Promise.withResolvers<Record<string, unknown>>();
    const headers = { 'content-length': Buffer.byteLength(said) };
    const outgoing = request(`${url}/${verb}`, { method: 'POST', agent, headers }).on('error', reject);
    outgoing.on('response', (incoming) => text(incoming).then((answer) => resolve(JSON.parse(answer)), reject));
    outgoing.end(said);
    return promise;
  };
}

const namesOf = (cluster: StandIn, count: number) =>
  Array.from({ length: count }, (_, index) => cluster.nodeName(index));
const asked = (uid: string, record: string, names: readonly string[]) => ({
  Pod: { metadata: { uid, annotations: { 'cotenant.io/request': record } } },
  NodeNames: names,
});

test('20,000 bound pods of ordinary size fit into the memory of the chart', async (t) => {
  t.timeout(180_000);
  const cluster = await startStandIn(t, { nodes: 1000, pods: 20_000, shares: 8000 });
  const extender = await startExtender(t, cluster.config, { readyMs: 120_000 });
  t.log(`ready after ${Math.round(extender.startedMs)} ms with ${Math.round(extender.peakMib())} MiB at most`);
  t.is(await extender.metric('cotenant_scheduler_granted_pods'), 8000);
  t.true(extender.peakMib() < LIMIT_MIB / 2, `${extender.peakMib()} MiB`);
});

test('10,000 shapes that fit nowhere leave memory bounded; others are decided', async (t) => {
  t.timeout(240_000);
  const nodes = 100;
  const cluster = await startStandIn(t, { nodes, pods: nodes * GPUS_PER_NODE, shares: nodes * GPUS_PER_NODE });
  const extender = await startExtender(t, cluster.config);
  const call = caller(t, extender);
  const names = namesOf(cluster, nodes);
  for (let shape = 0; shape < 10_000; shape += 1) {
    const { NodeNames } = await call('filter', asked(`u${shape}`, recordOf(80_000 + shape), names));
    t.deepEqual(NodeNames, [], String(shape));
  }
  t.log(`${Math.round(extender.peakMib())} MiB at most`);
  t.true(extender.peakMib() < LIMIT_MIB / 2, `${extender.peakMib()} MiB`);
  t.is(((await call('filter', asked('fits', recordOf(1024), names))).NodeNames as string[]).length, nodes);
});

test('pods with huge annotations, and pods of 100 containers, fit into memory', async (t) => {
  t.timeout(180_000);
  // 256 KiB of annotations each: 250 MiB of text in three pages.
  const large = await startStandIn(t, { nodes: 50, pods: 1000, shares: 300, podBytes: 260_000 });
  const first = await startExtender(t, large.config, { readyMs: 120_000 });
  t.log(`${Math.round(first.peakMib())} MiB at most`);
  t.is(await first.metric('cotenant_scheduler_granted_pods'), 300);
  t.true(first.peakMib() < LIMIT_MIB / 2, `${first.peakMib()} MiB`);
  await first.stop();
  const wide = await startStandIn(t, { nodes: 50, pods: 1000, shares: 400, containers: 100 });
  const second = await startExtender(t, wide.config, { readyMs: 120_000 });
  t.log(`${Math.round(second.peakMib())} MiB at most`);
  t.is(await second.metric('cotenant_scheduler_granted_pods'), 400);
  t.true(second.peakMib() < LIMIT_MIB / 2, `${second.peakMib()} MiB`);
});

test('watches that are cut while pods change lose nothing, and do not list again', async (t) => {
  const cluster = await startStandIn(t, { nodes: 10, pods: 300, shares: 300 });
  const extender = await startExtender(t, cluster.config);
  const lists = () => cluster.requests.get('list pods');
  const before = lists();
  for (let round = 0; round < 20; round += 1) {
    for (let pod = 0; pod < 10; pod += 1) cluster.churn();
    cluster.forceDelete(round);
    cluster.cutWatches();
  }
  await eventually(
    async () => (await extender.metric('cotenant_scheduler_granted_pods')) === 280 || undefined,
    '280 pods are left',
    30_000,
  );
  t.is(lists(), before);
});

test('nodes that flap cost no list, and keep what is granted on them', async (t) => {
  t.timeout(120_000);
  const nodes = 50;
  const cluster = await startStandIn(t, { nodes, pods: nodes * GPUS_PER_NODE, shares: nodes * GPUS_PER_NODE });
  const extender = await startExtender(t, cluster.config);
  const call = caller(t, extender);
  const names = namesOf(cluster, nodes);
  const fits = async (uid: string, gib: number) =>
    ((await call('filter', asked(uid, recordOf(gib * 1024), names))).NodeNames as string[]).length;
  const calls = () => [cluster.requests.get('list nodes'), cluster.requests.get('list pods')];
  const before = { calls: calls(), mib: extender.peakMib() };
  for (let round = 0; round < 100; round += 1) {
    for (let node = 0; node < nodes; node += 1) cluster.flap(node);
    cluster.replaceNode(round % nodes);
    // Each GPU has 72 GiB left, whatever its Node says of itself; a Node that was just deleted may be away.
    t.is(await fits(`full-${round}`, 73), 0);
    const free = await fits(`free-${round}`, 72);
    t.true(free >= nodes - 1, String(free));
  }
  await eventually(async () => (await fits('last', 72)) === nodes || undefined, 'all nodes are back');
  t.is(await extender.metric('cotenant_scheduler_nodes'), nodes);
  t.deepEqual(calls(), before.calls);
  const grown = extender.peakMib() - before.mib;
  t.log(`${Math.round(grown)} MiB more after 5,000 changes of 7 kB`);
  t.true(grown < 48, `${grown} MiB`);
});

test('a slow API server delays the start, and nothing else', async (t) => {
  const cluster = await startStandIn(t, { nodes: 10, pods: 2000, shares: 100, slowMs: 300 });
  const extender = await startExtender(t, cluster.config);
  t.is(await extender.metric('cotenant_scheduler_granted_pods'), 100);
  const { NodeNames } = await caller(t, extender)('filter', asked('u', recordOf(1024), namesOf(cluster, 10)));
  t.is((NodeNames as string[]).length, 10);
});

test('a pod that is deleted by force frees what it held at once', async (t) => {
  const cluster = await startStandIn(t, { nodes: 1, pods: GPUS_PER_NODE, shares: GPUS_PER_NODE });
  const extender = await startExtender(t, cluster.config);
  const call = caller(t, extender);
  // Each GPU has 72 GiB free.
  const fits = async () =>
    ((await call('filter', asked('u', recordOf(75 * 1024), namesOf(cluster, 1)))).NodeNames as string[]).length;
  t.is(await fits(), 0);
  cluster.forceDelete(0);
  await eventually(async () => (await fits()) === 1 || undefined, 'it fits');
});
