// The objects of the test of `inspect` and `why`: pods in every state, with what the webhook, the scheduler and the
// agent would have written, a fake agent that serves a page, and a user who may read one namespace.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import {
  COMPONENT_LABEL,
  GPUS_ANNOTATION,
  GRANT_ANNOTATION,
  NAMESPACE_ANNOTATION,
  REQUEST_ANNOTATION,
} from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import type { Pod } from '../../../src/cli/cluster/objects.ts';
import { MIB } from '../../../src/common/quantity.ts';
import type { PodEvent } from '../../../src/kube/event-correlator.ts';
import { buildEvent } from '../../../src/kube/events.ts';
import { exampleContainer, exampleSnapshot } from '../../support/product/snapshots.ts';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import type { Ran } from '../bed/namespaces.ts';
import { NODE_NAME } from '../bed/node.ts';

export const GPUS = ['GPU-51a0c07e-4a27-4551-8d21-6e1004000000', 'GPU-51a0c07e-4a27-4551-8d21-6e1005000001'] as const;
export const AGENT = 'cotenant-agent-x7k2p';
export const STOP = `team/rogue/main exceeds its GPU memory grant: 3000 MiB of 1024 MiB on ${GPUS[0]}, 2900 MiB of it past the interposer; the agent stops it`;

const request = (mib: number, gpus: number): string =>
  formatPodRequest({
    priority: 'normal',
    gpuModels: [],
    gpuUuids: [],
    containers: [
      {
        name: 'main',
        kind: 'app',
        dialect: 'cotenant',
        asked: { 'cotenant.io/gpu-memory': String(mib * gpus * MIB) },
        memoryIsolation: 'on',
        gpus: Array.from({ length: gpus }, () => ({ memory: { kind: 'bytes', bytes: mib * MIB }, coresPercent: 25 })),
      },
    ],
  });

type Wanted = {
  readonly mib: number;
  readonly gpus: readonly string[];
  readonly script?: string;
  readonly volume?: true;
};

/** As the webhook leaves it. */
const podOf = (name: string, { mib, gpus, script = 'exec sleep 600', volume }: Wanted): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'team', annotations: { [REQUEST_ANNOTATION]: request(mib, gpus.length) } },
  spec: {
    schedulerName: 'cotenant-scheduler',
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'main',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['/bin/sh', '-c', script],
        ...(volume ? { volumeMounts: [{ name: 'cotenant', mountPath: '/run/cotenant' }] } : {}),
      },
    ],
    ...(volume ? { volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }] } : {}),
  },
});

/** As the extender binds it. */
function bind(bed: Bed, name: string, { mib, gpus }: Wanted): void {
  const grant = formatPodGrant({
    epoch: 1,
    containers: [
      {
        name: 'main',
        kind: 'app',
        memoryIsolation: 'on',
        gpus: gpus.map((gpuUuid) => ({ gpuUuid, memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 25 })),
      },
    ],
  });
  const body = {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name, annotations: { [GRANT_ANNOTATION]: grant } },
    target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
  };
  const { code, err } = bed.kubectlWith(
    JSON.stringify(body),
    ...['create', '--raw', `/api/v1/namespaces/team/pods/${name}/binding`, '-f', '-'],
  );
  if (code !== 0) throw new Error(err);
}

/** The snapshot of an agent with two GPUs while one container uses the first of them. */
export const SNAPSHOT: Snapshot = {
  ...exampleSnapshot,
  devices: exampleSnapshot.devices.map((device, index) => ({
    ...device,
    gpu: { ...device.gpu, uuid: GPUS[index] ?? '', usedBytes: index === 0 ? 5312 * MIB : 0 },
  })),
  containers: [{ ...exampleContainer, namespace: 'team', pod: 'train', gpuUuid: GPUS[0], usedBytes: 3320 * MIB }],
  containerTotals: exampleSnapshot.containerTotals
    .slice(0, 1)
    .map((totals) => ({ ...totals, grantId: exampleContainer.grantId, gpuUuid: GPUS[0] })),
  foreign: [],
};

/** Runs in place of the agent's pod and serves its page. */
export const agentPod = (
  volumes: readonly object[],
  command: readonly string[],
  namespace = 'cotenant-system',
): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: AGENT, namespace, labels: { [COMPONENT_LABEL]: 'agent' } },
  spec: {
    nodeName: NODE_NAME,
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'exporter',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command,
        ports: [{ name: 'metrics', containerPort: 9837 }],
        volumeMounts: volumes.map(() => ({ name: 'page', mountPath: '/page' })),
        readinessProbe: { httpGet: { path: '/metrics', port: 9837 }, periodSeconds: 1 },
      },
    ],
    volumes,
  },
});

/** The chart's CSIDriver object; no such driver is on the node. */
const CSI_DRIVER = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'CSIDriver',
  metadata: { name: 'cotenant.io', annotations: { [NAMESPACE_ANNOTATION]: 'cotenant-system' } },
  spec: { attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: ['Ephemeral'] },
};

const POLICY = [
  {
    apiVersion: 'admissionregistration.k8s.io/v1',
    kind: 'ValidatingAdmissionPolicy',
    metadata: { name: 'cotenant-pods' },
    spec: {
      failurePolicy: 'Fail',
      matchConstraints: {
        resourceRules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['pods'] }],
      },
      validations: [
        {
          expression: "!has(object.metadata.labels) || !('refused' in object.metadata.labels)",
          message: 'a pod that asks for a share must pass the webhook of Cotenant',
        },
      ],
    },
  },
  {
    apiVersion: 'admissionregistration.k8s.io/v1',
    kind: 'ValidatingAdmissionPolicyBinding',
    metadata: { name: 'cotenant-pods' },
    spec: { policyName: 'cotenant-pods', validationActions: ['Deny'] },
  },
];

const REFUSED = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'refused', namespace: 'team' },
  spec: {
    selector: { matchLabels: { app: 'refused' } },
    template: {
      metadata: { labels: { app: 'refused', refused: 'yes' } },
      spec: { containers: [{ name: 'main', image: BUSYBOX_IMAGE, imagePullPolicy: 'Never' }] },
    },
  },
};

/** May read the pods of its namespace and nothing else. */
const READER = [
  { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 'reader', namespace: 'team' } },
  {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'Role',
    metadata: { name: 'reader', namespace: 'team' },
    rules: [{ apiGroups: [''], resources: ['pods'], verbs: ['get', 'list'] }],
  },
  {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'RoleBinding',
    metadata: { name: 'reader', namespace: 'team' },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'reader' },
    subjects: [{ kind: 'ServiceAccount', name: 'reader', namespace: 'team' }],
  },
];

/** A kubeconfig of the cluster with another token. */
export function readerKubeconfig(bed: Bed): string {
  const { out, code, err } = bed.kubectl('-n', 'team', 'create', 'token', 'reader');
  if (code !== 0) throw new Error(err);
  const config = JSON.parse(readFileSync(join(bed.folder, 'kubeconfig'), 'utf8')) as {
    users: { user: { token: string } }[];
    contexts: { context: { namespace?: string } }[];
  };
  for (const { user } of config.users) user.token = out.trim();
  for (const { context } of config.contexts) context.namespace = 'team';
  const file = join(bed.folder, 'reader.json');
  writeFileSync(file, JSON.stringify(config));
  return file;
}

export async function setUp(bed: Bed): Promise<void> {
  for (const name of ['team', 'cotenant-system']) {
    bed.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
  }
  const models = ['NVIDIA L4', 'NVIDIA A10'];
  const gpus = formatNodeGpus({
    mostTenantsPerGpu: 50,
    gpus: GPUS.map((gpuUuid, index) => ({
      gpuUuid,
      index,
      model: models[index] ?? '',
      usableBytes: 22_600 * MIB,
      healthy: true,
    })),
  });
  bed.kubectl('annotate', 'node', NODE_NAME, `${GPUS_ANNOTATION}=${gpus}`);
  await eventually(() => bed.get('serviceaccount', 'default', 'team'), 'the namespace is ready');
  await eventually(() => bed.get('serviceaccount', 'default', 'cotenant-system'), 'the namespace is ready');
  const wanted: Readonly<Record<string, Wanted>> = {
    train: { mib: 4096, gpus: [GPUS[0]] },
    two: { mib: 6144, gpus: GPUS },
    // There is no CSI driver.
    mounts: { mib: 512, gpus: [GPUS[1]], volume: true },
    rogue: { mib: 1024, gpus: [GPUS[0]], script: `printf '%s' '${STOP}' > /dev/termination-log; exit 137` },
  };
  bed.apply(
    ...Object.entries(wanted).map(([name, what]) => podOf(name, what)),
    podOf('large', { mib: 30_720, gpus: [GPUS[0]] }),
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'page', namespace: 'cotenant-system' },
      data: { metrics: 'of no use here', 'status.json': JSON.stringify(SNAPSHOT) },
    },
    CSI_DRIVER,
    agentPod([{ name: 'page', configMap: { name: 'page' } }], ['httpd', '-f', '-p', '9837', '-h', '/page']),
    // A tenant's pod that looks like an agent's, because any pod may have these labels; its page is no agent's.
    agentPod([], ['sh', '-c', 'mkdir /tmp/p && echo no > /tmp/p/metrics && httpd -f -p 9837 -h /tmp/p'], 'team'),
    ...POLICY,
    ...READER,
  );
  for (const [name, what] of Object.entries(wanted)) bind(bed, name, what);
  // The policy takes effect shortly after it is created.
  await eventually(() => {
    const { code } = bed.kubectl('-n', 'team', 'run', 'x', '--image=x', '--labels=refused=yes', '--dry-run=server');
    return code === 0 ? undefined : true;
  }, 'the policy refuses');
  bed.apply(REFUSED);
  const stopped = await eventually(() => {
    const [status] = bed.get<Pod>('pod', 'rogue', 'team')?.status?.containerStatuses ?? [];
    return status?.lastState?.terminated ?? status?.state?.terminated;
  }, 'the rogue has ended');
  const atMs = Date.parse(stopped.finishedAt ?? '');
  const about: PodEvent = {
    namespace: 'team',
    pod: 'rogue',
    podUid: bed.get<Pod>('pod', 'rogue', 'team')?.metadata.uid ?? '',
    container: 'main',
    reason: 'GPUMemoryQuotaExceeded',
    type: 'Warning',
    action: 'kill',
    message: STOP,
    atMs,
    by: { component: 'agent', instance: NODE_NAME },
  };
  const event = buildEvent(about, { name: 'rogue.stopped', count: 1, firstMs: atMs });
  bed.kubectlWith(JSON.stringify({ apiVersion: 'v1', kind: 'Event', ...event }), 'create', '-f', '-');
  const args = ['wait', 'pod', '--for=condition=Ready', '--timeout=240s'];
  must(bed.kubectl('-n', 'team', ...args, 'train', 'two', AGENT));
  must(bed.kubectl('-n', 'cotenant-system', ...args, '--all'));
}

export const must = ({ code, err }: Ran): void => {
  if (code !== 0) throw new Error(err);
};
