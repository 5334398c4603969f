// What the agent takes from a cluster and tells it. The API server here is a small one made for these tests: it answers
// the three calls that the agent makes, and breaks on demand. A real one is not part of this layer.
import { join } from 'node:path';
import type { V1Pod } from '@kubernetes/client-node';
import test from 'ava';
import { createEventWriter } from '../../../../src/kube/events.ts';
import { startPodInformer } from '../../../../src/kube/pod-informer.ts';
import { watchResourceSlices } from '../../../../src/kube/resource-slices.ts';
import { testUnless } from '../../../support/gate.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, seriesOf, startAgent, tell } from '../../../support/product/agent.ts';
import {
  devicesOf,
  ID,
  place,
  podGroup,
  podOf,
  startApi,
  startHolder,
  startPodResources,
  UID,
} from './kubernetes-inside.ts';

test('containers get their names from a list and a watch of this node only', async (t) => {
  const api = await startApi(t);
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = startPodInformer(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await pods.ready;
  const name = { namespace: 'team', pod: 'one', podUid: UID, container: 'main' };
  t.deepEqual(pods.of(ID), name);
  t.is(pods.of('cd'.repeat(32)), undefined);
  t.true(api.lists.every((query) => new URLSearchParams(query).get('fieldSelector') === 'spec.nodeName=node-a'));

  await eventually(() => (api.watchers.size > 0 ? true : undefined), 'a watch');
  const second = podOf('two', 'other-uid', 'cd'.repeat(32));
  api.send('ADDED', second);
  await eventually(() => pods.of('cd'.repeat(32)), 'the second pod');
  // A restarted container has another id, and the old one belongs to none.
  api.send('MODIFIED', podOf('two', 'other-uid', 'ef'.repeat(32)));
  await eventually(() => pods.of('ef'.repeat(32)), 'the new id');
  t.is(pods.of('cd'.repeat(32)), undefined);
  api.send('DELETED', podOf('two', 'other-uid', 'ef'.repeat(32)));
  await eventually(() => (pods.of('ef'.repeat(32)) === undefined ? true : undefined), 'its end');
  t.deepEqual(pods.of(ID), name);
  t.deepEqual(problems, []);
});

test('init and ephemeral containers get their names like the others of their pod', async (t) => {
  const api = await startApi(t);
  const pod = podOf('one', UID, ID);
  const [status] = pod.status?.containerStatuses ?? [];
  const statusOf = (name: string, digits: string) =>
    status && [{ ...status, name, containerID: `containerd://${digits.repeat(32)}` }];
  const initContainerStatuses = statusOf('prepare', 'cd');
  const ephemeralContainerStatuses = statusOf('debugger', 'ef');
  api.pods = [
    {
      ...pod,
      status: {
        ...pod.status,
        ...(initContainerStatuses && { initContainerStatuses }),
        ...(ephemeralContainerStatuses && { ephemeralContainerStatuses }),
      },
    },
  ];
  const pods = startPodInformer(api.config, 'node-a', t.log);
  t.teardown(() => pods.close());
  await pods.ready;
  t.deepEqual(
    [ID, 'cd'.repeat(32), 'ef'.repeat(32)].map((id) => pods.of(id)?.container),
    ['main', 'prepare', 'debugger'],
  );
});

test('a watch that breaks is renewed, and known pods stay known meanwhile', async (t) => {
  const api = await startApi(t);
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = startPodInformer(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await pods.ready;
  await eventually(() => (api.watchers.size > 0 ? true : undefined), 'a watch');
  // "Gone": what happened since is not known, so the list is made anew, and is refused at first.
  api.send('ERROR', { kind: 'Status', status: 'Failure', code: 410, message: 'too old resource version' });
  api.status = 503;
  api.hangUp();
  await eventually(() => (problems.length > 0 ? true : undefined), 'the problem is reported');
  t.is(pods.of(ID)?.pod, 'one');
  api.pods = [podOf('three', 'third-uid', 'cd'.repeat(32))];
  api.status = 200;
  await eventually(() => pods.of('cd'.repeat(32)), 'what came meanwhile');
  t.is(pods.of(ID), undefined);
});

test('a list that is refused at the start is retried', async (t) => {
  const api = await startApi(t);
  api.status = 403;
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = startPodInformer(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await eventually(() => (problems.length > 0 ? true : undefined), 'the refusal is reported');
  t.is(problems[0], "the watch of this node's pods failed and is retried: status 403: on purpose");
  let listed = false;
  void pods.ready.then(() => {
    listed = true;
  });
  await new Promise(setImmediate);
  t.false(listed, 'a refused list is no list');
  api.status = 200;
  await pods.ready;
  t.is(pods.of(ID)?.pod, 'one');
});

test('ResourceSlices are watched; a failure is reported once, the last ones stay valid', async (t) => {
  const api = await startApi(t);
  const sliceOf = (name: string) => ({
    kind: 'ResourceSlice',
    metadata: { name, resourceVersion: '9' },
    spec: { driver: 'gpu.nvidia.com', nodeName: 'node-a' },
  });
  api.pods = [sliceOf('a') as unknown as V1Pod];
  api.status = 404;
  const problems: string[] = [];
  let slices: readonly unknown[] = [];
  const watch = watchResourceSlices({
    config: api.config,
    nodeName: 'node-a',
    onSlices(list) {
      slices = list;
    },
    onProblem: (text) => problems.push(text),
    pauseMs: { firstMs: 10, mostMs: 20 },
  });
  t.teardown(() => watch.close());
  await eventually(() => api.refused > 3 || undefined, 'it is asked for again');
  t.is(problems.length, 1);
  t.regex(problems[0] ?? '', /identified by their names: status 404: on purpose/);
  api.status = 200;
  await eventually(() => api.watchers.size > 0 || undefined, 'they are watched');
  t.like(slices[0], { spec: { driver: 'gpu.nvidia.com', nodeName: 'node-a' } });
  const names = () => slices.map((slice) => (slice as ReturnType<typeof sliceOf>).metadata.name).join();
  api.send('ADDED', sliceOf('b'));
  await eventually(() => names() === 'a,b' || undefined, 'another one');
  api.send('DELETED', sliceOf('a'));
  await eventually(() => names() === 'b' || undefined, 'one is gone');
  t.true(api.lists.every((search) => search.includes(`fieldSelector=${encodeURIComponent('spec.nodeName=node-a')}`)));
  api.status = 403;
  api.send('ERROR', { kind: 'Status', status: 'Failure', code: 410, message: 'too old resource version' });
  await eventually(() => api.refused > 6 || undefined, 'it is asked for again');
  t.is(problems.length, 2, 'another outage is reported, once');
  t.is(names(), 'b', 'the last ones stay');
});

test('an Event names pod, container, reason and node; a failed write is reported', async (t) => {
  const api = await startApi(t);
  const problems: string[] = [];
  const report = createEventWriter(api.config, (text) => problems.push(text));
  const event = {
    namespace: 'team',
    pod: 'one',
    podUid: UID,
    container: 'main',
    reason: 'GPUMemoryQuotaExceeded',
    type: 'Warning' as const,
    action: 'kill',
    message: 'm'.repeat(2000),
    atMs: Date.UTC(2026, 0, 2),
    by: { component: 'agent' as const, instance: 'node-a' },
  };
  await report(event);
  t.is(api.posts[0]?.path, '/api/v1/namespaces/team/events');
  t.like(api.posts[0]?.body, {
    metadata: {
      namespace: 'team',
      annotations: { 'cotenant.io/action': 'kill' },
    },
    involvedObject: {
      apiVersion: 'v1',
      kind: 'Pod',
      namespace: 'team',
      name: 'one',
      uid: UID,
      fieldPath: 'spec.containers{main}',
    },
    type: 'Warning',
    reason: 'GPUMemoryQuotaExceeded',
    message: 'm'.repeat(1024),
    lastTimestamp: '2026-01-02T00:00:00.000Z',
    source: { component: 'cotenant-agent', host: 'node-a' },
  });
  t.regex(
    String(api.posts[0]?.body.metadata && (api.posts[0].body.metadata as { name?: string }).name),
    /^one\.cotenant-/,
  );
  api.status = 403;
  await report(event);
  t.regex(problems[0] ?? '', /^cannot write the Event for team\/one: status 403: on purpose$/);
});
testUnless('reason' in place ? place.reason : undefined)(
  'whole GPUs from the kubelet are in the families of shares and no foreign use',
  async (t) => {
    t.timeout(180_000);
    const [whole, other] = [UID, UID.replace(/1$/, '2')];
    const [wholeId, otherId] = [ID, 'ef'.repeat(32)];
    const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4', '--gpu', 'l4');
    const kubelet = await startPodResources(t);
    const api = await startApi(t);
    const ended = podOf('ended', 'third', '12'.repeat(32));
    api.pods = [
      podOf('whole', whole, wholeId),
      podOf('idle', other, otherId),
      { ...ended, status: { ...ended.status, phase: 'Succeeded' } },
    ];
    // Far more than the 4 MiB that a client takes by default.
    const crowd = Array.from({ length: 1000 }, (_, index) =>
      devicesOf(`crowd-${index}`, [`of-another-vendor-${'x'.repeat(6000)}`]),
    );
    kubelet.pods = [
      devicesOf('whole', [node.uuid(0)]),
      devicesOf('idle', ['nvidia1']),
      devicesOf('ended', [node.uuid(0)]),
      ...crowd,
    ];
    const agent = await startAgent(t, node, {
      env: { KUBECONFIG: api.file },
      settings: {
        intervalMs: 100,
        'kubernetes.enabled': true,
        'kubernetes.nodeName': 'node-a',
        'kubernetes.podResources': kubelet.socket,
      },
    });
    const holder = await startHolder(t, node.lib, podGroup(t, whole, wholeId), 0);
    const books = () => node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0]?.bytes ?? -1;
    const used = (pod: string) =>
      agent.metric('cotenant_container_memory_used_bytes', { namespace: 'team', pod, mode: 'exclusive' });
    await eventually(async () => (await used('whole')) === books() || undefined, 'the whole GPU and its holder');
    t.true(books() > 300 * 2 ** 20);
    t.is(await used('idle'), 0, 'allocated and idle is 0, not absent');
    t.is(await agent.metric('cotenant_container_info', { pod: 'whole', pod_uid: whole, container_id: wholeId }), 1);
    t.is(await agent.metric('cotenant_device_allocation_mode', { gpu: '0', mode: 'exclusive' }), 1);
    t.is(await agent.metric('cotenant_device_allocation_mode', { gpu: '2', mode: 'none' }), 1);
    t.is(await agent.metric('cotenant_container_memory_used_bytes', { pod: 'ended' }), undefined);
    t.is(await agent.metric('cotenant_foreign_memory_used_bytes'), undefined);
    t.is(await agent.metric('cotenant_container_memory_limit_bytes'), undefined, 'no limit applies to it');
    const page = await agent.metrics();
    const [gpuUsed = 0, unattributed] = ['used', 'unattributed'].map((what) =>
      seriesOf(page, `cotenant_device_memory_${what}_bytes`, { gpu: '0' }),
    );
    t.is(unattributed, gpuUsed - books());

    // On another GPU than its own it is foreign use, and each new container is asked about at once.
    const asked = kubelet.asked;
    const stray = await startHolder(t, node.lib, podGroup(t, other, otherId), 2);
    const foreign = { namespace: 'team', pod: 'idle', gpu: '2' };
    await eventually(
      async () => (await agent.metric('cotenant_foreign_memory_used_bytes', foreign)) || undefined,
      'its use of a GPU that it was not given',
    );
    await eventually(() => kubelet.asked > asked || undefined, 'the kubelet is asked about it');
    const [askedBefore, from] = [kubelet.asked, performance.now()];
    for (let scrape = 0; scrape < 50; scrape += 1) await agent.metrics();
    // It asks again every ten seconds, and twice about what is new.
    const most = 3 + (performance.now() - from) / 10_000;
    t.true(kubelet.asked - askedBefore <= most, 'scrapes ask the kubelet nothing');
    t.is(kubelet.channels.size, 1, 'one connection for all');
    await Promise.all([holder.end(), stray.end()]);
    await eventually(async () => (await used('whole')) === 0 || undefined, 'it idles');
    t.deepEqual(agent.audit(), []);
  },
);

testUnless('reason' in place ? place.reason : undefined)(
  "with a whole and a shared GPU each byte counts once; sums are the driver's",
  async (t) => {
    t.timeout(180_000);
    const node = await startNode(t, '--gpu', 'l4', '--gpu', 'a10');
    const kubelet = await startPodResources(t);
    const api = await startApi(t);
    api.pods = [podOf('whole', UID, ID)];
    kubelet.pods = [devicesOf('whole', [node.uuid(0)])];
    const agent = await startAgent(t, node, {
      env: { KUBECONFIG: api.file },
      settings: {
        intervalMs: 100,
        'kubernetes.enabled': true,
        'kubernetes.nodeName': 'node-a',
        'kubernetes.podResources': kubelet.socket,
      },
    });
    await agent.measured(2);
    await startHolder(t, node.lib, podGroup(t, UID, ID), 0);
    for (const name of ['one', 'two']) {
      const flags = ['--gpu-memory', '2Gi', '--gpu', node.uuid(1), '--name', name];
      const tenant = runTenant(t, node, agent, flags, [join(BUILD, 'tests/client')]);
      for (const command of ['init', 'context 0', `alloc ${500 * 2 ** 20}`]) t.is((await tell(tenant, command))[0], 0);
    }
    const booked = (gpu: number) =>
      node.usage().clients.reduce((sum, client) => sum + (client.gpus[gpu]?.bytes ?? 0), 0);
    t.true(booked(0) > 300 * 2 ** 20 && booked(1) > 1000 * 2 ** 20);
    const used = 'cotenant_container_memory_used_bytes';
    const page = await eventually(async () => {
      const text = await agent.metrics();
      return seriesOf(text, used) === booked(0) + booked(1) ? text : undefined;
    }, 'what all hold, in one scrape');
    for (const gpu of [0, 1]) {
      const labels = { gpu: String(gpu) };
      t.is(seriesOf(page, used, labels), booked(gpu));
      t.is(
        seriesOf(page, 'cotenant_device_memory_used_bytes', labels),
        booked(gpu) + (seriesOf(page, 'cotenant_device_memory_unattributed_bytes', labels) ?? 0),
      );
    }
    t.is(seriesOf(page, used, { mode: 'exclusive' }), booked(0));
    t.is(seriesOf(page, used, { mode: 'shared' }), booked(1));
    t.is(seriesOf(page, 'cotenant_device_allocation_mode', { gpu: '0', mode: 'exclusive' }), 1);
    t.is(seriesOf(page, 'cotenant_device_allocation_mode', { gpu: '1', mode: 'shared' }), 1);
    t.is(seriesOf(page, 'cotenant_foreign_memory_used_bytes'), undefined);
    const named = page.split('\n').filter((line) => line.startsWith(`${used}{`));
    t.is(new Set(named.map((line) => line.split(' ')[0])).size, 3, 'one series for each of three containers');
  },
);

testUnless('reason' in place ? place.reason : undefined)(
  'the agent names containers without a grant by their pods',
  async (t) => {
    const api = await startApi(t);
    const uid = UID.replace(/1$/, '3');
    api.pods = [podOf('sneaky', uid, ID)];
    const node = await startNode(t, '--gpu', 'l4');
    const socket = join(temporaryFolder(t), 'absent.sock');
    const agent = await startAgent(t, node, {
      env: { KUBECONFIG: api.file },
      settings: {
        intervalMs: 100,
        'kubernetes.enabled': true,
        'kubernetes.nodeName': 'node-a',
        'kubernetes.podResources': socket,
      },
    });
    const holder = await startHolder(t, node.lib, podGroup(t, uid, ID), 0);
    const books = node.usage().clients.find(({ pid }) => pid === holder.pid)?.gpus[0]?.bytes;
    const labels = { namespace: 'team', pod: 'sneaky', container: 'main' };
    const used = await eventually(async () => {
      const value = await agent.metric('cotenant_foreign_memory_used_bytes', labels);
      return value === books ? value : undefined;
    }, 'its memory under its own name');
    t.true(used > 300 * 2 ** 20);
    t.deepEqual(agent.audit(), [], 'foreign use is reported, never stopped');
    const said = agent.log.filter((line) =>
      line.includes(`the kubelet does not list its allocated devices at ${socket}`),
    );
    t.is(said.length, 1, 'that the kubelet cannot be asked is said, once');
    await holder.end();
  },
);
