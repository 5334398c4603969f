// kube-scheduler and the extender of the chart on a real API server: which pods are bound, with which grant, and the
// message of a pod that fits nowhere. The nodes with GPUs have no kubelet: only bindings are checked here.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION, uuidsAnnotation } from '../../../src/api/names.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { testUnless } from '../../support/gate.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { type Bed, BUSYBOX_IMAGE, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import {
  addCotenantImage,
  addKubeSchedulerImage,
  installChart,
  KUBE_SCHEDULER_IMAGE,
  NAMESPACE,
  OFF,
} from '../bed/product.ts';
import { type Pod, podPath } from '../support/pods.ts';
import {
  add,
  addNode,
  bound,
  checkBooks,
  clear,
  grantOf,
  leaderOf,
  memory,
  must,
  PODS,
  pending,
  podOf,
  podsOf,
  uuid,
} from '../support/scheduling.ts';
import { checkDoubleBooked } from './double-booked.ts';
import { checkOwnScheduler } from './own-scheduler.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;

/** Every stored version of every pod; resumes when the server ends a watch. */
async function watchVersions(
  bed: Bed,
  signal: AbortSignal,
): Promise<{ versions: readonly Pod[]; watched: Promise<void> }> {
  const versions: Pod[] = [];
  const list = await bed.api.get<{ metadata: { resourceVersion: string } }>(PODS);
  let from = list?.metadata.resourceVersion ?? '';
  const watch = async () => {
    while (!signal.aborted) {
      const seen = ({ type, object }: { type: string; object: Pod }) => {
        if (type === 'ERROR') throw new Error(`versions of pods are lost: ${JSON.stringify(object)}`);
        versions.push(object);
        from = object.metadata.resourceVersion;
      };
      await bed.api.watch<Pod>(PODS, from, seen, signal).catch((error: Error) => {
        if (!/the server ended/.test(error.message)) throw error;
      });
    }
  };
  return { versions, watched: watch() };
}

/** Kills every process of a pod at once, like a machine that stops. */
function killPod(bed: Bed, pod: string): number {
  const own = readdirSync('/proc').filter((name) => {
    if (!/^\d+$/.test(name)) return false;
    try {
      const environment = readFileSync(`/proc/${name}/environ`, 'utf8').split('\0');
      return (
        environment.includes(`HOSTNAME=${pod}`) &&
        readFileSync(`/proc/${name}/cgroup`, 'utf8').includes(`${bed.cgroup}/`)
      );
    } catch {
      return false; // it has ended meanwhile
    }
  });
  for (const pid of own) process.kill(Number(pid), 'SIGKILL');
  return own.length;
}

testUnless(reason)('kube-scheduler and the extender of the chart bind pods with their grants', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  const startedMs = performance.now();
  const step = (what: string) => t.log(`${((performance.now() - startedMs) / 1000).toFixed(1)} s: ${what}`);
  addCotenantImage(bed);
  addKubeSchedulerImage(bed, tools.bin);
  installChart(bed, path, {
    agent: OFF,
    csi: OFF,
    webhook: OFF,
    scheduler: { enabled: true, overcommittedAfterSeconds: 2, kubeScheduler: { image: KUBE_SCHEDULER_IMAGE } },
  });
  step('installed');
  const watching = new AbortController();
  t.teardown(() => watching.abort());
  const { versions, watched } = await watchVersions(bed, watching.signal);

  // One node: amounts, names, several GPUs, several containers.
  const one = await addNode(bed, 1, 4);
  const long = `${'a'.repeat(58)}-z`;
  await add(
    bed,
    podOf('first', { [long]: memory(2) }),
    podOf('pair', { main: memory(8, 2), side: { ...memory(3), 'cotenant.io/gpu-cores': 30 } }),
  );
  const first = await bound(bed, 'first');
  t.is(first.spec.nodeName, one);
  const [granted] = grantOf(first).containers;
  t.like(granted, { name: long, kind: 'app', memoryIsolation: 'on' });
  const [gpu] = granted?.gpus ?? [];
  t.like(gpu, { memoryBytes: 2 * GIB, limitBytes: 2 * GIB, coresPercent: 0 });
  t.is(first.metadata.annotations?.[uuidsAnnotation(long)], gpu?.gpuUuid);
  const pair = await bound(bed, 'pair');
  const [main, side] = grantOf(pair).containers;
  t.deepEqual(
    main?.gpus.map(({ memoryBytes }) => memoryBytes),
    [4 * GIB, 4 * GIB],
  );
  const uuids = main?.gpus.map(({ gpuUuid }) => gpuUuid) ?? [];
  t.is(new Set(uuids).size, 2);
  t.is(pair.metadata.annotations?.[uuidsAnnotation('main')], uuids.join(','));
  t.like(side?.gpus[0], { memoryBytes: 3 * GIB, coresPercent: 30 });

  // One more node: partly used GPUs are filled first, unless the pod says otherwise.
  const two = await addNode(bed, 2, 2);
  // Scheduler and extender know the node once a pod is on it.
  await add(bed, podOf('there', { main: memory(1) }, { 'cotenant.io/gpu-uuid': uuid(2, 1) }));
  t.is(grantOf(await bound(bed, 'there')).containers[0]?.gpus[0]?.gpuUuid, uuid(2, 1));
  await add(bed, podOf('packed', { main: memory(4) }));
  t.is((await bound(bed, 'packed')).spec.nodeName, one);
  await add(bed, podOf('spread', { main: memory(4) }, { 'cotenant.io/placement': 'spread' }));
  t.is((await bound(bed, 'spread')).spec.nodeName, two);
  step('one by one');

  // A pod that fits on no node shows what is missing on which GPU, and is bound as soon as it fits.
  await must(bed, 'DELETE', `/api/v1/nodes/${one}`);
  await add(bed, podOf('large', { main: memory(16) }));
  const free = 'MiB of cotenant\\.io\\/gpu-memory free';
  const more = (count: string) => `, and ${count} not fit either`;
  await pending(
    bed,
    'large',
    new RegExp(
      `node gpu-2: ${uuid(2, 1)} has 15360 ${free}, but 16384 MiB are requested \\(it lacks \\d+ MiB\\)${more('1 more GPU does')}`,
    ),
  );
  await must(bed, 'DELETE', `${podPath('there')}?gracePeriodSeconds=0`);
  t.is(grantOf(await bound(bed, 'large')).containers[0]?.gpus[0]?.gpuUuid, uuid(2, 1));
  await clear(bed);
  step('the message names what is missing');

  // A grant by another writer counts; an unreadable one closes the GPUs that it names; one without GPUs takes nothing.
  const forged = formatPodGrant({
    epoch: 0,
    containers: [
      {
        name: 'main',
        kind: 'app',
        memoryIsolation: 'on',
        gpus: [{ gpuUuid: uuid(2, 0), memoryBytes: 15 * GIB, limitBytes: 15 * GIB, coresPercent: 0 }],
      },
    ],
  });
  const placed = (name: string, annotations: Readonly<Record<string, string>>) => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, annotations },
    spec: {
      nodeName: two,
      containers: [{ name: 'main', image: BUSYBOX_IMAGE }],
      tolerations: [{ operator: 'Exists' }],
    },
  });
  for (const [name, annotations] of [
    ['by-hand', { [GRANT_ANNOTATION]: forged }],
    ['without', {}],
    ['garbled', { [GRANT_ANNOTATION]: `{"gpus":["${uuid(2, 1)}"` }],
  ] as const)
    await add(bed, placed(name, annotations));
  // Its watch shows them in this order, and may be behind that of kube-scheduler, which asks about the next pods.
  const page = `/api/v1/namespaces/${NAMESPACE}/pods/${(await leaderOf(bed)).pod}:9841/proxy/metrics`;
  await eventually(async () => {
    const { body } = await bed.api.ask('GET', page);
    return seriesOf(String(body), 'cotenant_scheduler_invalid_objects', { kind: 'pods' }) === 1 || undefined;
  }, 'the extender knows of the grant that it cannot read');
  await add(
    bed,
    podOf('after', { main: memory(4) }),
    podOf('closed', { main: memory(4) }, { 'cotenant.io/gpu-uuid': uuid(2, 1) }),
  );
  await pending(
    bed,
    'after',
    new RegExp(
      `${uuid(2, 0)} has 1024 ${free}, but 4096 MiB are requested \\(it lacks \\d+ MiB\\)${more('1 more GPU does')}`,
    ),
  );
  await pending(
    bed,
    'closed',
    new RegExp(`${uuid(2, 1)} takes no new pods: the grant of pod default/garbled on it cannot be read`),
  );
  await clear(bed, two);
  step('grants of others');

  await checkDoubleBooked(t, bed);
  step('double-booked');

  // Many at once.
  const three = await addNode(bed, 3, 4);
  const beganMs = performance.now();
  await add(bed, ...Array.from({ length: 43 }, (_, index) => podOf(`many-${index}`, { main: memory(1.5) })));
  await checkBooks(t, bed, 40);
  t.log(`40 pods bound ${Math.round(performance.now() - beganMs)} ms after the first was written`);
  const late = (await podsOf(bed)).find(({ spec }) => spec.nodeName === undefined);
  const few = new RegExp(
    `node gpu-3: GPU-\\S+ has 1024 ${free}, but 1536 MiB are requested \\(it lacks \\d+ MiB\\)${more('3 more GPUs do')}`,
  );
  await pending(bed, late?.metadata.name ?? '', few);
  await clear(bed, three);
  step('many at once');

  // The leader is killed while pods arrive: the other replica continues from the stored state, with the next epoch.
  await addNode(bed, 4, 4);
  const leader = await leaderOf(bed);
  const some = (name: string) =>
    Array.from({ length: 20 }, (_, index) => podOf(`${name}-${index}`, { main: memory(1.5) }));
  const writing = add(bed, ...some('while'));
  await eventually(
    async () => ((await podsOf(bed)).some(({ spec }) => spec.nodeName !== undefined) ? true : undefined),
    'the first is bound',
  );
  t.true(killPod(bed, leader.pod) >= 2);
  await writing;
  await add(bed, ...some('after'));
  const grants = await checkBooks(t, bed, 40);
  const epochs = new Set(grants.map(({ epoch }) => epoch));
  t.true(epochs.size >= 2, [...epochs].join());
  t.is(Math.max(...epochs), (await leaderOf(bed)).epoch);
  step(`another leader, epochs ${[...epochs].join(', ')}`);

  // No version of a pod that the scheduler bound had a node without its grant.
  watching.abort();
  await watched;
  const own = versions.filter(({ spec }) => spec.nodeName !== undefined && spec.schedulerName === 'cotenant-scheduler');
  t.true(own.length > 80, String(own.length));
  for (const pod of own) t.notThrows(() => grantOf(pod), pod.metadata.name);

  // The Lease held by the extender itself, for a kube-scheduler elsewhere: one leads, the next takes over.
  const program = join(import.meta.dirname, '../../../src/cli/main.ts');
  const start = (name: string, health: number) =>
    bed.namespaces.start(name, [
      ...[process.execPath, program, 'scheduler', '--kubeconfig', join(bed.folder, 'kubeconfig')],
      ...['--lease', 'default/own', '--lease-holder', 'self', '--port', '0', '--health-port', String(health)],
    ]);
  const epochAt = (health: number, leads: number) =>
    eventually(() => {
      const { out } = bed.namespaces.run(['wget', '-q', '-O', '-', `http://127.0.0.1:${health}/metrics`]);
      const found = seriesOf(out, 'cotenant_scheduler_leader');
      return found === leads ? seriesOf(out, 'cotenant_scheduler_epoch') : undefined;
    }, `the one at ${health} leads: ${leads}`);
  const readyz = (health: number) =>
    bed.namespaces.run(['wget', '-q', '--content-on-error', '-O', '-', `http://127.0.0.1:${health}/readyz`]).out;
  start('keeper-one', 9941);
  t.is(await epochAt(9941, 1), 0);
  start('keeper-two', 9942);
  await epochAt(9942, 0);
  // A Service must not lead to a replica that does not bind.
  const probed = (said: RegExp) => eventually(() => said.test(readyz(9942)) || undefined, `it says ${said}`);
  await probed(/the Lease default\/own is held by/);
  await bed.namespaces.stop('keeper-one', 'SIGTERM');
  t.is(await epochAt(9942, 1), 1);
  await probed(/^ok$/m);
  await bed.namespaces.stop('keeper-two', 'SIGTERM');
  step('a Lease of its own');

  // The cluster's own scheduler, configured as documented, calls the extender alone by its Service.
  await clear(bed, 'gpu-4');
  await checkOwnScheduler(t, bed, path, tools.bin);
  step("the cluster's own scheduler");
});
