// A pod of high priority displaces pods of lower priority: what filter nominates, what bind evicts and when it writes,
// and what the verb preempt answers.
import test, { type ExecutionContext } from 'ava';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { eventually } from '../../support/native/node.ts';
import { recordOf, uuid } from '../../unit/scheduler/cluster.ts';
import { type Api, startApi } from './api.ts';
import { leads, type Running, start } from './running.ts';

/** A bound pod with so many MiB of GPU `gpu`, which is the only one of its node. */
function addHolder(
  api: Api,
  name: string,
  {
    node,
    gpu,
    mib,
    priority = 0,
    labels = {},
  }: {
    node: string;
    gpu: number;
    mib: number;
    priority?: number;
    labels?: Record<string, string>;
  },
) {
  const gpus = [{ gpuUuid: uuid(gpu), memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus }];
  return api.addPod(name, mib, {
    metadata: {
      ...{ namespace: 'team', name, uid: `uid-${name}`, resourceVersion: '1', labels },
      annotations: { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 0, containers }) },
    },
    spec: { nodeName: node, priority, containers: [] },
    status: { phase: 'Running' },
  });
}

const podOf = (name: string, mib: number, spec: object) => ({
  metadata: { uid: `uid-${name}`, name, namespace: 'team', annotations: { [REQUEST_ANNOTATION]: recordOf(mib) } },
  spec,
});

async function started(t: ExecutionContext, gpus: Readonly<Record<string, number>>, prepare: (api: Api) => void) {
  const api = await startApi(t, gpus);
  prepare(api);
  api.lead('pod-a_1', 1);
  const running = await start(t, api);
  await leads(running);
  return { api, running };
}

const nominated = async (running: Running, name: string, mib: number, spec: object, nodes: readonly string[]) =>
  (await running.call('filter', { Pod: podOf(name, mib, spec), NodeNames: nodes })).body.NodeNames;

test('bind evicts what is in the way, waits until it is gone, and then writes', async (t) => {
  const { api, running } = await started(t, { a: 1000, b: 1000 }, (api) => {
    addHolder(api, 'low', { node: 'a', gpu: 0, mib: 800, priority: 1 });
    addHolder(api, 'lower', { node: 'b', gpu: 1, mib: 800 });
    api.addPod('urgent', 600);
  });
  t.deepEqual(await nominated(running, 'urgent', 600, { priority: 5 }, ['a', 'b']), ['b']);
  t.deepEqual(api.evictions, [], 'filter only reads');
  const binding = running.bind('urgent', 'b');
  await eventually(() => api.evictions.length > 0 || undefined, 'a pod is evicted');
  t.deepEqual(
    api.evictions.map(({ metadata }) => metadata?.name),
    ['lower'],
  );
  t.deepEqual(api.bindings, [], 'nothing is written while the pod is there');
  t.deepEqual(await nominated(running, 'other', 100, { priority: 0 }, ['b']), [], 'what it leaves is held');
  const gone = api.pods.get('lower');
  api.pods.delete('lower');
  if (gone) api.show('DELETED', gone);
  t.is(await binding, undefined);
  t.is(api.bindings.length, 1);
  await eventually(() => api.events.length > 0 || undefined, 'its Event');
  t.deepEqual(
    api.events.map(({ reason, involvedObject }) => `${reason} ${involvedObject.name}`),
    ['GPUPreempted lower'],
  );
});

test('no pod is evicted for one that may not preempt, or would not fit even then', async (t) => {
  const { api, running } = await started(t, { a: 1000 }, (api) => {
    addHolder(api, 'equal', { node: 'a', gpu: 0, mib: 500, priority: 5 });
    addHolder(api, 'low', { node: 'a', gpu: 0, mib: 400 });
    api.addPod('urgent', 600);
  });
  const cases: [what: string, mib: number, spec: object][] = [
    ['equal priority', 600, { priority: 5 }],
    ['a policy', 500, { priority: 5, preemptionPolicy: 'Never' }],
    ['no priority', 500, {}],
  ];
  for (const [what, mib, spec] of cases) t.deepEqual(await nominated(running, what, mib, spec, ['a']), [], what);
  t.deepEqual(await nominated(running, 'urgent', 500, { priority: 5 }, ['a']), ['a']);
  t.deepEqual(api.evictions, []);
});

test('a pod whose budget allows no eviction stays', async (t) => {
  const { running } = await started(t, { a: 1000, b: 1000 }, (api) => {
    addHolder(api, 'kept', { node: 'a', gpu: 0, mib: 800, labels: { app: 'kept' } });
    addHolder(api, 'other', { node: 'b', gpu: 1, mib: 800, priority: 3 });
    api.budgets.push({
      metadata: { name: 'kept', namespace: 'team', generation: 1 },
      spec: { selector: { matchLabels: { app: 'kept' } } },
      status: { disruptionsAllowed: 0, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1, observedGeneration: 1 },
    });
  });
  t.deepEqual(await nominated(running, 'urgent', 600, { priority: 5 }, ['a', 'b']), ['b']);
  t.deepEqual(await nominated(running, 'urgent', 600, { priority: 2 }, ['a', 'b']), []);
});

test('a refused eviction evicts no other pod, and holds nothing', async (t) => {
  const { api, running } = await started(t, { a: 1000 }, (api) => {
    for (const name of ['one', 'two']) addHolder(api, name, { node: 'a', gpu: 0, mib: 500 });
    api.addPod('urgent', 900);
    api.evictionFault = () => 429;
  });
  t.deepEqual(await nominated(running, 'urgent', 900, { priority: 5 }, ['a']), ['a']);
  t.regex(
    String(await running.bind('urgent', 'a')),
    /a pod of lower priority on node a cannot be evicted: .*not today/,
  );
  t.is(api.evictions.length, 1);
  t.is(await running.series('cotenant_scheduler_bindings_in_flight'), 0);
});

test('preempt adds the pods that hold the GPU, and drops nodes where that is in vain', async (t) => {
  const { running } = await started(t, { a: 1000, b: 1000, c: 1000 }, (api) => {
    addHolder(api, 'low', { node: 'a', gpu: 0, mib: 800 });
    addHolder(api, 'equal', { node: 'b', gpu: 1, mib: 800, priority: 5 });
  });
  const victims = (uid: string) => ({ Pods: [{ UID: uid }], NumPDBViolations: 0 });
  const byNode = { a: victims('uid-cpu-1'), b: victims('uid-cpu-2'), c: victims('uid-cpu-3') };
  const ask = (spec: object) =>
    running.call('preempt', {
      Pod: podOf('urgent', 600, spec),
      NodeNameToMetaVictims: byNode,
      NodeNameToVictims: null,
    });
  t.deepEqual((await ask({ priority: 5 })).body, {
    NodeNameToMetaVictims: {
      a: { Pods: [{ UID: 'uid-cpu-1' }, { UID: 'uid-low' }], NumPDBViolations: 0 },
      c: victims('uid-cpu-3'),
    },
  });
  t.is((await running.call('preempt', { Pod: podOf('urgent', 600, {}) })).status, 400);
});

test('a new leader goes on with the eviction of the one before it, and evicts no other', async (t) => {
  const { api, running: first } = await started(t, { a: 1000, b: 1000 }, (api) => {
    addHolder(api, 'low', { node: 'a', gpu: 0, mib: 800 });
    addHolder(api, 'lower', { node: 'b', gpu: 1, mib: 800 });
    api.addPod('urgent', 600);
  });
  // The victims on both nodes cost the same: without what the cluster shows, the choice would be that of node a.
  t.deepEqual(await nominated(first, 'urgent', 600, { priority: 5 }, ['a', 'b']), ['a']);
  t.deepEqual(await nominated(first, 'urgent', 600, { priority: 5 }, ['b']), ['b']);
  void first.bind('urgent', 'b').catch(() => undefined);
  await eventually(() => api.evictions.length > 0 || undefined, 'a pod is evicted');
  const victim = api.pods.get('lower');
  t.truthy(victim?.metadata);
  if (!victim?.metadata) return;
  victim.metadata.deletionTimestamp = '2026-11-21T22:10:00Z' as unknown as Date;
  api.lead('pod-b_1', 2);

  const second = await start(t, api, { hostname: 'pod-b' });
  await leads(second);
  t.deepEqual(await nominated(second, 'urgent', 600, { priority: 5 }, ['a', 'b']), ['b']);
  const binding = second.bind('urgent', 'b');
  await eventually(
    async () => String(await nominated(second, 'other', 100, { priority: 0 }, ['b'])) === '' || undefined,
    'the GPU is held by the new leader',
  );
  t.deepEqual(api.bindings, [], 'nothing is written while the pod is there');
  api.pods.delete('lower');
  api.show('DELETED', victim);
  t.is(await binding, undefined);
  t.deepEqual(
    api.evictions.map(({ metadata }) => metadata?.name),
    ['lower'],
  );
});

test('the share of a pod that kube-scheduler nominated for a node is kept there', async (t) => {
  const { api, running } = await started(t, { a: 1000 }, (api) => {
    addHolder(api, 'leaves', { node: 'a', gpu: 0, mib: 800 });
    const urgent = api.addPod('urgent', 600, { spec: { priority: 5, containers: [] } });
    urgent.status = { nominatedNodeName: 'a' };
  });
  const leaves = api.pods.get('leaves');
  if (!leaves) throw new Error('no pod');
  api.pods.delete('leaves');
  api.show('DELETED', leaves);
  await eventually(
    async () => (await nominated(running, 'small', 400, { priority: 0 }, ['a']))?.toString() === 'a' || undefined,
    'the victim is gone',
  );
  t.deepEqual(await nominated(running, 'other', 600, { priority: 5 }, ['a']), []);
  t.deepEqual(await nominated(running, 'higher', 600, { priority: 6 }, ['a']), ['a']);
  t.deepEqual(await nominated(running, 'urgent', 600, { priority: 5 }, ['a']), ['a']);
  api.addPod('other', 600);
  t.regex(String(await running.bind('other', 'a')), /400 MiB of cotenant\.io\/gpu-memory free/);
  t.is(await running.bind('urgent', 'a'), undefined);
});
