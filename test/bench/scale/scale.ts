// What the programs of a cluster need at its size: the shipped extender, webhook and agent as processes, beside a
// stand-in for the API server of 5,000 nodes and 100,000 bound pods.
import { writeFileSync } from 'node:fs';
import { Agent as PlainAgent, request as plainRequest } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { MIB } from '../../../src/common/quantity.ts';
import { startNode, type Teardown, temporaryFolder } from '../../support/native/node.ts';
import { CHART_ENV, startAgent } from '../../support/product/agent.ts';
import { type Daemon, startExtender, startWebhook } from '../../support/product/daemon.ts';
import { imageHome } from '../../support/product/image.ts';
import { type StandIn, startStandIn } from '../../support/services/stand-in.ts';
import { recordOf } from '../../unit/scheduler/cluster.ts';
import { creation } from '../../unit/webhook/reviews.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { quantile } from '../statistics.ts';

const sizeOf = (nodes: number, seconds: number) => ({
  ...{ nodes, pods: 20 * nodes, shares: 8 * nodes, shapes: Math.min(1000, nodes), seconds },
});
type Size = ReturnType<typeof sizeOf>;
/** The last one is measured in all; of those before it memory alone. */
const FULL = [sizeOf(10, 3), sizeOf(100, 3), sizeOf(1000, 3), sizeOf(5000, 20)];
const QUICK = [sizeOf(10, 3), sizeOf(500, 3)];
const [REVIEWS, QUICK_REVIEWS] = [20_000, 2000];

const CHURN_PER_SECOND = 100;
const EXTENDER_MIB = 256;
const START_S = 20;
/** Known shapes, as most pods of a cluster have. */
const USUAL_SHAPES = 20;
const LARGE_REVIEW_BYTES = 1.3e6;
const MB = 1e6;

/** Calls over one kept connection. */
function caller(scope: Teardown, url: string) {
  const isTls = url.startsWith('https:');
  const agent = isTls
    ? new TlsAgent({ keepAlive: true, maxSockets: 1, rejectUnauthorized: false })
    : new PlainAgent({ keepAlive: true, maxSockets: 1 });
  scope.teardown(() => agent.destroy());
  return async (path: string, body: string): Promise<unknown> => {
    const headers = { 'content-length': Buffer.byteLength(body), 'content-type': 'application/json' };
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const outgoing = (isTls ? tlsRequest : plainRequest)(`${url}${path}`, { method: 'POST', agent, headers });
    outgoing.on('error', reject);
    outgoing.on('response', (incoming) => text(incoming).then((answer) => resolve(JSON.parse(answer)), reject));
    outgoing.end(body);
    return promise;
  };
}

type Call = ReturnType<typeof caller>;
type Score = { readonly Host: string; readonly Score: number };

const askedOf = (uid: string, mib: number, names: readonly string[]) =>
  JSON.stringify({
    Pod: { metadata: { uid, annotations: { 'cotenant.io/request': recordOf(mib) } } },
    NodeNames: names,
  });

/** Milliseconds of filter and prioritize together, and of bind. */
type Placed = { readonly decidedMs: number; readonly boundMs: number };

async function place(call: Call, pod: string, mib: number, names: readonly string[]): Promise<Placed> {
  const begunMs = performance.now();
  const { NodeNames: feasible } = (await call('/filter', askedOf(pod, mib, names))) as { NodeNames: string[] };
  const scores = (await call('/prioritize', askedOf(pod, mib, feasible))) as Score[];
  const decidedMs = performance.now() - begunMs;
  const best = scores.reduce((one, other) => (other.Score > one.Score ? other : one));
  const binding = JSON.stringify({ PodName: pod, PodNamespace: 'team', PodUID: pod, Node: best.Host });
  const { Error: refused } = (await call('/bind', binding)) as { Error?: string };
  if (refused !== undefined && !refused.includes('listed in time')) throw new Error(refused);
  return { decidedMs, boundMs: performance.now() - begunMs - decidedMs };
}

async function runExtender(scope: Teardown, cluster: StandIn, size: Size, note: (text: string) => void) {
  const extender = await startExtender(scope, cluster.config, { root: imageHome(scope), readyMs: 180_000 });
  note(
    `scale: ${size.nodes} nodes: the extender is ready after ${extender.startedMs / 1000} s with ${extender.peakMib()} MiB at most`,
  );
  const call = caller(scope, extender.url);
  const names = Array.from({ length: size.nodes }, (_, index) => cluster.nodeName(index));
  for (let shape = 0; shape < size.shapes; shape += 1) await call('/filter', askedOf(`s-${shape}`, 64 + shape, names));
  note(`scale: ${extender.peakMib()} MiB at most after ${size.shapes} shapes`);
  const first = await place(call, 'first', 256, names);
  const times: number[] = [];
  const churning = setInterval(cluster.churn, 1000 / CHURN_PER_SECOND);
  const untilMs = performance.now() + size.seconds * 1000;
  // One for each GPU at most: a small cluster would be full before its time is over.
  for (let pod = 0; performance.now() < untilMs && pod < 8 * size.nodes; pod += 1)
    times.push((await place(call, `pod-${pod}`, 256 + 128 * (pod % USUAL_SHAPES), names)).decidedMs);
  clearInterval(churning);
  note(`scale: ${times.length} pods, ${extender.peakMib()} MiB at most`);
  return { extender, times, firstBindMs: first.boundMs };
}

/** The first bind of a leader that may not write its mark, and lists all bound pods. */
async function bindAfterList(scope: Teardown, cluster: StandIn): Promise<number> {
  cluster.refusePatches();
  const extender = await startExtender(scope, cluster.config, { root: imageHome(scope), readyMs: 180_000 });
  const { boundMs } = await place(caller(scope, extender.url), 'listed', 256, [cluster.nodeName(0)]);
  await extender.stop();
  return boundMs;
}

const peakMb = (daemon: Daemon) => (daemon.peakMib() * MIB) / MB;
const describe = ({ nodes, pods, shares, shapes }: Size) =>
  `${nodes} nodes of 8 GPUs, ${pods} bound pods of which ${shares} hold shares, ${shapes} shapes`;

async function measureSmaller(scope: Teardown, size: Size, note: (text: string) => void): Promise<Row> {
  const { extender } = await runExtender(scope, await startStandIn(scope, size), size, note);
  const value = peakMb(extender);
  await extender.stop();
  const reference = { value: null, what: describe(size) };
  return { name: `scale.extender.nodes_${size.nodes}.rss_mb`, value, unit: 'MB', reference };
}

async function measureExtender(scope: Teardown, size: Size, note: (text: string) => void): Promise<Row[]> {
  const cluster = await startStandIn(scope, size);
  const { extender, times, firstBindMs } = await runExtender(scope, cluster, size, note);
  const what = describe(size);
  const rows: Row[] = [
    {
      name: 'scale.extender.rss_mb',
      value: peakMb(extender),
      unit: 'MB',
      reference: { value: null, what },
      goal: { most: (EXTENDER_MIB * MIB) / MB },
    },
    {
      name: 'scale.extender.start_s',
      value: extender.startedMs / 1000,
      unit: 's',
      reference: { value: null, what },
      goal: { most: START_S },
    },
    {
      name: 'scale.extender.decision_p99_ms',
      value: quantile(times, 0.99),
      unit: 'ms',
      reference: {
        value: quantile(times, 0.5),
        what: `the median; with ${CHURN_PER_SECOND} pods a second that change`,
      },
    },
  ];
  await extender.stop();
  const listedMs = await bindAfterList(scope, cluster);
  note(`scale: the first bind took ${Math.round(firstBindMs)} ms, with a list ${Math.round(listedMs)} ms`);
  rows.push({
    name: 'scale.extender.first_bind_ms',
    value: firstBindMs,
    unit: 'ms',
    reference: { value: listedMs, what: 'with a list of all bound pods' },
  });
  return rows;
}

/** Reviews of pods of many namespaces, some of them as large as an API server takes them. */
async function measureWebhook(scope: Teardown, reviews: number, note: (text: string) => void): Promise<Row> {
  note(`scale: the webhook answers ${reviews} reviews`);
  const webhook = await startWebhook(scope, { root: imageHome(scope) });
  const call = caller(scope, webhook.url);
  for (let index = 0; index < reviews; index += 1) {
    const filler = index % 100 === 0 ? 'x'.repeat(LARGE_REVIEW_BYTES) : 'x'.repeat(3000);
    const limits = { 'cotenant.io/gpu-memory': `${256 + (index % 1000)}Mi` };
    const pod = {
      metadata: { name: `pod-${index}`, annotations: { filler } },
      spec: { containers: [{ name: 'main', image: 'x', resources: { limits } }] },
    };
    await call('/mutate', JSON.stringify(creation(pod, { namespace: `team-${index % 5000}` })));
  }
  const value = peakMb(webhook);
  await webhook.stop();
  const what = `${reviews} reviews of 5,000 namespaces, every hundredth of ${LARGE_REVIEW_BYTES / 1e6} MB`;
  return { name: 'scale.webhook.rss_mb', value, unit: 'MB', reference: { value: null, what } };
}

const SETTLED_S = 20;
/** As kube-apiserver sends them. */
const BOOKMARK_MS = 60_000;

async function measureAgent(scope: Teardown, quick: boolean, note: (text: string) => void): Promise<Row[]> {
  const cluster = await startStandIn(scope, { nodes: 10, pods: 100, shares: 0 });
  const file = join(temporaryFolder(scope), 'kubeconfig');
  writeFileSync(file, cluster.config.exportConfig());
  const node = await startNode(scope, '--gpu', 'h100');
  const settings = {
    ...{ 'kubernetes.enabled': true, 'kubernetes.nodeName': cluster.nodeName(0) },
    ...{ 'kubernetes.podResources': join(temporaryFolder(scope), 'kubelet.sock'), calibrate: false },
  };
  const agent = await startAgent(scope, node, { settings, env: { ...CHART_ENV, KUBECONFIG: file } });
  await delay(SETTLED_S * 1000);
  const totals = () => {
    const all = [...cluster.requests];
    const lists = all.filter(([call]) => call.startsWith('list '));
    return { requests: sum(all.map(([, count]) => count)), lists: sum(lists.map(([, count]) => count)) };
  };
  const before = totals();
  const bookmarks = setInterval(cluster.bookmark, BOOKMARK_MS);
  const seconds = quick ? 10 : 320;
  note(`scale: an idle agent is watched for ${seconds} s`);
  await delay(seconds * 1000);
  clearInterval(bookmarks);
  const after = totals();
  const { connections } = cluster;
  await agent.stop();
  const what = `one idle agent over ${seconds} s, ${SETTLED_S} s after its start`;
  const reference = { value: null, what };
  const perSecond = (after.requests - before.requests) / seconds;
  return [
    { name: 'scale.agent.requests_per_s', value: perSecond, unit: '1/s', reference, goal: { most: 0.05 } },
    {
      name: 'scale.agent.lists_per_hour',
      value: ((after.lists - before.lists) / seconds) * 3600,
      unit: '1/h',
      reference,
      goal: { most: 0 },
    },
    { name: 'scale.agent.connections', value: connections, unit: 'connections', reference },
  ];
}

const sum = (values: readonly number[]): number => values.reduce((all, one) => all + one, 0);

export const scale: Bench = {
  name: 'scale',
  what: 'extender, webhook and agent in a cluster of 5,000 nodes and 100,000 pods, for which a stand-in speaks',
  async run(scope, { quick, note }) {
    const rows: Row[] = [];
    const sizes = quick ? QUICK : FULL;
    for (const size of sizes.slice(0, -1)) rows.push(await measureSmaller(scope, size, note));
    for (const size of sizes.slice(-1)) rows.push(...(await measureExtender(scope, size, note)));
    return [
      ...rows,
      await measureWebhook(scope, quick ? QUICK_REVIEWS : REVIEWS, note),
      ...(await measureAgent(scope, quick, note)),
    ];
  },
};
