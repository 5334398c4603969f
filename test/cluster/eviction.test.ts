// A pod whose container is started anew after each stop, and exceeds its grant again: it is evicted where the agent is told to,
// not while a disruption budget forbids it, and its neighbour sees nothing.
import { seriesOf } from '../support/agent.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD_MS } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { NAMESPACE } from './bed/product.ts';
import { startWhole, WHOLE_VALUES, wholeGround } from './bed/whole.ts';
import { lookAtPermissions } from './support/permissions.ts';
import { cheatOf, clientOf, containerOf, eventsOf, MIB, type Pod, podOf, untilRunning } from './support/pods.ts';
import { agentPage } from './support/release.ts';

const ground = wholeGround(console.log);
const SHARE = { 'cotenant.io/gpu-memory': '1Gi' };
const STOPS = 2;

testUnless(ground.ok ? undefined : ground.reason)(
  'a pod that is stopped too often is evicted, as its disruption budget allows, and nobody else',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!ground.ok) throw new Error(ground.reason);
    const enforcement = { evictAfterStops: STOPS };
    const { bed } = await startWhole(ground, ['l4'], (line) => t.log(line), {
      ...WHOLE_VALUES,
      agent: { configuration: { ...WHOLE_VALUES.agent.configuration, enforcement } },
    });
    t.teardown(() => bed.close());
    bed.apply(podOf('neighbour', [clientOf(SHARE, ['init', 'context 0'])]));
    await untilRunning(bed, 'neighbour');

    const labels = { app: 'cheat' };
    bed.apply({
      apiVersion: 'policy/v1',
      kind: 'PodDisruptionBudget',
      metadata: { name: 'cheat', namespace: 'default' },
      spec: { minAvailable: 1, selector: { matchLabels: labels } },
    });
    const container = cheatOf(SHARE, ['init', 'context 0', `alloc ${2048 * MIB}`]);
    bed.apply({
      apiVersion: 'apps/v1',
      kind: 'ReplicaSet',
      metadata: { name: 'cheat', namespace: 'default' },
      spec: {
        replicas: 1,
        selector: { matchLabels: labels },
        template: { metadata: { labels }, spec: { containers: [container] } },
      },
    });
    const path = '/api/v1/namespaces/default/pods?labelSelector=app%3Dcheat';
    const found = (what: string, good: (pod: Pod) => boolean) =>
      eventually(async () => (await bed.api.get<{ items: Pod[] }>(path))?.items.find(good), what, 120_000);
    const { metadata } = await found('the ReplicaSet made a pod', () => true);
    const told = (what: string, words: RegExp) =>
      eventually(
        async () => (await eventsOf(bed, metadata.name)).find(({ message }) => words.test(message)),
        what,
        120_000,
      );

    const refused = await told('the budget is honoured', /should be evicted, and is not$/);
    t.is(refused.type, 'Warning');
    await found(
      'it is still there, started anew',
      (pod) => pod.metadata.uid === metadata.uid && (containerOf(pod)?.restartCount ?? 0) >= STOPS - 1,
    );
    const decisions = async (decision: string) =>
      seriesOf((await agentPage(bed)) ?? '', 'cotenant_enforcement_decisions_total', { decision });
    // The page is made anew after what was done is told.
    await eventually(async () => ((await decisions('refused')) ?? 0) > 0 || undefined, 'the refusal is counted');
    t.is(await decisions('evicted'), 0);

    t.is(bed.kubectl('delete', 'poddisruptionbudget', 'cheat').code, 0);
    const evicted = await told('the next stop asks again', /it is evicted$/);
    t.regex(evicted.message, new RegExp(`^default/${metadata.name} was stopped \\d+ times within 10 min`));
    await found('another one was made', ({ metadata: { uid } }) => uid !== metadata.uid);
    await eventually(async () => (await decisions('evicted')) === 1 || undefined, 'the eviction is counted');
    const neighbour = await untilRunning(bed, 'neighbour');
    t.is(containerOf(neighbour)?.restartCount, 0);
    t.deepEqual((await lookAtPermissions(bed, NAMESPACE)).denied, []);
  },
);
