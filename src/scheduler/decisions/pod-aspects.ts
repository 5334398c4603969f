// What counts of a pod besides its request for GPUs: of what it is a replica, its group, and the CPU cores that it
// requests. Pure.
import { field, listAt, textAt } from '../../common/json.ts';
import { parseQuantity } from '../../common/quantity.ts';
import { gangOf } from '../../placement/gang.ts';
import { replicaOf } from '../../placement/replicas.ts';
import type { PodAspects } from './filter-and-score.ts';

/** The amount of `cpu` in a list of resources. */
export function coresIn(resources: unknown): number {
  const quantity = parseQuantity(field(resources, 'cpu') ?? 0);
  return quantity.ok ? Number(quantity.value.numerator) / Number(quantity.value.denominator) : 0;
}

/**
 * Of a pod's spec, as kube-scheduler counts it (k8s.io/component-helpers, resource.PodRequests): containers and sidecars
 * together, or an init container with the sidecars before it, if that is more; an amount of the pod as a whole in place of
 * both; and its overhead.
 */
export function coresOf(spec: unknown): number {
  let [sidecars, most] = [0, 0];
  for (const one of listAt(spec, 'initContainers')) {
    const cores = requestOf(one);
    const isSidecar = textAt(one, 'restartPolicy') === 'Always';
    if (isSidecar) sidecars += cores;
    most = Math.max(most, isSidecar ? sidecars : sidecars + cores);
  }
  const running = listAt(spec, 'containers').reduce<number>((sum, one) => sum + requestOf(one), sidecars);
  const isOfPod = field(field(field(spec, 'resources'), 'requests'), 'cpu') !== undefined;
  return (isOfPod ? requestOf(spec) : Math.max(running, most)) + coresIn(field(spec, 'overhead'));
}

/** The API server takes a limit without a request for both. */
function requestOf(container: unknown): number {
  const resources = field(container, 'resources');
  const requests = field(resources, 'requests');
  return coresIn(field(requests, 'cpu') === undefined ? field(resources, 'limits') : requests);
}

export function aspectsOf(metadata: unknown, spec: unknown): PodAspects {
  const read = (metadata ?? {}) as Parameters<typeof replicaOf>[0];
  const [replicas, gang] = [replicaOf(read), gangOf(read, spec)];
  return { cores: coresOf(spec), ...(replicas && { replicaOf: replicas }), ...(gang && { gang }) };
}
