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

/** Of a pod's spec: its containers and sidecars together, or the init container that needs more. */
export function coresOf(spec: unknown): number {
  const inits = listAt(spec, 'initContainers');
  const isSidecar = (container: unknown) => textAt(container, 'restartPolicy') === 'Always';
  const cores = (containers: readonly unknown[]) =>
    containers.map((one) => coresIn(field(field(one, 'resources'), 'requests')));
  const running = [...listAt(spec, 'containers'), ...inits.filter(isSidecar)];
  const sum = cores(running).reduce((total, one) => total + one, 0);
  return Math.max(sum, ...cores(inits.filter((one) => !isSidecar(one))));
}

export function aspectsOf(metadata: unknown, spec: unknown): PodAspects {
  const read = (metadata ?? {}) as Parameters<typeof replicaOf>[0];
  const [replicas, gang] = [replicaOf(read), gangOf(read, spec)];
  return { cores: coresOf(spec), ...(replicas && { replicaOf: replicas }), ...(gang && { gang }) };
}
