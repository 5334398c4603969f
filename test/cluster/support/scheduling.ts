// Nodes with GPUs but without a kubelet, pods as the webhook leaves them, and queries about both: for tests of
// placement only.
import type { ExecutionContext } from 'ava';
import { type PodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { demandOf } from '../../../src/placement/demand.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';
import { type Pod, podPath, untilPod } from './pods.ts';

const GPU_BYTES = 16 * GIB;
export const PODS = '/api/v1/namespaces/default/pods';
const CONFIGURATION = { ...DEFAULT_CONFIGURATION, rules: { ...DEFAULT_CONFIGURATION.rules, allowGpuUuid: true } };

export const uuid = (node: number, gpu: number) =>
  `GPU-00000000-0000-4000-8000-${String(node * 100 + gpu).padStart(12, '0')}`;

/** A node as its agent would describe it, without a kubelet. */
export async function addNode(bed: Bed, number: number, gpus: number): Promise<string> {
  const name = `gpu-${number}`;
  const text = formatNodeGpus({
    mostTenantsPerGpu: 50,
    gpus: Array.from({ length: gpus }, (_, index) => ({
      gpuUuid: uuid(number, index),
      index,
      model: 'NVIDIA L4',
      usableBytes: GPU_BYTES,
      healthy: true,
    })),
  });
  const metadata = { name, annotations: { [GPUS_ANNOTATION]: text } };
  await must(bed, 'POST', '/api/v1/nodes', { apiVersion: 'v1', kind: 'Node', metadata });
  const amounts = { cpu: '64', memory: '256Gi', pods: '500', 'cotenant.io/gpu': String(50 * gpus) };
  const ready = { type: 'Ready', status: 'True', reason: 'Test', message: 'written by a test' };
  const status = { capacity: amounts, allocatable: amounts, conditions: [ready] };
  await must(bed, 'PATCH', `/api/v1/nodes/${name}/status`, { status });
  return name;
}

export async function must(bed: Bed, method: string, path: string, body?: object): Promise<void> {
  const { status, body: said } = await bed.api.ask(method, path, body);
  if (status >= 300) throw new Error(`${method} ${path}: ${status} ${JSON.stringify(said)}`);
}

export const add = (bed: Bed, ...pods: readonly object[]) =>
  Promise.all(pods.map((pod) => must(bed, 'POST', PODS, pod)));

type Limits = Readonly<Record<string, Record<string, string | number>>>;

/** A pod as the webhook leaves it, with a toleration so that it is not evicted from a node that does not respond. */
export function podOf(name: string, containers: Limits, annotations: Record<string, string> = {}): object {
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
  const injected = mutatePod(pod, 'default', CONFIGURATION);
  if (injected.kind !== 'patched') throw new Error(JSON.stringify(injected));
  return injected.pod;
}
export const memory = (gib: number, gpu = 1) => ({
  'cotenant.io/gpu-memory': `${gib * 1024}Mi`,
  'cotenant.io/gpu': gpu,
});

export function grantOf(pod: Pod): PodGrant {
  const grant = parsePodGrant(pod.metadata.annotations?.[GRANT_ANNOTATION] ?? '');
  if (!grant.ok) throw new Error(`${pod.metadata.name}: ${grant.error}`);
  return grant.value;
}

export const bound = (bed: Bed, name: string): Promise<Pod> =>
  untilPod(bed, name, 'is bound', ({ spec }) => spec.nodeName !== undefined);

export const conditionOf = ({ status }: Pod) => status?.conditions?.find(({ type }) => type === 'PodScheduled');

/** The message of the pod's PodScheduled condition. */
export const pending = async (bed: Bed, name: string, said: RegExp): Promise<string> => {
  const isRefused = (pod: Pod) => said.test(conditionOf(pod)?.message ?? '') && conditionOf(pod)?.status === 'False';
  return conditionOf(await untilPod(bed, name, `is refused with ${said}`, isRefused))?.message ?? '';
};

export const podsOf = async (bed: Bed): Promise<readonly Pod[]> =>
  (await bed.api.get<{ items: Pod[] }>(PODS))?.items ?? [];

/** Waits for so many bound pods, sums all grants by GPU, and fails if one is overcommitted. */
export async function checkBooks(t: ExecutionContext, bed: Bed, count: number): Promise<readonly PodGrant[]> {
  const holders = await eventually(async () => {
    const found = (await podsOf(bed)).filter(({ spec }) => spec.nodeName !== undefined);
    return found.length >= count ? found : undefined;
  }, `${count} pods are bound`);
  t.is(holders.length, count);
  const sums = new Map<string, number>();
  const grants = holders.map(grantOf);
  for (const [index, { containers }] of grants.entries()) {
    const node = Number(holders[index]?.spec.nodeName?.slice('gpu-'.length));
    const own = [0, 1, 2, 3].map((gpu) => uuid(node, gpu));
    for (const [gpu, { memoryBytes }] of demandOf(containers)) {
      t.true(own.includes(gpu), `${holders[index]?.metadata.name} has a GPU of another node`);
      sums.set(gpu, (sums.get(gpu) ?? 0) + memoryBytes);
    }
  }
  for (const [gpu, sum] of sums) t.true(sum <= GPU_BYTES, `${gpu}: ${sum} bytes granted`);
  return grants;
}

/** Deletes the pods at once, because no kubelet would end them. */
export async function clear(bed: Bed, ...nodes: readonly string[]): Promise<void> {
  const pods = await podsOf(bed);
  await Promise.all(pods.map(({ metadata }) => must(bed, 'DELETE', `${podPath(metadata.name)}?gracePeriodSeconds=0`)));
  await Promise.all(nodes.map((name) => must(bed, 'DELETE', `/api/v1/nodes/${name}`)));
}

type Lease = { readonly spec?: { readonly holderIdentity?: string; readonly leaseTransitions?: number } };

export async function leaderOf(bed: Bed): Promise<{ pod: string; epoch: number }> {
  const path = `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/cotenant-scheduler`;
  const held = async () => {
    const spec = (await bed.api.get<Lease>(path))?.spec;
    return spec?.holderIdentity ? spec : undefined;
  };
  const { holderIdentity = '', leaseTransitions = 0 } = await eventually(held, 'a replica leads');
  return { pod: holderIdentity.split('_')[0] ?? '', epoch: leaseTransitions };
}
