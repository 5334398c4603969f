// A pod whose container is restarted after each stop and exceeds its grant again is evicted if the agent is configured
// to: not while a disruption budget forbids it, only once even if the agent is killed meanwhile, and without effect on
// its neighbor.
import type { ExecutionContext } from 'ava';
import type { ActionRecord } from '../../../src/agent/enforcement/action-record.ts';
import { testUnless } from '../../support/gate.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS } from '../../support/services/helm.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';
import { startWhole, WHOLE_VALUES, wholeTools } from '../bed/whole.ts';
import { signalContainer } from '../support/containers.ts';
import { lookAtPermissions } from '../support/permissions.ts';
import { clientOf, containerOf, eventsOf, MIB, type Pod, podOf, rogueOf, untilRunning } from '../support/pods.ts';
import { agentPage, podOfRelease } from '../support/release.ts';

const tools = wholeTools(console.log);
const SHARE = { 'cotenant.io/gpu-memory': '1Gi' };
const STOPS = 2;
const AUDIT_LOG = '/var/lib/cotenant/audit.log';

/** The agent's log lines about a pod. */
function auditOf(bed: Bed, podUid: string): readonly ActionRecord[] {
  const lines = bed.namespaces.run(['cat', AUDIT_LOG]).out.split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line) as ActionRecord).filter((record) => record.podUid === podUid);
}

const evictionsOf = (bed: Bed, podUid: string): readonly string[] =>
  auditOf(bed, podUid)
    .filter(({ action }) => action === 'evict')
    .map(({ result }) => result);

/** Resolves when the agent that replaces this one serves its page. */
const untilNext = (bed: Bed, agent: Pod): Promise<unknown> =>
  eventually(async () => {
    const restarts = (pod: Pod) => containerOf(pod, 'node')?.restartCount ?? 0;
    if (restarts(await podOfRelease(bed, 'agent')) <= restarts(agent)) return undefined;
    return seriesOf((await agentPage(bed)) ?? '', 'cotenant_up') === 1 || undefined;
  }, 'the next agent serves a page');

/** The pod's next stop requests its eviction, and the agent is killed before it gets the response. Resolves once it is
 * evicted. */
async function killedWhileItAsks(t: ExecutionContext, bed: Bed, { metadata: { uid } }: Pod): Promise<void> {
  const agent = await podOfRelease(bed, 'agent');
  const stopped = () => auditOf(bed, uid).some(({ action, result }) => action === 'kill' && result === 'sent');
  await eventually(() => stopped() || undefined, 'its first stop');
  // The API server receives the request and cannot respond.
  bed.pause('etcd');
  try {
    await eventually(() => evictionsOf(bed, uid).length > 0 || undefined, 'its eviction is asked for');
    signalContainer(bed, agent, 'node', 'SIGKILL');
    t.deepEqual(evictionsOf(bed, uid), ['asked']);
  } finally {
    bed.resume('etcd');
  }
  await untilNext(bed, agent);
  await eventually(() => evictionsOf(bed, uid).includes('sent') || undefined, 'the next one asks again');
  t.deepEqual(evictionsOf(bed, uid), ['asked', 'asked', 'sent']);
  const hit = auditOf(bed, uid)
    .filter(({ action }) => action === 'kill')
    .flatMap(({ processes }) => processes.filter(({ result }) => result === 'sent').map(({ pid }) => pid));
  t.true(hit.length >= STOPS);
  t.is(new Set(hit).size, hit.length, 'no process was killed twice');
}

testUnless(tools.ok ? undefined : tools.reason)(
  'only a pod that is stopped too often is evicted, within its disruption budget',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!tools.ok) throw new Error(tools.reason);
    const enforcement = { evictAfterStops: STOPS };
    const { bed } = await startWhole(tools, ['l4'], (line) => t.log(line), {
      ...WHOLE_VALUES,
      agent: { configuration: { ...WHOLE_VALUES.agent.configuration, enforcement } },
    });
    t.teardown(() => bed.close());
    bed.apply(podOf('neighbor', [clientOf(SHARE, ['init', 'context 0'])]));
    await untilRunning(bed, 'neighbor');

    const labels = { app: 'rogue' };
    bed.apply({
      apiVersion: 'policy/v1',
      kind: 'PodDisruptionBudget',
      metadata: { name: 'rogue', namespace: 'default' },
      spec: { minAvailable: 1, selector: { matchLabels: labels } },
    });
    const container = rogueOf(SHARE, ['init', 'context 0', `alloc ${2048 * MIB}`]);
    bed.apply({
      apiVersion: 'apps/v1',
      kind: 'ReplicaSet',
      metadata: { name: 'rogue', namespace: 'default' },
      spec: {
        replicas: 1,
        selector: { matchLabels: labels },
        template: { metadata: { labels }, spec: { containers: [container] } },
      },
    });
    const path = '/api/v1/namespaces/default/pods?labelSelector=app%3Drogue';
    const found = (what: string, good: (pod: Pod) => boolean) =>
      eventually(async () => (await bed.api.get<{ items: Pod[] }>(path))?.items.find(good), what);
    const { metadata } = await found('the ReplicaSet made a pod', () => true);
    const eventOf = (what: string, words: RegExp) =>
      eventually(async () => (await eventsOf(bed, metadata.name)).find(({ message }) => words.test(message)), what);

    const refused = await eventOf('the budget is honored', /the API server refused its eviction$/);
    t.is(refused.type, 'Warning');
    await found(
      'it is still there, restarted',
      (pod) => pod.metadata.uid === metadata.uid && (containerOf(pod)?.restartCount ?? 0) >= STOPS - 1,
    );
    const decisions = async (decision: string) =>
      seriesOf((await agentPage(bed)) ?? '', 'cotenant_enforcement_decisions_total', { decision });
    // The page is rendered after the decision is logged.
    await eventually(async () => ((await decisions('refused')) ?? 0) > 0 || undefined, 'the refusal is counted');
    t.is(await decisions('evicted'), 0);
    const given = seriesOf((await agentPage(bed)) ?? '', 'cotenant_volume_publishes_total', { result: 'published' });
    t.is(given, 2, 'each pod has its volume once, whatever becomes of its containers');

    t.is(bed.kubectl('delete', 'poddisruptionbudget', 'rogue').code, 0);
    const evicted = await eventOf('the next stop asks again', /the pod is evicted$/);
    t.regex(
      evicted.message,
      new RegExp(`^the agent stopped containers of default/${metadata.name} \\d+ times within 10 min; `),
    );
    const second = await found('another one was made', ({ metadata: { uid } }) => uid !== metadata.uid);
    await killedWhileItAsks(t, bed, second);
    const gone = [metadata.uid, second.metadata.uid];
    const third = await found('a third one was made', ({ metadata: { uid } }) => !gone.includes(uid));
    t.is(third.metadata.deletionTimestamp, undefined);
    // This pod must not be stopped.
    t.is(bed.kubectl('scale', 'replicaset', 'rogue', '--replicas=0').code, 0);
    const evictions = (count: number) => async () => (await decisions('evicted')) === count || undefined;
    await eventually(evictions(1), 'the new agent counts the eviction that it completed');

    const agent = await podOfRelease(bed, 'agent');
    signalContainer(bed, agent, 'node', 'SIGKILL');
    await untilNext(bed, agent);
    await eventually(evictions(0), 'a new agent counts from zero');
    t.deepEqual(
      evictionsOf(bed, second.metadata.uid),
      ['asked', 'asked', 'sent'],
      'an answered request is not repeated',
    );
    t.deepEqual(evictionsOf(bed, third.metadata.uid), []);
    const neighbor = await untilRunning(bed, 'neighbor');
    t.is(containerOf(neighbor)?.restartCount, 0);
    t.deepEqual((await lookAtPermissions(bed, NAMESPACE)).denied, []);
  },
);
