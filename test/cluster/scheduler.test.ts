// kube-scheduler and the extender on a real API server, deployed from the chart: what is bound, with which grant, and what a pod
// that fits nowhere is told. The nodes with cards are objects without a kubelet: a binding is all that is looked at here.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { needOf } from '../../src/placement/need.ts';
import { formatNodeCards } from '../../src/placement/node-cards.ts';
import { formatPodGrant, type PodGrant, parsePodGrant } from '../../src/placement/pod-grant.ts';
import { CARDS_ANNOTATION, GRANT_ANNOTATION, uuidsAnnotation } from '../../src/request/names.ts';
import { GIB } from '../../src/request/quantity.ts';
import { EVICTED, KEPT } from '../../src/scheduler/evictor.ts';
import { DEFAULT_CONFIGURATION } from '../../webhook/configuration.ts';
import { injectPod } from '../../webhook/inject.ts';
import { seriesOf } from '../support/agent.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { blocks, readPage } from '../support/pages.ts';
import { type Bed, BUSYBOX_IMAGE, bedGround, startBed } from './bed/bed.ts';
import {
  addCotenantImage,
  addKubeSchedulerImage,
  installChart,
  KUBE_SCHEDULER_IMAGE,
  NAMESPACE,
  OFF,
} from './bed/product.ts';
import { eventsOf, type Pod, podPath, untilGone, untilPod } from './support/pods.ts';

const ground = bedGround(console.log, false);
const helm = lookForHelm();
const reason = ground.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : ground.reason;
const CARD_BYTES = 16 * GIB;
const WAIT_MS = 60_000;
const PODS = '/api/v1/namespaces/default/pods';
const REPLICA_SETS = '/apis/apps/v1/namespaces/default/replicasets';
const CONFIGURATION = { ...DEFAULT_CONFIGURATION, rules: { ...DEFAULT_CONFIGURATION.rules, allowGpuUuid: true } };

const uuid = (node: number, card: number) =>
  `GPU-00000000-0000-4000-8000-${String(node * 100 + card).padStart(12, '0')}`;

/** A node as its agent would describe it, that no kubelet stands behind. */
async function addNode(bed: Bed, number: number, cards: number): Promise<string> {
  const name = `gpu-${number}`;
  const text = formatNodeCards({
    mostTenantsPerCard: 50,
    cards: Array.from({ length: cards }, (_, index) => ({
      gpuUuid: uuid(number, index),
      index,
      model: 'NVIDIA L4',
      usableBytes: CARD_BYTES,
      healthy: true,
    })),
  });
  const metadata = { name, annotations: { [CARDS_ANNOTATION]: text } };
  await must(bed, 'POST', '/api/v1/nodes', { apiVersion: 'v1', kind: 'Node', metadata });
  const amounts = { cpu: '64', memory: '256Gi', pods: '500', 'cotenant.io/gpu': String(50 * cards) };
  const ready = { type: 'Ready', status: 'True', reason: 'Test', message: 'written by a test' };
  const status = { capacity: amounts, allocatable: amounts, conditions: [ready] };
  await must(bed, 'PATCH', `/api/v1/nodes/${name}/status`, { status });
  return name;
}

async function must(bed: Bed, method: string, path: string, body?: object): Promise<void> {
  const { status, body: said } = await bed.api.ask(method, path, body);
  if (status >= 300) throw new Error(`${method} ${path}: ${status} ${JSON.stringify(said)}`);
}

const add = (bed: Bed, ...pods: readonly object[]) => Promise.all(pods.map((pod) => must(bed, 'POST', PODS, pod)));

type Limits = Readonly<Record<string, Record<string, string | number>>>;

/** A pod as the webhook leaves it, that nobody evicts from a node that does not answer. */
function podOf(name: string, containers: Limits, annotations: Record<string, string> = {}): object {
  const pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'default', annotations },
    spec: {
      tolerations: [{ operator: 'Exists' }],
      terminationGracePeriodSeconds: 0,
      containers: Object.entries(containers).map(([container, limits]) => ({
        name: container,
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['sleep', '600'],
        resources: { limits },
      })),
    },
  };
  const injected = injectPod(pod, 'default', CONFIGURATION);
  if (injected.kind !== 'patched') throw new Error(JSON.stringify(injected));
  return injected.pod;
}
const memory = (gib: number, gpu = 1) => ({ 'cotenant.io/gpu-memory': `${gib * 1024}Mi`, 'cotenant.io/gpu': gpu });

function grantOf(pod: Pod): PodGrant {
  const grant = parsePodGrant(pod.metadata.annotations?.[GRANT_ANNOTATION] ?? '');
  if ('wrong' in grant) throw new Error(`${pod.metadata.name}: ${grant.wrong}`);
  return grant;
}

const bound = (bed: Bed, name: string): Promise<Pod> =>
  untilPod(bed, name, 'is bound', ({ spec }) => spec.nodeName !== undefined, { ms: WAIT_MS });

const conditionOf = ({ status }: Pod) => status?.conditions?.find(({ type }) => type === 'PodScheduled');

/** What the pod's own status says of why it is not scheduled. */
const pending = async (bed: Bed, name: string, said: RegExp): Promise<string> => {
  const told = (pod: Pod) => said.test(conditionOf(pod)?.message ?? '') && conditionOf(pod)?.status === 'False';
  return conditionOf(await untilPod(bed, name, `is told ${said}`, told, { ms: WAIT_MS }))?.message ?? '';
};

const podsOf = async (bed: Bed): Promise<readonly Pod[]> => (await bed.api.get<{ items: Pod[] }>(PODS))?.items ?? [];

/** Waits for so many bound pods, adds every grant up by its card, and fails where one is over. */
async function checkBooks(t: ExecutionContext, bed: Bed, count: number): Promise<readonly PodGrant[]> {
  const holders = await eventually(
    async () => {
      const found = (await podsOf(bed)).filter(({ spec }) => spec.nodeName !== undefined);
      return found.length >= count ? found : undefined;
    },
    `${count} pods are bound`,
    2 * WAIT_MS,
  );
  t.is(holders.length, count);
  const sums = new Map<string, number>();
  const grants = holders.map(grantOf);
  for (const [index, { containers }] of grants.entries()) {
    const node = Number(holders[index]?.spec.nodeName?.slice('gpu-'.length));
    const own = [0, 1, 2, 3].map((card) => uuid(node, card));
    for (const [card, { memoryBytes }] of needOf(containers)) {
      t.true(own.includes(card), `${holders[index]?.metadata.name} has a card of another node`);
      sums.set(card, (sums.get(card) ?? 0) + memoryBytes);
    }
  }
  for (const [card, sum] of sums) t.true(sum <= CARD_BYTES, `${card}: ${sum} bytes granted`);
  return grants;
}

/** A grant of one card as a leader would write it that comes after all others. */
const laterGrant = (gpuUuid: string, gib: number): Readonly<Record<string, string>> => {
  const cards = [{ gpuUuid, memoryBytes: gib * GIB, limitBytes: gib * GIB, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, cards }];
  return { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 1000, containers }) };
};

/** As a second leader would, that does not know what the first has bound. */
const bindTo = (
  bed: Bed,
  node: string,
  { metadata: { name, uid } }: Pod,
  annotations: Readonly<Record<string, string>>,
) =>
  must(bed, 'POST', `${podPath(name)}/binding`, {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name, uid, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: node },
  });

/** What was bound to a full card goes elsewhere, if somebody makes it again; else it is told. */
async function checkDoubleBooked(t: ExecutionContext, bed: Bed): Promise<void> {
  const full = await addNode(bed, 5, 1);
  await add(bed, podOf('full', { main: memory(15) }));
  await bound(bed, 'full');
  const labels = { app: 'again' };
  const { metadata, spec } = podOf('again', { main: memory(4) }) as { metadata: object; spec: object };
  await must(bed, 'POST', REPLICA_SETS, {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: { name: 'again' },
    spec: { replicas: 1, selector: { matchLabels: labels }, template: { metadata: { ...metadata, labels }, spec } },
  });
  const made = (what: string, good: (pod: Pod) => boolean) =>
    eventually(
      async () => (await podsOf(bed)).find((pod) => pod.metadata.name.startsWith('again-') && good(pod)),
      `a pod of the ReplicaSet ${what}`,
      WAIT_MS,
    );
  const first = await made('waits', (pod) => conditionOf(pod)?.status === 'False');
  await bindTo(bed, full, first, laterGrant(uuid(5, 0), 4));
  const other = await addNode(bed, 6, 1);
  const successor = await made('is bound', (pod) => pod.metadata.uid !== first.metadata.uid && !!pod.spec.nodeName);
  t.is(successor.spec.nodeName, other);
  t.like(grantOf(successor).containers[0]?.cards, [{ gpuUuid: uuid(6, 0), memoryBytes: 4 * GIB }]);
  const over = (card: string, gib: number) =>
    `${card} of node ${card === uuid(5, 0) ? full : other} is overbooked: ${gib * 1024} MiB of cotenant.io/gpu-memory are granted, it has 16384 MiB`;
  const toldOf = (name: string) =>
    eventually(
      async () => (await eventsOf(bed, name)).find(({ reason }) => reason === 'GPUGrantOverbooked'),
      `${name} is told`,
      WAIT_MS,
    );
  t.is((await toldOf(first.metadata.name)).message, `${over(uuid(5, 0), 19)}; ${EVICTED}`);

  await add(bed, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'bare' },
    spec: { schedulerName: 'nobody', containers: [{ name: 'main', image: BUSYBOX_IMAGE }] },
  });
  await bindTo(bed, other, await untilPod(bed, 'bare', 'is there', () => true), laterGrant(uuid(6, 0), 14));
  const told = await toldOf('bare');
  t.is(told.type, 'Warning');
  t.is(told.message, `${over(uuid(6, 0), 18)}; ${KEPT}`);
  const left = (await podsOf(bed)).filter((pod) => pod.metadata.deletionTimestamp === undefined);
  t.deepEqual(left.map((pod) => pod.metadata.name).sort(), [successor.metadata.name, 'bare', 'full']);
  await must(bed, 'DELETE', `${REPLICA_SETS}/again`);
  await untilGone(bed, successor.metadata.name);
  await clear(bed, full, other);
}

/** A certificate of an authority, or the authority itself; files beside one another. */
function certify(folder: string, name: string, host: string, authority?: string): void {
  const openssl = (...args: readonly string[]) => execFileSync('openssl', args, { cwd: folder, stdio: 'pipe' });
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', `${name}.key`];
  const by = authority === undefined ? [] : ['-CA', `${authority}.crt`, '-CAkey', `${authority}.key`];
  const names = authority === undefined ? [] : ['-addext', `subjectAltName=DNS:${host}`];
  openssl('req', '-x509', ...key, ...by, '-subj', `/CN=${name}`, ...names, '-out', `${name}.crt`);
}

async function checkOwnScheduler(t: ExecutionContext, bed: Bed, helmPath: string, bin: string): Promise<void> {
  const folder = join(bed.folder, 'extender');
  const at = (name: string) => join(folder, name);
  mkdirSync(folder);
  const host = `cotenant-extender.${NAMESPACE}.svc`;
  certify(folder, 'authority', host);
  for (const name of ['server', 'client']) certify(folder, name, host, 'authority');
  const secret = (name: string, data: Readonly<Record<string, string>>) => ({
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name, namespace: NAMESPACE },
    stringData: Object.fromEntries(Object.entries(data).map(([key, file]) => [key, readFileSync(at(file), 'utf8')])),
  });
  bed.apply(
    secret('extender-server', { 'tls.crt': 'server.crt', 'tls.key': 'server.key' }),
    secret('extender-callers', { 'ca.crt': 'authority.crt' }),
  );
  const service = { enabled: true, serverSecretName: 'extender-server', clientCaSecretName: 'extender-callers' };
  installChart(bed, helmPath, { agent: OFF, csi: OFF, webhook: OFF, scheduler: { enabled: true, service } });

  const { subsets = [] } = (await bed.api.get<Endpoints>(
    `/api/v1/namespaces/${NAMESPACE}/endpoints/cotenant-extender`,
  )) ?? { subsets: [] };
  const addresses = subsets.flatMap((subset) => subset.addresses ?? []);
  t.is(addresses.length, 1);
  const [text = ''] = blocks(readPage('docs/scheduler.md'), 'yaml');
  const { extenders } = parse(text);
  t.is(extenders[0].tlsConfig.serverName, host);
  const files = { certFile: at('client.crt'), keyFile: at('client.key'), caFile: at('authority.crt') };
  const configuration = {
    apiVersion: 'kubescheduler.config.k8s.io/v1',
    kind: 'KubeSchedulerConfiguration',
    clientConnection: { kubeconfig: join(bed.folder, 'kubeconfig') },
    leaderElection: { leaderElect: false },
    // Nobody translates addresses of Services on this node.
    extenders: [
      { ...extenders[0], urlPrefix: `https://${addresses[0]?.ip}:9840`, tlsConfig: { serverName: host, ...files } },
    ],
  };
  writeFileSync(at('configuration.json'), JSON.stringify(configuration));
  await bed.namespaces.stop('scheduler', 'SIGTERM');
  bed.namespaces.start('scheduler', [join(bin, 'kube-scheduler'), '--config', at('configuration.json')]);

  const node = await addNode(bed, 7, 1);
  const own = (name: string, gib: number) => {
    const pod = podOf(name, { main: memory(gib) }) as { spec: object };
    return { ...pod, spec: { ...pod.spec, schedulerName: 'default-scheduler' } };
  };
  await add(bed, own('with-default', 10));
  const pod = await bound(bed, 'with-default');
  t.is(pod.spec.nodeName, node);
  t.is(grantOf(pod).containers[0]?.cards[0]?.gpuUuid, uuid(7, 0));
  await add(bed, own('too-large', 7));
  await pending(
    bed,
    'too-large',
    new RegExp(`node gpu-7: ${uuid(7, 0)} has 6144 MiB of cotenant\\.io/gpu-memory left`),
  );
}

/** Nobody is there who would end them: they are taken away. */
async function clear(bed: Bed, ...nodes: readonly string[]): Promise<void> {
  const pods = await podsOf(bed);
  await Promise.all(pods.map(({ metadata }) => must(bed, 'DELETE', `${podPath(metadata.name)}?gracePeriodSeconds=0`)));
  await Promise.all(nodes.map((name) => must(bed, 'DELETE', `/api/v1/nodes/${name}`)));
}

/** Every version of every pod, as it was stored; goes on where the server ends a watch. */
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

type Endpoints = { readonly subsets?: readonly { readonly addresses?: readonly { readonly ip: string }[] }[] };
type Lease = { readonly spec?: { readonly holderIdentity?: string; readonly leaseTransitions?: number } };

async function leaderOf(bed: Bed): Promise<{ pod: string; epoch: number }> {
  const path = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/cotenant-scheduler`;
  const held = async () => {
    const spec = (await bed.api.get<Lease>(path))?.spec;
    return spec?.holderIdentity ? spec : undefined;
  };
  const { holderIdentity = '', leaseTransitions = 0 } = await eventually(held, 'somebody leads', WAIT_MS);
  return { pod: holderIdentity.split('_')[0] ?? '', epoch: leaseTransitions };
}

/** Kills every process of a pod at once, as a machine that stops would. */
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

testUnless(reason)(
  'pods are bound with their grant by kube-scheduler and the extender, deployed from the chart',
  async (t) => {
    t.timeout(BUILD_MS);
    if (!ground.ok || helm.kind === 'missing') throw new Error(reason);
    const path = await readyHelm(helm);
    const bed = await startBed(ground, (line) => t.log(line));
    t.teardown(() => bed.close());
    const startedMs = performance.now();
    const step = (what: string) => t.log(`${((performance.now() - startedMs) / 1000).toFixed(1)} s: ${what}`);
    addCotenantImage(bed);
    addKubeSchedulerImage(bed, ground.bin);
    installChart(bed, path, {
      agent: OFF,
      csi: OFF,
      webhook: OFF,
      scheduler: { enabled: true, overbookedAfterSeconds: 2, kubeScheduler: { image: KUBE_SCHEDULER_IMAGE } },
    });
    step('installed');
    const watching = new AbortController();
    t.teardown(() => watching.abort());
    const { versions, watched } = await watchVersions(bed, watching.signal);

    // One node: amounts, names, several cards, several containers.
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
    const [card] = granted?.cards ?? [];
    t.like(card, { memoryBytes: 2 * GIB, limitBytes: 2 * GIB, coresPercent: 0 });
    t.is(first.metadata.annotations?.[uuidsAnnotation(long)], card?.gpuUuid);
    const pair = await bound(bed, 'pair');
    const [main, side] = grantOf(pair).containers;
    t.deepEqual(
      main?.cards.map(({ memoryBytes }) => memoryBytes),
      [4 * GIB, 4 * GIB],
    );
    const uuids = main?.cards.map(({ gpuUuid }) => gpuUuid) ?? [];
    t.is(new Set(uuids).size, 2);
    t.is(pair.metadata.annotations?.[uuidsAnnotation('main')], uuids.join(','));
    t.like(side?.cards[0], { memoryBytes: 3 * GIB, coresPercent: 30 });

    // One node more: what is begun is filled first, unless the pod says otherwise.
    const two = await addNode(bed, 2, 2);
    await add(
      bed,
      podOf('packed', { main: memory(4) }),
      podOf('spread', { main: memory(4) }, { 'cotenant.io/placement': 'spread' }),
    );
    t.is((await bound(bed, 'packed')).spec.nodeName, one);
    t.is((await bound(bed, 'spread')).spec.nodeName, two);
    await add(bed, podOf('there', { main: memory(1) }, { 'cotenant.io/gpu-uuid': uuid(2, 1) }));
    t.is(grantOf(await bound(bed, 'there')).containers[0]?.cards[0]?.gpuUuid, uuid(2, 1));
    step('one by one');

    // What fits nowhere is told what is missing, on which card; and goes as soon as there is room.
    await must(bed, 'DELETE', `/api/v1/nodes/${one}`);
    await add(bed, podOf('large', { main: memory(16) }));
    const left = 'MiB of cotenant\\.io\\/gpu-memory left';
    const more = (count: string) => `, and ${count} not fit either`;
    await pending(
      bed,
      'large',
      new RegExp(`node gpu-2: ${uuid(2, 1)} has 15360 ${left}, 16384 MiB are asked for${more('1 more card does')}`),
    );
    await must(bed, 'DELETE', `${podPath('there')}?gracePeriodSeconds=0`);
    t.is(grantOf(await bound(bed, 'large')).containers[0]?.cards[0]?.gpuUuid, uuid(2, 1));
    await clear(bed);
    step('told what is missing');

    // A grant that somebody else wrote counts; one that cannot be read closes the cards that it names; none takes nothing.
    const forged = formatPodGrant({
      epoch: 0,
      containers: [
        {
          name: 'main',
          kind: 'app',
          memoryIsolation: 'on',
          cards: [{ gpuUuid: uuid(2, 0), memoryBytes: 15 * GIB, limitBytes: 15 * GIB, coresPercent: 0 }],
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
    await add(
      bed,
      placed('by-hand', { [GRANT_ANNOTATION]: forged }),
      placed('garbled', { [GRANT_ANNOTATION]: `{"cards":["${uuid(2, 1)}"` }),
      placed('without', {}),
    );
    await add(
      bed,
      podOf('after', { main: memory(4) }),
      podOf('closed', { main: memory(4) }, { 'cotenant.io/gpu-uuid': uuid(2, 1) }),
    );
    await pending(
      bed,
      'after',
      new RegExp(`${uuid(2, 0)} has 1024 ${left}, 4096 MiB are asked for${more('1 more card does')}`),
    );
    await pending(
      bed,
      'closed',
      new RegExp(`${uuid(2, 1)} is closed: the grant of pod default/garbled on it cannot be read`),
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
    const few = new RegExp(`node gpu-3: GPU-\\S+ has 1024 ${left}, 1536 MiB are asked for${more('3 more cards do')}`);
    await pending(bed, late?.metadata.name ?? '', few);
    await clear(bed, three);
    step('many at once');

    // The leader is killed while pods come: the other one goes on from what it finds, with the next epoch.
    await addNode(bed, 4, 4);
    const leader = await leaderOf(bed);
    const some = (name: string) =>
      Array.from({ length: 20 }, (_, index) => podOf(`${name}-${index}`, { main: memory(1.5) }));
    const writing = add(bed, ...some('while'));
    await eventually(
      async () => ((await podsOf(bed)).some(({ spec }) => spec.nodeName !== undefined) ? true : undefined),
      'the first is bound',
      WAIT_MS,
    );
    t.true(killPod(bed, leader.pod) >= 2);
    await writing;
    await add(bed, ...some('after'));
    const grants = await checkBooks(t, bed, 40);
    const epochs = new Set(grants.map(({ epoch }) => epoch));
    t.true(epochs.size >= 2, [...epochs].join());
    t.is(Math.max(...epochs), (await leaderOf(bed)).epoch);
    step(`another leader, epochs ${[...epochs].join(', ')}`);

    // No version of any pod that the scheduler bound had a node without its grant.
    watching.abort();
    await watched;
    const own = versions.filter(
      ({ spec }) => spec.nodeName !== undefined && spec.schedulerName === 'cotenant-scheduler',
    );
    t.true(own.length > 80, String(own.length));
    for (const pod of own) t.notThrows(() => grantOf(pod), pod.metadata.name);

    // The Lease kept by the extender itself, for a kube-scheduler elsewhere: one leads, the next takes over.
    const program = join(import.meta.dirname, '../../src/cli/main.ts');
    const start = (name: string, health: number) =>
      bed.namespaces.start(name, [
        ...[process.execPath, program, 'scheduler', '--kubeconfig', join(bed.folder, 'kubeconfig')],
        ...['--lease', 'default/own', '--lease-holder', 'self', '--port', '0', '--health-port', String(health)],
      ]);
    const epochAt = (health: number, leads: number) =>
      eventually(
        () => {
          const { out } = bed.namespaces.run(['wget', '-q', '-O', '-', `http://127.0.0.1:${health}/metrics`]);
          const found = seriesOf(out, 'cotenant_scheduler_leads');
          return found === leads ? seriesOf(out, 'cotenant_scheduler_epoch') : undefined;
        },
        `the one at ${health} leads: ${leads}`,
        WAIT_MS,
      );
    const readyz = (health: number) =>
      bed.namespaces.run(['wget', '-q', '--content-on-error', '-O', '-', `http://127.0.0.1:${health}/readyz`]).out;
    start('keeper-one', 9941);
    t.is(await epochAt(9941, 1), 0);
    start('keeper-two', 9942);
    await epochAt(9942, 0);
    // A Service must not lead to one that does not bind.
    const probed = (said: RegExp) => eventually(() => said.test(readyz(9942)) || undefined, `it says ${said}`, WAIT_MS);
    await probed(/holds the Lease default\/own/);
    await bed.namespaces.stop('keeper-one', 'SIGTERM');
    t.is(await epochAt(9942, 1), 1);
    await probed(/^ok$/m);
    await bed.namespaces.stop('keeper-two', 'SIGTERM');
    step('a Lease of its own');

    // The cluster's own scheduler, configured as the page says, asks the extender alone behind its Service.
    await clear(bed, 'gpu-4');
    await checkOwnScheduler(t, bed, path, ground.bin);
    step("the cluster's own scheduler");
  },
);
