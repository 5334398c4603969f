// A pod's way as its user sees it, on a real cluster: asked for in three dialects, admitted, placed, limited, measured, and
// stopped when it cheats; and everything that tries to come in beside the way.
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { type PodGrant, parsePodGrant } from '../../src/placement/pod-grant.ts';
import { GRANT_ANNOTATION } from '../../src/request/names.ts';
import { seriesOf } from '../support/agent.ts';
import { eventually } from '../support/node.ts';
import type { Bed } from './bed/bed.ts';
import { NODE_NAME } from './bed/node.ts';
import { addClientImage, NVML_IMAGE } from './bed/product.ts';
import { signalContainer } from './support/containers.ts';
import {
  type Amounts,
  answersOf,
  attach,
  cheatOf,
  clientOf,
  containerOf,
  eventsOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
  outputOf,
  type Pod,
  podOf,
  RESTRICTED,
  shellOf,
  untilGone,
  untilPod,
  untilRunning,
} from './support/pods.ts';
import { agentPage, podOfRelease, podsOf } from './support/release.ts';
import { testsOnWhole } from './support/shared.ts';

const onCluster = testsOnWhole(['l4', 'a10']);
const MAIN = join(import.meta.dirname, '../../src/cli/main.ts');
const TEAM = { namespace: 'team' };
const OUT_OF_MEMORY = 2;
/** How the client ends that cannot load the driver. */
const NO_DRIVER = 3;

function grantOf(t: ExecutionContext, pod: Pod): PodGrant {
  const grant = parsePodGrant(pod.metadata.annotations?.[GRANT_ANNOTATION] ?? '');
  if ('wrong' in grant) throw new Error(`${pod.metadata.name}: ${grant.wrong}`);
  t.true(grant.containers.length > 0);
  return grant;
}

const cardsOf = (t: ExecutionContext, pod: Pod, container = 'main') =>
  grantOf(t, pod).containers.find(({ name }) => name === container)?.cards ?? [];

/** The value of a series of a container, once it is there and `good`. */
const seriesWhen = (bed: Bed, name: string, pod: string, good: (value: number) => boolean) =>
  eventually(
    async () => {
      const value = seriesOf((await agentPage(bed)) ?? '', name, { ...TEAM, pod, container: 'main' });
      return value !== undefined && good(value) ? value : undefined;
    },
    `${name} of ${pod}`,
    30_000,
  );

const nvmlOf = (limits: Amounts): object => ({
  name: 'main',
  image: NVML_IMAGE,
  imagePullPolicy: 'Never',
  args: ['600'],
  resources: { limits },
  securityContext: RESTRICTED,
});

/** What the program says on the cluster, as an administrator. */
const cotenant = (bed: Bed, ...args: readonly string[]): string => {
  const env = { KUBECONFIG: join(bed.folder, 'kubeconfig') };
  const { code, out, err } = bed.namespaces.run([process.execPath, MAIN, ...args, '--cluster'], { env });
  if (code !== 0) throw new Error(`cotenant ${args.join(' ')}: ${err.trim()}`);
  return out;
};

/** What a pod's container holds of the kubelet's folders, as paths under the pods' root. */
const leftovers = (bed: Bed): string[] => {
  const root = join(bed.folder, 'host/_var_lib_kubelet/pods');
  const { out } = bed.namespaces.run(['cat', '/proc/mounts']);
  const mounts = out.split('\n').filter((line) => / \/var\/lib\/kubelet\/pods\/\S+csi\/cotenant/.test(line));
  const folders = readdirSync(root).filter((uid) => existsSync(join(root, uid, 'volumes/kubernetes.io~csi/cotenant')));
  const grants = readdirSync(join(bed.folder, 'host/_var_lib_cotenant/grants'));
  return [...mounts, ...folders, ...grants];
};

onCluster(
  'the same share, asked for in three dialects, is the same inside, in a namespace that is restricted',
  async (t, whole) => {
    const { bed } = whole;
    bed.apply(namespaceOf('team', 'restricted'));
    const asked: readonly (readonly [string, Amounts])[] = [
      ['own', ONE_SHARE.own(2048)],
      ['ack', ONE_SHARE.ack(2048)],
      ['metagpu', ONE_SHARE.metagpu(9)],
    ];
    bed.apply(...asked.map(([name, limits]) => podOf(`${name}-nvml`, [nvmlOf(limits)], TEAM)));
    bed.apply(...asked.map(([name, limits]) => podOf(name, [clientOf(limits, ['init', 'context 0', 'info'])], TEAM)));
    for (const [name] of asked) {
      const seen = await untilPod(
        bed,
        `${name}-nvml`,
        'has told what NVML shows',
        (pod) => outputOf(bed, pod).length > 0,
        TEAM,
      );
      const cards = JSON.parse(outputOf(bed, seen)[0] ?? '') as {
        uuid: string;
        totalBytes: number;
        usedBytes: number;
      }[];
      const [granted] = cardsOf(t, seen);
      t.deepEqual(
        cards.map(({ uuid, totalBytes }) => ({ uuid, totalBytes })),
        [{ uuid: granted?.gpuUuid, totalBytes: granted?.limitBytes }],
        `${name}: one card, as large as its share`,
      );
      const ratio = (granted?.limitBytes ?? 0) / (2048 * MIB);
      t.true(ratio > 0.99 && ratio < 1.01, `${name}: ${ratio} of 2 GiB`);

      const client = await untilRunning(bed, name, TEAM);
      const [slice] = cardsOf(t, client);
      const limit = slice?.limitBytes ?? 0;
      const talk = attach(bed, name, 'team');
      const [result, free = 0, total] = await talk.ask('info');
      t.deepEqual([result, total], [0, limit], `${name}: the driver's own question is answered with the slice`);
      t.is((await talk.ask(`alloc ${limit}`))[0], OUT_OF_MEMORY, 'nothing larger than the slice');
      await talk.must(`alloc ${free - 64 * MIB}`);
      t.is((await talk.ask(`alloc ${128 * MIB}`))[0], OUT_OF_MEMORY, 'nor more than is left of it');
      await talk.leave();
      t.is(await seriesWhen(bed, 'cotenant_container_memory_limit_bytes', name, () => true), limit);
      const used = await seriesWhen(
        bed,
        'cotenant_container_memory_used_bytes',
        name,
        (bytes) => bytes > free - 64 * MIB,
      );
      t.true(used <= limit, `${name}: ${used} of ${limit}`);
      t.is(await seriesWhen(bed, 'cotenant_container_bypass_memory_bytes', name, () => true), 0);
    }
    const page = (await agentPage(bed)) ?? '';
    const own = await getPod(bed, 'own', 'team');
    t.is(
      seriesOf(page, 'cotenant_container_info', {
        ...TEAM,
        pod: 'own',
        pod_uid: own?.metadata.uid ?? '',
        fence: 'interposer',
      }),
      1,
    );
    for (const [name] of asked) bed.kubectl('-n', 'team', 'delete', 'pod', name, `${name}-nvml`, '--wait=false');
    for (const [name] of asked) await untilGone(bed, name, TEAM);
  },
);

onCluster(
  'on one card one pod fills its slice and is refused, and the other one gets all of its own',
  async (t, { bed, uuids }) => {
    const [card = ''] = uuids;
    const annotations = { 'cotenant.io/gpu-uuid': card };
    const limits = ONE_SHARE.own(4096);
    const begin = ['init', 'context 0'];
    bed.apply(podOf('greedy', [clientOf(limits, begin)], { ...TEAM, annotations }));
    bed.apply(podOf('modest', [clientOf(limits, begin)], { ...TEAM, annotations }));
    for (const name of ['greedy', 'modest']) {
      const pod = await untilRunning(bed, name, TEAM);
      t.is(cardsOf(t, pod)[0]?.gpuUuid, card);
    }
    const [greedy, modest] = [attach(bed, 'greedy', 'team'), attach(bed, 'modest', 'team')];
    let refused = 0;
    for (let turn = 0; turn < 40; turn += 1) {
      const [result] = await greedy.ask(`alloc ${256 * MIB}`);
      if (result !== 0) {
        t.is(result, OUT_OF_MEMORY);
        refused += 1;
      }
      // The other one takes in between, up to the last of what is its own.
      if (turn < 14) await modest.must(`alloc ${256 * MIB}`);
    }
    t.true(refused > 20, `${refused} refusals`);
    const [, left = 0] = await modest.ask('info');
    t.true(left < 512 * MIB, `${left} bytes left after 3.5 GiB of 4`);
    // What inspect shows is the last sample's.
    for (const name of ['greedy', 'modest'])
      await seriesWhen(bed, 'cotenant_container_memory_used_bytes', name, (bytes) => bytes > 3072 * MIB);
    const table = cotenant(bed, 'inspect');
    t.regex(table, new RegExp(`0 +${card} `), 'the card');
    for (const name of ['greedy', 'modest'])
      t.regex(table, new RegExp(`team/${name}/main +running +4096 +\\d{4} .* interposer`), name);
    await Promise.all([greedy.leave(), modest.leave()]);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'greedy', 'modest', '--wait=false');
    await Promise.all(['greedy', 'modest'].map((name) => untilGone(bed, name, TEAM)));
  },
);

onCluster(
  'a pod on two cards with other neighbours on each: one card filled to the byte leaves the other slice whole',
  async (t, { bed, uuids }) => {
    const [first = '', second = ''] = uuids;
    const neighbour = (name: string, card: string, mib: number) =>
      podOf(name, [clientOf(ONE_SHARE.own(mib), ['init', 'context 0'])], {
        ...TEAM,
        annotations: { 'cotenant.io/gpu-uuid': card },
      });
    bed.apply(neighbour('left', first, 3072), neighbour('right', second, 6144));
    bed.apply(
      podOf(
        'both',
        [clientOf({ 'cotenant.io/gpu': 2, 'cotenant.io/gpu-memory': '8Gi' }, ['init', 'count', 'context 0'])],
        TEAM,
      ),
    );
    const both = await untilRunning(bed, 'both', TEAM);
    await Promise.all(['left', 'right'].map((name) => untilRunning(bed, name, TEAM)));
    const cards = cardsOf(t, both);
    t.deepEqual(cards.map(({ gpuUuid }) => gpuUuid).toSorted(), [...uuids].toSorted());
    t.deepEqual(
      cards.map(({ limitBytes }) => limitBytes),
      [4096 * MIB, 4096 * MIB],
    );
    await eventually(() => (answersOf(bed, both).length >= 3 ? true : undefined), 'both has begun', 10_000);
    t.deepEqual(answersOf(bed, both)[1], [0, 2], 'it sees two cards');
    const talk = attach(bed, 'both', 'team');
    const fill = async (): Promise<number> => {
      let sum = 0;
      for (let size = 1024 * MIB; size >= 2 * MIB; ) {
        const [result] = await talk.ask(`alloc ${size}`);
        if (result === 0) sum += size;
        else size /= 2;
      }
      return sum;
    };
    await fill();
    const [, leftHere = 1] = await talk.ask('info');
    t.true(leftHere < 2 * MIB, `${leftHere} bytes left on its first card`);
    await talk.must('context 1');
    const [, free, total] = await talk.ask('info');
    t.is(total, 4096 * MIB);
    t.true((free ?? 0) > 3072 * MIB, `${free} bytes of the second slice are free`);
    await talk.must(`alloc ${3072 * MIB}`);
    await talk.leave();
    bed.kubectl('-n', 'team', 'delete', 'pod', 'both', 'left', 'right', '--wait=false');
    await Promise.all(['both', 'left', 'right'].map((name) => untilGone(bed, name, TEAM)));
  },
);

onCluster(
  'a cheat is stopped as a container, told why, and started again; its neighbour never notices',
  async (t, { bed, uuids }) => {
    const [card = ''] = uuids;
    const settings = { ...TEAM, annotations: { 'cotenant.io/gpu-uuid': card } };
    bed.apply(
      podOf('neighbour', [clientOf(ONE_SHARE.own(2048), ['init', 'context 0', `alloc ${1024 * MIB}`])], settings),
    );
    await untilRunning(bed, 'neighbour', TEAM);
    const commands = ['init', 'context 0', `alloc ${4096 * MIB}`];
    bed.apply(podOf('cheat', [cheatOf(ONE_SHARE.own(1024), commands)], settings));
    const stopped = await untilPod(
      bed,
      'cheat',
      'was stopped and started again',
      (pod) => (containerOf(pod)?.restartCount ?? 0) > 0 && containerOf(pod)?.lastState.terminated !== undefined,
      TEAM,
    );
    const { terminated } = containerOf(stopped)?.lastState ?? {};
    t.is(terminated?.exitCode, 137);
    const sentence = new RegExp(
      `team/cheat/main .*: \\d+ MiB of 1024 MiB on ${card}, \\d+ MiB of it past the interposer`,
    );
    t.regex(terminated?.message ?? '', sentence);
    const ran =
      Date.parse((terminated as { finishedAt?: string }).finishedAt ?? '') -
      Date.parse((terminated as { startedAt?: string }).startedAt ?? '');
    t.true(ran <= 5000, `${ran} ms from its start to its end`);
    const events = await eventually(async () => {
      const told = (await eventsOf(bed, 'cheat', 'team')).filter(({ reason }) => reason === 'GPUMemoryQuotaExceeded');
      return told.some(({ message }) => message.endsWith('it is stopped')) ? told : undefined;
    }, 'the Event');
    t.true(
      events.every(({ message, type }) => sentence.test(message) && type === 'Warning'),
      JSON.stringify(events),
    );
    const kills = { ...TEAM, pod: 'cheat', reason: 'bypass', action: 'kill', result: 'released' };
    const count = await eventually(async () => {
      const found = seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_kills_total', kills);
      return found !== undefined && found > 0 ? found : undefined;
    }, 'the counter');
    t.true(count >= 1);
    t.regex(cotenant(bed, 'why', 'team/cheat'), sentence);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'cheat', '--wait=false');
    const neighbour = await getPod(bed, 'neighbour', 'team');
    t.is(containerOf(neighbour)?.restartCount, 0);
    const talk = attach(bed, 'neighbour', 'team');
    await talk.must(`alloc ${512 * MIB}`);
    await talk.leave();
    bed.kubectl('-n', 'team', 'delete', 'pod', 'neighbour', '--wait=false');
    await Promise.all(['cheat', 'neighbour'].map((name) => untilGone(bed, name, TEAM)));
  },
);

onCluster('a cheat that is not to be started again has failed, with the reason', async (t, { bed }) => {
  const settings = { ...TEAM, spec: { restartPolicy: 'Never' } };
  bed.apply(podOf('once', [cheatOf(ONE_SHARE.own(1024), ['init', 'context 0', `alloc ${4096 * MIB}`])], settings));
  const failed = await untilPod(bed, 'once', 'has failed', ({ status }) => status?.phase === 'Failed', TEAM);
  t.regex(containerOf(failed)?.state.terminated?.message ?? '', /past the interposer; it is stopped$/);
  t.is(containerOf(failed)?.restartCount, 0);
  bed.kubectl('-n', 'team', 'delete', 'pod', 'once', '--wait=false');
  await untilGone(bed, 'once', TEAM);
});

onCluster(
  "a whole card is one pod's alone: no slice is put beside it, and it is put beside none",
  async (t, { bed, uuids }) => {
    bed.apply(podOf('whole', [clientOf({ 'cotenant.io/gpu': 1 }, ['init', 'context 0'])], TEAM));
    const whole = await untilRunning(bed, 'whole', TEAM);
    const [all] = cardsOf(t, whole);
    t.true((all?.limitBytes ?? 0) > 22_000 * MIB, `${all?.limitBytes} bytes: all that the card leaves to programs`);
    bed.apply(podOf('slice', [clientOf(ONE_SHARE.own(512), ['init'])], TEAM));
    const slice = await untilRunning(bed, 'slice', TEAM);
    t.deepEqual([all?.gpuUuid, cardsOf(t, slice)[0]?.gpuUuid].toSorted(), [...uuids].toSorted());
    bed.apply(podOf('second', [clientOf({ 'cotenant.io/gpu': 1 }, ['init'])], TEAM));
    const told = ({ status }: Pod) =>
      status?.conditions?.find(({ type, message }) => type === 'PodScheduled' && message !== undefined)?.message;
    const second = await untilPod(bed, 'second', 'is told why it waits', (pod) => told(pod) !== undefined, TEAM);
    t.regex(told(second) ?? '', /GPU-\S+ .*cotenant\.io\/gpu-memory/);
    bed.kubectl('-n', 'team', 'delete', 'pod', 'whole', 'slice', 'second', '--wait=false');
    await Promise.all(['whole', 'slice', 'second'].map((name) => untilGone(bed, name, TEAM)));
  },
);

onCluster('a container that starts anew finds its slice empty at once', async (t, { bed }) => {
  const commands = ['init', 'context 0', `alloc ${1536 * MIB}`];
  bed.apply(podOf('again', [clientOf(ONE_SHARE.own(2048), commands)], TEAM));
  await untilRunning(bed, 'again', TEAM);
  const first = await untilPod(bed, 'again', 'has taken its memory', (pod) => answersOf(bed, pod).length >= 3, TEAM);
  t.is(answersOf(bed, first)[2]?.[0], 0);
  signalContainer(bed, first, 'main', 'SIGKILL');
  const second = await untilPod(
    bed,
    'again',
    'has taken it again',
    (pod) => answersOf(bed, pod).length >= 6 && containerOf(pod)?.restartCount === 1,
    TEAM,
  );
  t.is(answersOf(bed, second)[5]?.[0], 0, 'what the first one held is not held against the second');
  bed.kubectl('-n', 'team', 'delete', 'pod', 'again', '--wait=false');
  await untilGone(bed, 'again', TEAM);
});

onCluster(
  'an image that says NVIDIA_VISIBLE_DEVICES=all opens no card, and where it does it is reported',
  async (t, { bed }) => {
    const image = 'local.test/all-cards:1';
    addClientImage(bed, image, { NVIDIA_VISIBLE_DEVICES: 'all', NVIDIA_DRIVER_CAPABILITIES: 'all' });
    const main = (more: object = {}) =>
      clientOf({}, ['init', 'count', 'context 0', `alloc ${256 * MIB}`], { image, ...more });
    bed.apply(podOf('plain', [main()], TEAM));
    // Beside a container with a share: the webhook closes the others, whatever their image says.
    const share = clientOf(ONE_SHARE.own(1024), ['init'], { name: 'share' });
    bed.apply(podOf('beside', [share, main()], TEAM));
    // NVIDIA's runtime, which a node set up as documented does not have as its default.
    bed.apply(podOf('asked', [main()], { ...TEAM, spec: { runtimeClassName: 'nvidia' } }));
    for (const name of ['plain', 'beside']) {
      const pod = await untilPod(
        bed,
        name,
        'has ended for want of a driver',
        (one) => (containerOf(one)?.lastState.terminated ?? containerOf(one)?.state.terminated) !== undefined,
        TEAM,
      );
      t.regex(outputOf(bed, pod).join('\n'), /^client: libcuda.so.1: cannot open shared object file/, name);
    }
    const labels = { namespace: 'team', pod: 'asked', container: 'main' };
    const bytes = await eventually(
      async () => seriesOf((await agentPage(bed)) ?? '', 'cotenant_foreign_memory_used_bytes', labels),
      'what was opened without a grant is reported',
      30_000,
    );
    t.true(bytes >= 256 * MIB, String(bytes));
    bed.kubectl('-n', 'team', 'delete', 'pod', 'plain', 'beside', 'asked', '--wait=false');
    await Promise.all(['plain', 'beside', 'asked'].map((name) => untilGone(bed, name, TEAM)));
  },
);

onCluster('what comes beside the way is refused or harmless', async (t, { bed, uuids }) => {
  const [card = ''] = uuids;
  const create = (pod: object) => bed.kubectlWith(JSON.stringify(pod), 'create', '-f', '-');
  const limits = ONE_SHARE.own(1024);
  const refusedAs = (what: string, pod: object, why: RegExp) => {
    const { code, err } = create(pod);
    t.not(code, 0, what);
    t.regex(err, why, what);
  };
  const forged = JSON.stringify({
    version: 1,
    epoch: 1,
    containers: [
      {
        name: 'main',
        kind: 'app',
        memoryIsolation: 'off',
        cards: [{ gpuUuid: card, memoryBytes: 2 ** 34, limitBytes: 2 ** 34, coresPercent: 0 }],
      },
    ],
  });
  refusedAs(
    'a forged grant',
    podOf('forged', [clientOf(limits)], { ...TEAM, annotations: { [GRANT_ANNOTATION]: forged } }),
    /cotenant\.io\/grant/,
  );
  refusedAs(
    'a node of its own choice',
    podOf('pinned', [clientOf(limits)], { ...TEAM, spec: { nodeName: NODE_NAME } }),
    /nodeName/,
  );
  refusedAs(
    'another scheduler',
    podOf('other', [clientOf(limits)], { ...TEAM, spec: { schedulerName: 'mine' } }),
    /schedulerName/,
  );
  const volume = { name: 'cotenant', csi: { driver: 'cotenant.io' } };
  refusedAs(
    'the volume without a share',
    podOf('sneaky', [shellOf('sleep 600', { securityContext: RESTRICTED })], { ...TEAM, spec: { volumes: [volume] } }),
    /volume/,
  );
  refusedAs(
    'a privileged container with a share',
    podOf('strong', [clientOf(limits, [], { securityContext: { privileged: true } })], { namespace: 'default' }),
    /privileged/,
  );

  // Bound by somebody who grants nothing: it waits, is told why, and nothing of it starts.
  bed.kubectl('-n', 'cotenant-system', 'scale', 'deployment/cotenant-scheduler', '--replicas=0');
  const noScheduler = async () => ((await podsOf(bed, 'scheduler')).length === 0 ? true : undefined);
  await eventually(noScheduler, 'nobody schedules', 60_000);
  bed.apply(podOf('stray', [clientOf(limits)], TEAM), podOf('stolen', [clientOf(limits)], TEAM));
  const binding = {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: 'stolen', namespace: 'team' },
    target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
  };
  const bound = await bed.api.ask('POST', '/api/v1/namespaces/team/pods/stolen/binding', binding);
  t.is(bound.status, 201, JSON.stringify(bound.body));
  const why = await eventually(
    async () => (await eventsOf(bed, 'stolen', 'team')).find(({ reason }) => reason === 'FailedMount')?.message,
    'its events say why',
    60_000,
  );
  t.regex(
    why,
    /cotenant: the pod has no GPU grant \(annotation cotenant\.io\/grant\): it was not bound by a scheduler that grants/,
  );
  t.regex(cotenant(bed, 'why', 'team/stolen'), /has no GPU grant/);
  t.regex(cotenant(bed, 'why', 'team/stray'), /The scheduler cotenant-scheduler has said nothing about it/);
  t.is(containerOf(await getPod(bed, 'stolen', 'team'))?.state.running, undefined);
  bed.kubectl('-n', 'cotenant-system', 'scale', 'deployment/cotenant-scheduler', '--replicas=1');
  bed.kubectl('-n', 'team', 'delete', 'pod', 'stray', 'stolen', '--wait=false');
  await Promise.all(['stray', 'stolen'].map((name) => untilGone(bed, name, TEAM)));

  // A static pod goes past admission and scheduler. With the volume the kubelet itself refuses it; without, it finds no card.
  const manifests = join(bed.folder, 'manifests');
  const env = [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }];
  const write = (name: string, spec: object) =>
    writeFileSync(
      join(manifests, `${name}.json`),
      JSON.stringify(podOf(name, [clientOf(limits, ['init'], { env })], { namespace: 'default', spec })),
    );
  write('static', {});
  write('static-volume', { volumes: [volume] });
  const mirror = await untilPod(
    bed,
    `static-${NODE_NAME}`,
    'has ended for want of a driver',
    (pod) => (containerOf(pod)?.lastState.terminated ?? containerOf(pod)?.state.terminated) !== undefined,
  );
  const ended = containerOf(mirror)?.lastState.terminated ?? containerOf(mirror)?.state.terminated;
  t.is(ended?.exitCode, NO_DRIVER);
  t.regex(readFileSync(join(bed.folder, 'kubelet.log'), 'utf8'), /static pods may not reference csidrivers/);
  t.is(await getPod(bed, `static-volume-${NODE_NAME}`), undefined);
  for (const name of readdirSync(manifests)) rmSync(join(manifests, name));
});

onCluster(
  'a debug container gets no card, and files of the volume cannot be changed from inside',
  async (t, { bed }) => {
    const root = { securityContext: { runAsUser: 0 } };
    bed.apply(podOf('inside', [clientOf(ONE_SHARE.own(1024), ['init', 'context 0'], root)]));
    const pod = await untilRunning(bed, 'inside');
    const inside = (script: string) => bed.kubectl('exec', 'inside', '--', 'sh', '-c', script);
    for (const script of [
      'echo x > /run/cotenant/limits',
      'echo x > /etc/ld.so.preload',
      'echo x >> /run/cotenant/libcotenant.so',
      'rm -f /run/cotenant/limits',
      'mv /run/cotenant/libcotenant.so /tmp',
      'mount -o remount,rw /run/cotenant',
      'umount -l /run/cotenant',
      'umount -l /etc/ld.so.preload',
    ]) {
      const { code, err } = inside(script);
      t.not(code, 0, script);
      t.regex(err, /read-only|permission|denied|not permitted|busy|must be superuser/i, script);
    }
    // The ledger is the tenant's to write, so whoever falsifies it can take too much, and is stopped for it.
    t.is(inside('dd if=/dev/zero of=/run/cotenant/ledger bs=4096 count=32 conv=notrunc 2>/dev/null').code, 0);
    const talk = attach(bed, 'inside');
    await talk.ask(`alloc ${1000 * MIB}`).catch(() => {}); // it may end before it can answer
    const stopped = await untilPod(bed, 'inside', 'was stopped', (one) => (containerOf(one)?.restartCount ?? 0) > 0);
    t.regex(containerOf(stopped)?.lastState.terminated?.message ?? '', /past the interposer; it is stopped$/);
    await talk.leave();
    const debug = bed.kubectl(
      'debug',
      'inside',
      '--image=local.test/client:1',
      '--image-pull-policy=Never',
      '--container=debug',
      '--env=NVIDIA_VISIBLE_DEVICES=all',
      '--',
      'sleep',
      '600',
    );
    t.not(debug.code, 0, 'a debug container that names cards');
    t.regex(debug.err + debug.out, /NVIDIA_VISIBLE_DEVICES/);
    t.truthy(pod);
    bed.kubectl('delete', 'pod', 'inside', '--wait=false');
    await untilGone(bed, 'inside');
  },
);

onCluster('pods and namespaces that are deleted in any state leave nothing behind', async (t, { bed }) => {
  for (const namespace of ['team', 'default']) bed.kubectl('-n', namespace, 'delete', 'pods', '--all', '--wait=false');
  bed.apply(namespaceOf('short'));
  const limits = ONE_SHARE.own(512);
  const of = (name: string, commands: readonly string[]) =>
    podOf(name, [clientOf(limits, commands)], { namespace: 'short' });
  bed.apply(...['a', 'b', 'c', 'd'].map((name) => of(name, ['init', 'context 0'])));
  await untilRunning(bed, 'a', { namespace: 'short' });
  bed.kubectl('-n', 'short', 'delete', 'pod', 'b', '--grace-period=0', '--force');
  bed.apply(...['e', 'f'].map((name) => of(name, ['init'])));
  t.is(bed.kubectl('delete', 'namespace', 'short', '--timeout=60s').code, 0);
  const left = await eventually(() => (leftovers(bed).length === 0 ? [] : undefined), 'nothing is left', 60_000).catch(
    () => leftovers(bed),
  );
  t.deepEqual(left, []);
  const allocated = async () =>
    seriesOf((await agentPage(bed)) ?? '', 'cotenant_device_memory_allocated_bytes', { gpu: '0' }) === 0 || undefined;
  t.true(await eventually(allocated, 'nothing is granted by the next sample', 10_000));
  t.truthy(await podOfRelease(bed, 'agent'));
});
