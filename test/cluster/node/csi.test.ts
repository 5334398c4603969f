// The CSI driver with a real kubelet and a publisher whose answers the test chooses: why pods wait, what root in a
// container can do to its volume, and what happens while the driver or the kubelet is away.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { ExecutionContext } from 'ava';
import { libraries } from '../../../src/agent/grants/registry.ts';
import { CSI_DRIVER, mountsOf, VOLUME, VOLUME_NAME } from '../../../src/api/csi-volume.ts';
import { testUnless } from '../../support/gate.ts';
import type { PublisherReport } from '../../support/product/publisher.ts';
import { type Bed, BUSYBOX_IMAGE, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';

const tools = bedTools(console.log, false);
const PUBLISHER = join(import.meta.dirname, '../../support/product/publisher.ts');
const KUBELET_ROOT = '/var/lib/kubelet';

const DRIVER_OBJECT = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'CSIDriver',
  metadata: { name: CSI_DRIVER },
  spec: { attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: ['Ephemeral'], fsGroupPolicy: 'None' },
};

const RESTRICTED = {
  runAsNonRoot: true,
  runAsUser: 1000,
  allowPrivilegeEscalation: false,
  readOnlyRootFilesystem: true,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
};

type Settings = {
  readonly namespace?: string;
  /** In addition to those that the webhook adds. */
  readonly mounts?: readonly object[];
  readonly security?: object;
  readonly podSecurity?: object;
};

/** As the webhook leaves it. */
const podOf = (name: string, containers: readonly string[], settings: Settings = {}): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: settings.namespace ?? 'default' },
  spec: {
    terminationGracePeriodSeconds: 1,
    automountServiceAccountToken: false,
    securityContext: settings.podSecurity ?? {},
    volumes: [VOLUME],
    containers: containers.map((container) => ({
      name: container,
      image: BUSYBOX_IMAGE,
      imagePullPolicy: 'Never',
      command: ['sleep', '3600'],
      securityContext: settings.security ?? {},
      volumeMounts: [...(settings.mounts ?? []), ...mountsOf(container)],
    })),
  },
});

type Pod = {
  metadata: { uid: string; deletionTimestamp?: string };
  status?: { phase?: string; containerStatuses?: { state?: { running?: object; terminated?: object } }[] };
};

/** A publisher in its own mount namespace that shares its mounts with the kubelet's, as a DaemonSet's container
 * does. */
function publishers(t: ExecutionContext, bed: Bed) {
  const files = join(bed.folder, 'publisher');
  mkdirSync(join(files, 'pods'), { recursive: true });
  const reports: PublisherReport[] = [];
  const args = [
    ...['--pdeathsig', 'KILL', 'nsenter', '-t', String(bed.namespaces.pid), '-m', '-n'],
    ...['unshare', '-m', '--propagation', 'unchanged', process.execPath, PUBLISHER, files, KUBELET_ROOT],
  ];
  let kill = async () => {};
  t.teardown(() => kill());
  return {
    async start() {
      const child = spawn('setpriv', args, { stdio: ['ignore', 'pipe', 'inherit'] });
      kill = async () => {
        if (child.exitCode !== null || child.signalCode !== null) return;
        child.kill('SIGKILL');
        await once(child, 'exit');
      };
      const from = reports.length;
      createInterface({ input: child.stdout }).on('line', (line) => reports.push(JSON.parse(line) as PublisherReport));
      await eventually(() => reports.slice(from).find(({ what }) => what === 'ready'), 'the publisher serves');
    },
    kill: () => kill(),
    give: (pod: string, containers: string) => writeFileSync(join(files, 'pods', pod), containers),
    setBroken: (broken: boolean) =>
      broken ? writeFileSync(join(files, 'broken'), '') : rmSync(join(files, 'broken'), { force: true }),
    reports,
    /** How often the kubelet asked again for a pod's volume. */
    again: (pod: string) => reports.filter((one) => one.what === 'publish' && one.mounted && one.pod === pod).length,
  };
}

const SEALED = /Read-only file system/;
const BUSY = /Device or resource busy/;
const DENIED = /Operation not permitted|permission denied/i;
const FULL = /No space left on device/;

/** Attempts of root in a container, and the required results. `/all`, `/page`, `/books`: mounts that the pod added. */
const ATTACKS: readonly (readonly [script: string, answer: RegExp])[] = [
  ['echo x >> /run/cotenant/limits', SEALED],
  ['echo x >> /run/cotenant/libcotenant.so', SEALED],
  ['echo x >> /run/cotenant/libcotenant-nvml.so', SEALED],
  ['echo x >> /etc/ld.so.preload', SEALED],
  ['echo x > /run/cotenant/new', SEALED],
  ['echo x >> /all/containers/main/limits', SEALED],
  ['echo x >> /all/containers/side/limits', SEALED],
  ['echo x >> /all/lib/libcotenant.so', SEALED],
  ['echo x >> /all/ld.so.preload', SEALED],
  ['mkdir /all/containers/other', SEALED],
  ['echo x >> /page', SEALED],
  ['rm /run/cotenant/limits', SEALED],
  ['rm /all/containers/main/limits', SEALED],
  ['rm /etc/ld.so.preload', BUSY],
  ['mv /etc/ld.so.preload /etc/x', BUSY],
  ['mv /run/cotenant /run/x', BUSY],
  ['mv /all/lib /all/x', SEALED],
  ['mv /all/containers/main/limits /all/containers/main/x', SEALED],
  ['ln -s /dev/null /all/x', SEALED],
  ['chmod 666 /run/cotenant/limits', SEALED],
  ['umount /run/cotenant/limits', DENIED],
  ['umount /etc/ld.so.preload', DENIED],
  ['umount -l /run/cotenant', DENIED],
  ['mount -o remount,rw /run/cotenant', DENIED],
  ['mount -o remount,rw /all', DENIED],
  ['mount -o remount,bind,rw /run/cotenant/limits', DENIED],
  ['mount --bind /tmp /run/cotenant', DENIED],
  ['mount -t tmpfs none /etc', DENIED],
  ['cat /dev/zero >> /run/cotenant/ledger', FULL],
  ['i=0; while touch /books/$i; do i=$((i+1)); [ $i -lt 1000 ] || exit 0; done; exit 1', FULL],
];

testUnless(tools.ok ? undefined : tools.reason)(
  'volumes come from the CSI driver, fail closed without it and are read-only',
  async (t) => {
    t.timeout(600_000);
    if (!tools.ok) throw new Error(tools.reason);
    const bed = await startBed(tools, (line) => t.log(line));
    t.teardown(() => bed.close());
    const publisher = publishers(t, bed);
    const began = performance.now();

    const hasEvent = (pod: string, wanted: RegExp) =>
      eventually(() => {
        const args = ['get', 'events', '--field-selector', `involvedObject.name=${pod}`, '-o', 'json'];
        const list = JSON.parse(bed.kubectl(...args).out) as { items: { reason: string; message: string }[] };
        return list.items.find(({ reason, message }) => reason === 'FailedMount' && wanted.test(message));
      }, `an event of pod ${pod} that says ${wanted}`);
    const runs = (name: string, namespace?: string) =>
      eventually(() => {
        const pod = bed.get<Pod>('pod', name, namespace);
        return pod?.status?.phase === 'Running' ? pod : undefined;
      }, `pod ${name} runs`);
    const isGone = (name: string, namespace?: string) =>
      eventually(() => bed.get('pod', name, namespace) === undefined || undefined, `pod ${name} is gone`);
    const remove = (name: string, namespace = 'default') =>
      t.is(bed.kubectl('-n', namespace, 'delete', 'pod', name, '--wait=false').code, 0);
    const inPod = (name: string, script: string, ...args: readonly string[]) =>
      bed.kubectl('exec', name, ...args, '--', 'sh', '-c', script);
    const volumeMounts = () =>
      bed.namespaces
        .run(['cat', '/proc/self/mountinfo'])
        .out.split('\n')
        .filter((line) => line.includes('kubernetes.io~csi') || line.includes('volume-subpaths'));
    const generation = (name: string) => Number(inPod(name, 'od -A n -t d8 -j 32 -N 8 /run/cotenant/limits').out);

    bed.apply(DRIVER_OBJECT);
    await publisher.start();

    // A pod without a grant waits with the reason and starts when it has one.
    bed.apply(podOf('waits', ['main']));
    const refusal = await hasEvent('waits', /has no grant/);
    t.regex(
      refusal.message,
      /code = FailedPrecondition desc = cotenant: pod default\/waits has no grant; was it bound by another scheduler\?$/,
    );
    t.is(bed.get<Pod>('pod', 'waits')?.status?.phase, 'Pending');
    publisher.give('waits', 'main');

    // Meanwhile: one pod that attacks, and one that is as restricted as possible.
    publisher.give('attacks', 'main side');
    publisher.give('restricted', 'main');
    const mount = (mountPath: string, subPath?: string) => ({
      name: VOLUME_NAME,
      mountPath,
      ...(subPath && { subPath }),
    });
    const added = [mount('/all'), mount('/page', 'containers/main/limits'), mount('/books', 'ledgers')];
    const labels = { 'pod-security.kubernetes.io/enforce': 'restricted' };
    bed.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'strict', labels } });
    bed.apply(podOf('attacks', ['main', 'side'], { mounts: added }));
    bed.apply(
      podOf('restricted', ['main'], { namespace: 'strict', security: RESTRICTED, podSecurity: { fsGroup: 2000 } }),
    );
    const attacker = await runs('attacks');
    await runs('restricted', 'strict');
    await runs('waits');

    // The container reads what was published; it may write the ledger.
    const place = join(KUBELET_ROOT, 'pods', attacker.metadata.uid, `volumes/kubernetes.io~csi/${VOLUME_NAME}/mount`);
    const preload = '/run/cotenant/libcotenant.so\n/run/cotenant/libcotenant-nvml.so\n';
    t.is(inPod('attacks', 'cat /etc/ld.so.preload').out, preload);
    t.is(inPod('attacks', 'echo x >> /run/cotenant/ledger', '-c', 'side').code, 0);
    const strict = (script: string) => bed.kubectl('-n', 'strict', 'exec', 'restricted', '--', 'sh', '-c', script);
    t.is(strict('id -u; echo x >> /run/cotenant/ledger && echo written').out, '1000\nwritten\n');
    t.regex(strict('echo x >> /run/cotenant/limits').err, /Permission denied|Read-only file system/);

    // All at once, because each exec takes a while; the last output line of a script is its result.
    const script = ATTACKS.map(
      ([attack]) => `(${attack}) 2>&1 >/dev/null | tail -n 1 | sed 's/^$/(nothing)/'; echo --`,
    );
    const answers = inPod('attacks', script.join('\n'), '-c', 'main').out.split('--\n');
    for (const [index, [attack, wanted]] of ATTACKS.entries()) t.regex(answers[index] ?? '', wanted, attack);
    const sizes = bed.namespaces.run(['du', '-sk', join(place, 'ledgers')]).out;
    // Two ledgers and the room beside them, each in a memory page of up to 64 KiB.
    t.true(Number.parseInt(sizes, 10) <= 3 * 64, `its ledgers end at their bound: ${sizes}`);
    for (const library of libraries()) {
      const copy = join(place, 'lib', library.split('/').at(-1) ?? '');
      t.is(bed.namespaces.run(['cmp', library, copy]).code, 0, 'nothing has changed');
    }
    t.is(bed.namespaces.run(['cat', join(place, 'ld.so.preload')]).out, preload);
    // Nor can it see the volume's path on the node, or another pod's volume.
    const seen = inPod('attacks', 'cat /proc/self/mountinfo')
      .out.split('\n')
      .filter((line) => / cotenant /.test(line));
    t.is(seen.length, 4 + added.length + 1);
    for (const line of seen) t.notRegex(line, /kubelet/);

    // A restarted kubelet asks for all volumes again. None is refused, whatever the publisher answers.
    const before = { waits: generation('waits'), again: publisher.again('waits') };
    await bed.restart('kubelet');
    await eventually(() => publisher.again('waits') > before.again || undefined, 'the kubelet asks again');
    await eventually(
      () => generation('waits') > before.waits || undefined,
      'a running container sees its page rewritten',
    );
    publisher.setBroken(true);
    const asked = publisher.again('attacks');
    await bed.restart('kubelet');
    await eventually(() => publisher.again('attacks') > asked || undefined, 'it asks again');
    const isKept = (one: PublisherReport) =>
      one.what === 'problem' && one.text.startsWith('a volume that is in use stays');
    await eventually(() => publisher.reports.find(isKept), 'the volume is kept');
    remove('attacks');
    await isGone('attacks');
    publisher.setBroken(false);

    // Without the driver a new pod waits with the reason and a deleted one stays; both proceed when it is back.
    await publisher.kill();
    publisher.give('late', 'main');
    bed.apply(podOf('late', ['main']));
    remove('waits');
    t.regex(
      (await hasEvent('late', /csi\.sock/)).message,
      /code = Unavailable .*csi\.sock: connect: connection refused/,
    );
    const kubeletLog = () => readFileSync(join(bed.folder, 'kubelet.log'), 'utf8');
    await eventually(
      () => /UnmountVolume\.TearDown failed.*cotenant\.io/.test(kubeletLog()) || undefined,
      'the kubelet cannot take the volume down',
    );
    // The kubelet takes volumes down once it has stopped the containers, and may say so later.
    const stays = await eventually(() => {
      const pod = bed.get<Pod>('pod', 'waits');
      return pod?.status?.containerStatuses?.every(({ state }) => state?.terminated) ? pod : undefined;
    }, 'its container was stopped');
    t.truthy(stays.metadata.deletionTimestamp);
    t.is(bed.get<Pod>('pod', 'late')?.status?.phase, 'Pending');
    await publisher.start();
    await Promise.all([runs('late'), isGone('waits')]);

    // Nothing is left behind.
    remove('late');
    remove('restricted', 'strict');
    await isGone('late');
    await isGone('restricted', 'strict');
    await eventually(() => volumeMounts().length === 0 || undefined, 'no mount of a volume is left');
    const folders = () => bed.namespaces.run(['ls', join(KUBELET_ROOT, 'pods')]).out;
    await eventually(() => folders() === '' || undefined, 'no folder of a pod is left');

    const times = publisher.reports.flatMap((one) => (one.what === 'publish' && !one.mounted ? [one.ms] : []));
    t.log(`first publishes took ${times.map((ms) => ms.toFixed(1)).join(', ')} ms`);
    t.log(`all of it took ${Math.round((performance.now() - began) / 1000)} s`);
  },
);
