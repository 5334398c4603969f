// The extender as a whole, called as kube-scheduler calls it, with an API server that fails on demand: leadership,
// placement and evictions. bindings.test.ts has the fate of bindings, server.test.ts the server.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { V1Pod } from '@kubernetes/client-node';
import test from 'ava';
import { formatPodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import { recordOf, uuid } from '../../unit/scheduler/cluster.ts';
import { LEASE_SECONDS, startApi } from './api.ts';
import { feasible, leads, start } from './running.ts';

test('only the holder of the Lease binds, with its epoch, after listing bound pods', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-b_1', 4);
  const running = await start(t, api);
  for (const name of ['one', 'two', 'three', 'four']) api.addPod(name, 300);
  await running.filter('one', 300, ['a']);
  t.is(
    await running.bind('one', 'a'),
    'this replica is not the leader: the Lease ns/l is held by pod-b_1, not by pod-a',
  );
  t.is(api.bindings.length, 0);

  // The other one bound a pod that no watch has shown here yet.
  api.addPod('theirs', 600, { spec: { containers: [], nodeName: 'a' } });
  const theirs = api.pods.get('theirs');
  const gpu = { gpuUuid: uuid(0), memoryBytes: 600 * 2 ** 20, limitBytes: 600 * 2 ** 20, coresPercent: 0 };
  const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus: [gpu] }];
  if (theirs?.metadata)
    theirs.metadata.annotations = { 'cotenant.io/grant': JSON.stringify({ version: 1, epoch: 4, containers }) };
  const before = api.podLists;
  api.lead('pod-a_2', 5);
  await leads(running);
  // Two bindings wait for one list; one of them fits.
  const answers = await Promise.all([running.bind('one', 'a'), running.bind('two', 'a')]);
  t.is(api.podLists, before + 1);
  t.deepEqual(answers, [
    undefined,
    `node a: ${uuid(0)} has 100 MiB of cotenant.io/gpu-memory free, but 300 MiB are requested (it lacks 200 MiB)`,
  ]);
  t.like(parsePodGrant(api.pods.get('one')?.metadata?.annotations?.['cotenant.io/grant'] ?? ''), {
    ok: true,
    value: { epoch: 5 },
  });
  t.is(api.bindings[0]?.metadata?.uid, 'uid-one');

  // A Lease that is not renewed has no holder.
  api.lead('pod-a_2', 5, LEASE_SECONDS * 1000);
  await eventually(
    async () => ((await running.series('cotenant_scheduler_leader')) === 0 ? true : undefined),
    'it stops',
  );
  t.is(await running.bind('three', 'a'), 'this replica is not the leader: pod-a did not renew the Lease ns/l in time');
});

test('a replica that loses the Lease while it lists bound pods does not bind', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  api.addPod('one', 300);
  const held = Promise.withResolvers<void>();
  api.hold.lists = held.promise;
  const lists = api.podLists;
  const binding = running.bind('one', 'a');
  await eventually(() => (api.podLists > lists ? true : undefined), 'it reads what is bound');
  api.lead('pod-b_1', 1);
  await eventually(
    async () => ((await running.series('cotenant_scheduler_leader')) === 0 ? true : undefined),
    'it hears that another one leads',
  );
  held.resolve();
  t.is(await binding, 'this replica is no longer the leader');
  t.is(api.bindings.length, 0);
});

test('after the Lease was deleted and created again, bound pods are listed again', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  for (const name of ['one', 'two']) api.addPod(name, 300);
  t.is(await running.bind('one', 'a'), undefined);
  const lists = api.podLists;
  api.lead('pod-a_1', 0, 0, 'another');
  // The watch has heard of it once it has heard of a later one.
  api.lead('pod-b_1', 0, 0, 'another');
  await eventually(
    async () => ((await running.series('cotenant_scheduler_leader')) === 0 ? true : undefined),
    'it hears that another one leads',
  );
  api.lead('pod-a_1', 0, 0, 'a third');
  await leads(running);
  t.is(await running.bind('two', 'a'), undefined);
  t.is(api.podLists, lists + 1);
});

test('a scheduler that cannot listen exits with the reason', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-b_1', 0);
  const file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(file, api.config.exportConfig());
  const taken = String(new URL(api.config.getCurrentCluster()?.server ?? '').port);
  const main = join(import.meta.dirname, '../../../src/cli/main.ts');
  for (const [port, health] of [
    [taken, '0'],
    ['0', taken],
  ]) {
    const ports = ['--port', port ?? '', '--host', '127.0.0.1', '--health-port', health ?? ''];
    const child = spawn(process.execPath, [main, 'scheduler', '--kubeconfig', file, '--lease', 'ns/l', ...ports]);
    t.teardown(() => child.kill('SIGKILL'));
    let said = '';
    child.stderr.on('data', (data) => {
      said += data;
    });
    const [status] = await once(child, 'exit', { signal: AbortSignal.timeout(20_000) });
    t.regex(said, /EADDRINUSE/);
    t.is(status, 2, said);
  }
});

test('a pod is bound once, by its UID, and only where it fits', async (t) => {
  const api = await startApi(t, { a: 1000, b: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  api.addPod('one', 300);
  api.addPod('bare', 300, { metadata: { namespace: 'team', name: 'bare', uid: 'uid-bare' } });
  const [first, again, elsewhere] = await Promise.all([
    running.bind('one', 'a'),
    running.bind('one', 'a'),
    running.bind('one', 'b'),
  ]);
  t.deepEqual([first, again, elsewhere], [undefined, undefined, 'the pod is being bound to node a']);
  t.is(api.bindings.length, 1);
  const took = await running.series('cotenant_scheduler_decision_duration_seconds_count', { verb: 'bind' });
  t.is(took, 3, 'the duration of each is measured');
  t.is(await running.bind('gone', 'a', 'uid-other'), 'pod team/gone with UID uid-other does not exist');
  t.regex(String(await running.bind('bare', 'a')), /has no annotation cotenant.io\/request/);
  t.regex(String(await running.bind('one', 'c')), /the pod already has a grant/);
});

// The rule is kube-scheduler's own (pkg/scheduler/schedule_one.go, minFeasibleNodesToFind): it scores at least 100 nodes.
test('of many nodes the 100 best are kept, and all when the pod is tried again', async (t) => {
  const names = Array.from({ length: 130 }, (_, index) => `n${index}`);
  const api = await startApi(t, { small: 200, ...Object.fromEntries(names.map((name) => [name, 1000])) });
  // Binpack prefers its node.
  const pod = api.addPod('fills', 500, { spec: { containers: [], nodeName: 'n129' } });
  const gpu = { gpuUuid: uuid(130), memoryBytes: 500 * MIB, limitBytes: 500 * MIB, coresPercent: 0 };
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus: [gpu] }];
  if (pod.metadata) pod.metadata.annotations = { 'cotenant.io/grant': formatPodGrant({ epoch: 0, containers }) };
  const running = await start(t, api);
  const filter = async (name: string) => (await running.filter(name, 300, ['small', ...names])).body;
  const best = await filter('other');
  t.is((best.NodeNames as string[])[0], 'n129');
  t.is((best.NodeNames as string[]).length, 100);
  t.deepEqual([best.FailedNodes, best.FailedAndUnresolvableNodes], [{}, {}]);
  const first = await filter('one');
  t.deepEqual(first, best);
  const again = await filter('one');
  t.deepEqual(again.NodeNames, names);
  t.deepEqual(Object.keys(again.FailedAndUnresolvableNodes as object), ['small']);
  t.deepEqual(await filter('one'), first);
});

test('watches that are cut are renewed, and deleted pods release their memory', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  const pod = api.addPod('one', 800);
  t.is(await running.bind('one', 'a'), undefined);
  api.show('ADDED', pod);
  await eventually(
    async () => ((await running.series('cotenant_scheduler_bindings_in_flight')) === 0 ? true : undefined),
    'shown',
  );
  api.pods.delete('one');
  // An expired version: everything is listed again.
  api.show('ERROR' as 'DELETED', { metadata: {}, spec: { containers: [] } });
  await eventually(async () => ((await feasible(running, 800)) as string[])[0], 'the pod fits again');
  api.hangUp();
  const next = api.addPod('two', 500);
  await eventually(async () => {
    api.show('ADDED', {
      ...next,
      spec: { containers: [], nodeName: 'a' },
      metadata: { ...next.metadata, annotations: { 'cotenant.io/grant': uuid(0) } },
    });
    return (await running.series('cotenant_scheduler_invalid_objects', { kind: 'pods' })) === 1 ? true : undefined;
  }, 'changes are heard again');
  t.deepEqual(await feasible(running, 1), []);
  const line = 'warn scheduler: annotation cotenant.io/grant of the pod is invalid: it is not JSON pod=team/two\n';
  t.true(running.lines.some((one) => one.endsWith(line)));
});

test('only the leader evicts from overcommitted GPUs, and only recreated, waiting pods', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-b_1', 1);
  const granted = (name: string, mib: number, epoch: number, more: Partial<V1Pod>) => {
    const gpus = [{ gpuUuid: uuid(0), memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 0 }];
    const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus }];
    const pod = api.addPod(name, mib, { spec: { containers: [], nodeName: 'a' }, ...more });
    const annotations = { 'cotenant.io/grant': formatPodGrant({ epoch, containers }) };
    const [apiVersion, kind] = name === 'job' ? ['batch/v1', 'Job'] : ['apps/v1', 'ReplicaSet'];
    const ownerReferences = name === 'bare' ? [] : [{ apiVersion, kind, name: 'r', uid: 'r', controller: true }];
    pod.metadata = { ...pod.metadata, annotations, ownerReferences };
    return pod;
  };
  const begun = { phase: 'Pending', initContainerStatuses: [{ state: { running: {} } }] } as V1Pod['status'];
  granted('older', 600, 1, {});
  granted('started', 200, 2, { status: begun } as Partial<V1Pod>);
  granted('bare', 50, 3, {});
  granted('job', 50, 4, {});
  const younger = granted('younger', 700, 2, {});
  // The first one fails.
  api.evictionFault = () => (api.evictions.length === 1 ? 500 : undefined);
  api.silentEvents = true; // evictions do not wait for them
  const running = await start(t, api, { evictOvercommittedAfterMs: 2000, hostname: 'pod-a' });
  const displaced = (outcome: string) => running.series('cotenant_scheduler_overcommit_evictions_total', { outcome });
  const overbooked = () => running.series('cotenant_scheduler_overcommitted_gpus');
  t.is(await overbooked(), 0, 'another replica leads');
  const ledMs = performance.now();
  api.lead('pod-a_1', 3);
  await eventually(async () => ((await overbooked()) === 1 ? true : undefined), 'it is seen');
  await eventually(async () => (await displaced('failed')) || undefined, 'an eviction failed');
  t.true(performance.now() - ledMs >= 2000);
  t.is(await displaced('failed'), 1);
  await eventually(async () => ((await displaced('evicted')) === 1 ? true : undefined), 'one is evicted');
  t.deepEqual(
    api.evictions.map(({ metadata, deleteOptions }) => [metadata?.name, deleteOptions?.preconditions]),
    Array(2).fill(['younger', { uid: 'uid-younger', resourceVersion: younger.metadata?.resourceVersion }]),
  );
  const said = `${uuid(0)} of node a is overcommitted: `;
  await eventually(() => (api.events.length === 3 ? true : undefined), 'all pods got an Event');
  const [bare, job, last] = api.events.toSorted((a, b) =>
    (a.involvedObject.uid ?? '') < (b.involvedObject.uid ?? '') ? -1 : 1,
  );
  t.deepEqual(
    [bare, job, last].map((event) => [event?.involvedObject.uid, event?.type, event?.reason]),
    ['uid-bare', 'uid-job', 'uid-younger'].map((uid) => [uid, 'Warning', 'GPUGrantOvercommitted']),
  );
  t.regex(job?.message ?? '', new RegExp(`^${said}1600 MiB of cotenant.io/gpu-memory are granted, but it has 1000`));
  t.regex(job?.message ?? '', /no controller is known to recreate it, so it was not evicted/);
  t.regex(last?.message ?? '', new RegExp(`^${said}1500 MiB .* had not started and was evicted`));
  t.like(job?.source, { component: 'cotenant-scheduler', host: 'pod-a' });
  await eventually(async () => ((await overbooked()) === 0 ? true : undefined), 'what leaves is not counted');
  t.is(await displaced('kept'), 2);
});

test('what would fit follows from the allocations, and nothing is reserved for it', async (t) => {
  const api = await startApi(t, { a: 1000, b: 700 });
  api.lead('pod-a_1', 1);
  const running = await start(t, api);
  await leads(running);
  api.addPod('one', 300);
  t.is(await running.bind('one', 'a'), undefined);
  const pod = { metadata: { uid: 'x', annotations: { 'cotenant.io/request': recordOf(600) } } };
  const answer = await running.call('fits', { pod, replicas: 1 });
  t.deepEqual(answer, {
    status: 200,
    body: { placed: [{ node: 'a', gpus: [uuid(0)] }], more: 1, moreOn: [{ node: 'b', count: 1 }] },
  });
  t.deepEqual(await running.call('fits', { pod }), answer);
  const { body } = await running.call('fits', { pod, replicas: 3, nodes: ['b'] });
  t.like(body, { more: 0, placed: [{ node: 'b' }] });
  t.regex(
    String(body.nearest),
    /^node b: .* has 100 MiB of cotenant.io\/gpu-memory free, but 600 MiB are requested \(it lacks 500 MiB\)/,
  );
  for (const [wrong, status, says] of [
    [{ replicas: 1 }, 400, /pod is missing/],
    [{ pod, replicas: 1001 }, 400, /replicas: want a whole number from 1 to 1000/],
    [{ pod, nodes: 'a' }, 400, /nodes: want a list of names/],
    [{ pod: { metadata: {} } }, 422, /did not admit it/],
  ] as const) {
    const { status: got, body } = await running.call('fits', wrong);
    t.is(got, status);
    t.regex(String(body.error), says);
  }
});

test("a PodGroup of Kubernetes says how many of a group's pods are placed at once", async (t) => {
  const api = await startApi(t, { a: 1000, b: 1000 });
  api.lead('pod-a_1', 1);
  const running = await start(t, api);
  await leads(running);
  const filter = async (name: string, podGroupName: string) => {
    const { metadata } =
      api.pods.get(name) ??
      api.addPod(name, 600, { spec: { containers: [], schedulingGroup: { podGroupName } } } as object);
    return (
      await running.call('filter', {
        Pod: { metadata, spec: { schedulingGroup: { podGroupName } } },
        NodeNames: ['a', 'b'],
      })
    ).body;
  };
  t.like(await filter('early', 'train'), { Error: "PodGroup team/train of the pod's schedulingGroup does not exist" });
  api.podGroups.set('train', 2);
  api.podGroups.set('loose', 0);
  t.like(await filter('one', 'train'), {
    NodeNames: [],
    FailedNodes: { a: 'pod group team/train waits: 1 of its 2 pods are there' },
  });
  const [second = ''] = (await filter('two', 'train')).NodeNames as string[];
  t.is(((await filter('free', 'loose')) as { NodeNames: string[] }).NodeNames.length, 0, 'both GPUs are held');
  t.is(await running.bind('two', second), undefined);
  const [first = ''] = (await filter('one', 'train')).NodeNames as string[];
  t.is(await running.bind('one', first), undefined);
  t.deepEqual([first, second].toSorted(), ['a', 'b']);
});

test('pods of a group are bound only where all of them fit, also after a new list', async (t) => {
  const api = await startApi(t, { a: 1000, b: 1000 });
  api.lead('pod-a_1', 1);
  const running = await start(t, api);
  await leads(running);
  const labels = {
    'pod-group.scheduling.sigs.k8s.io/name': 'train',
    'pod-group.scheduling.sigs.k8s.io/min-available': '2',
  };
  for (const name of ['one', 'two']) {
    const pod = api.addPod(name, 600);
    pod.metadata = { ...pod.metadata, labels };
  }
  const nodes = ['a', 'b'];
  const waits = 'pod group team/train waits: 1 of its 2 pods are there';
  t.like(await running.filter('one', 600, nodes, labels), {
    body: { NodeNames: [], FailedNodes: { a: waits, b: 'node(s) where its pod group does not fit whole' } },
  });
  t.is(await running.bind('one', 'a'), waits, 'bind refuses it, too');
  const [second = ''] = (await running.filter('two', 600, nodes, labels)).body.NodeNames as string[];
  t.deepEqual((await running.filter('other', 600, nodes)).body.NodeNames, []);
  const before = api.podLists;
  api.lead('pod-a_2', 2);
  t.is(await running.bind('two', second), undefined);
  t.true(api.podLists > before);
  t.deepEqual((await running.filter('other', 600, nodes)).body.NodeNames, [], "the other pod's GPU is held still");
  const [first = ''] = (await running.filter('one', 600, nodes, labels)).body.NodeNames as string[];
  t.is(await running.bind('one', first), undefined);
  t.deepEqual([first, second].toSorted(), nodes);
});
