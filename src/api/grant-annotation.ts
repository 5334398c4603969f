// The annotation `cotenant.io/grant`: what a pod was granted, as canonical JSON. The scheduler's Binding writes it; the
// node's agent, the scheduler after a restart and the CLI read it.
import * as v from 'valibot';
import { err, type Result } from '../common/result.ts';
import { listOf, oneOf, parseVersionedJson, whole } from '../common/schema.ts';
import { type GpuGrant, gpuUuid } from './gpu.ts';
import {
  CONTAINER_KINDS,
  type ContainerKind,
  containerName,
  initIndex,
  MEMORY_ISOLATIONS,
  type MemoryIsolation,
  MOST_GPUS,
  MOST_MEMORY_BYTES,
} from './request.ts';

/** What one container was granted: `gpus` in the order of its request, never empty, all different. */
export type ContainerGrant = {
  readonly name: string;
  /** Init containers run before the others and share their GPUs with them (see demand.ts). */
  readonly kind: ContainerKind;
  /** As in the request. */
  readonly initIndex?: number;
  readonly memoryIsolation: MemoryIsolation;
  readonly gpus: readonly GpuGrant[];
};

/** What a pod was granted on the node that it was bound to. */
export type PodGrant = {
  /** Transitions of the scheduler's Lease at the time of the grant: separates grants of one leader from those of the
   * next. */
  readonly epoch: number;
  /** Containers with a share, by name; never empty. */
  readonly containers: readonly ContainerGrant[];
};

const VERSION = 1;

const gpuGrant = v.object({
  gpuUuid,
  memoryBytes: whole(1, MOST_MEMORY_BYTES),
  limitBytes: whole(1, MOST_MEMORY_BYTES),
  coresPercent: whole(0, 100),
});
const containerGrant = v.object({
  name: containerName,
  kind: oneOf(CONTAINER_KINDS),
  initIndex,
  memoryIsolation: oneOf(MEMORY_ISOLATIONS),
  gpus: v.pipe(
    listOf(gpuGrant, 1, MOST_GPUS),
    v.check((gpus) => isUnique(gpus.map((gpu) => gpu.gpuUuid)), 'a list of different GPUs'),
  ),
});
const podGrant = v.object({
  epoch: whole(0, Number.MAX_SAFE_INTEGER),
  containers: v.pipe(
    listOf(containerGrant, 1),
    v.check((list) => isUnique(list.map(({ name }) => name)), 'a list of different containers'),
  ),
});

const isUnique = (names: readonly string[]): boolean => new Set(names).size === names.length;

/** The canonical text: containers by name, fixed order of keys. */
export function formatPodGrant({ epoch, containers }: PodGrant): string {
  return JSON.stringify({
    version: VERSION,
    epoch,
    containers: containers
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .map(({ name, kind, initIndex, memoryIsolation, gpus }) => ({
        name,
        kind,
        initIndex,
        memoryIsolation,
        gpus: gpus.map(({ gpuUuid, memoryBytes, limitBytes, coresPercent }) => ({
          gpuUuid,
          memoryBytes,
          limitBytes,
          coresPercent,
        })),
      })),
  });
}

/** Reads the annotation; fails on every text that `formatPodGrant` does not write. */
export function parsePodGrant(text: string): Result<PodGrant> {
  const grant = parseVersionedJson(podGrant, VERSION, text);
  const isOurs = !grant.ok || formatPodGrant(grant.value) === text;
  return isOurs ? grant : err('it has unknown keys, or its keys in another order');
}
