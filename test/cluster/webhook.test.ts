// The webhook on a real API server: deployed from the chart, called by the server itself, judged by what the server stores.
// Its pods stay Pending here, for no scheduler of the name that it writes is there.
import { testUnless } from '../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { type Bed, BUSYBOX_IMAGE, bedGround, startBed } from './bed/bed.ts';
import { addCotenantImage, installChart, NAMESPACE } from './bed/product.ts';

const ground = bedGround(console.log, false);
const helm = lookForHelm();
const reason = ground.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : ground.reason;

type Container = {
  name: string;
  resources?: { limits?: Record<string, string> };
  volumeMounts?: { name: string; mountPath: string; readOnly?: boolean }[];
};
type Pod = {
  metadata: { annotations?: Record<string, string> };
  spec: {
    schedulerName?: string;
    containers: Container[];
    volumes?: { name: string; csi?: { driver: string } }[];
  };
  status?: { phase?: string };
};

const podOf = (name: string, limits: Record<string, string | number>, more: object = {}): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, ...more },
  spec: {
    containers: [
      {
        name: 'main',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['sleep', '600'],
        resources: { limits },
      },
    ],
  },
});

/** What the server would store, after admission. */
function dryRun(bed: Bed, pod: object): { pod: Pod | undefined; said: string } {
  const { code, out, err } = bed.kubectlWith(
    JSON.stringify(pod),
    'create',
    '--dry-run=server',
    '-o',
    'json',
    '-f',
    '-',
  );
  return { pod: code === 0 ? (JSON.parse(out) as Pod) : undefined, said: err.trim() };
}

testUnless(reason)('the webhook, deployed from the chart, patches and refuses for a real API server', async (t) => {
  t.timeout(BUILD_MS);
  if (!ground.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const say = (line: string) => t.log(line);
  const bed = await startBed(ground, say);
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  installChart(bed, path, {
    agent: { enabled: false },
    webhook: {
      enabled: true,
      replicas: 2,
      configuration: { schedulerName: 'cotenant-scheduler', rules: { dialects: ['ack', 'metagpu'] } },
    },
  });

  const own = dryRun(bed, podOf('own', { 'cotenant.io/gpu-memory': '2Gi' }));
  t.truthy(own.pod, own.said);
  const [container] = own.pod?.spec.containers ?? [];
  t.is(own.pod?.spec.schedulerName, 'cotenant-scheduler');
  t.true(own.pod?.spec.volumes?.some(({ csi }) => csi?.driver === 'cotenant.io'));
  t.deepEqual(container?.resources?.limits, { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '2Gi' });
  const mounts = Object.fromEntries((container?.volumeMounts ?? []).map((mount) => [mount.mountPath, mount]));
  t.true(mounts['/etc/ld.so.preload']?.readOnly);

  // The same in the dialect of ACK; what the server stores of it is what it stores of ours.
  const ack = dryRun(bed, podOf('ack', { 'aliyun.com/gpu-mem': 2 }));
  t.truthy(ack.pod, ack.said);
  t.is(ack.pod?.spec.schedulerName, 'cotenant-scheduler');
  t.true(
    Object.keys(ack.pod?.spec.containers[0]?.resources?.limits ?? {}).every((name) => name.startsWith('cotenant.io/')),
  );

  const odd = dryRun(bed, podOf('odd', { 'cotenant.io/gpu-memory': '4G' }));
  t.is(odd.pod, undefined);
  t.regex(
    odd.said,
    /resources\.limits\["cotenant\.io\/gpu-memory"\]: "4G" is not a whole number of MiB on the card; write "3814Mi"/,
  );
  const forged = dryRun(
    bed,
    podOf('forged', { 'cotenant.io/gpu-memory': '2Gi' }, { annotations: { 'cotenant.io/grant': '[]' } }),
  );
  t.is(forged.pod, undefined, 'a grant that a tenant wrote');
  t.regex(forged.said, /cotenant\.io\/grant/);

  // A pod that has nothing to do with GPUs runs, and is stored as it came.
  bed.apply(podOf('plain', { memory: '64Mi' }));
  await eventually(
    () => bed.get<Pod>('pod', 'plain')?.status?.phase === 'Running' || undefined,
    'the plain pod runs',
    60_000,
  );
  t.is(bed.get<Pod>('pod', 'plain')?.spec.schedulerName, 'default-scheduler');

  // Down: a slice is refused with the webhook's name in the reason, a plain pod is not.
  t.is(bed.kubectl('-n', NAMESPACE, 'scale', 'deployment', '--all', '--replicas=0').code, 0);
  const down = await eventually(
    () => {
      const answer = dryRun(bed, podOf('late', { 'cotenant.io/gpu-memory': '2Gi' }));
      return answer.pod ? undefined : answer.said;
    },
    'slices are refused while nobody answers',
    60_000,
  );
  t.regex(down, /failed calling webhook "[a-z.]*cotenant\.io"/);
  bed.apply(podOf('plain-too', { memory: '64Mi' }));
  await eventually(
    () => bed.get<Pod>('pod', 'plain-too')?.status?.phase === 'Running' || undefined,
    'it runs, too',
    60_000,
  );
});
