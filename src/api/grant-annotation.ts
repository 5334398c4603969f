// The annotation `cotenant.io/grant`: what a pod got, as one JSON value that the scheduler's Binding writes and that the
// node's agent, the extender after a restart and the CLI read. Owns the text form; one value has one text.
import { decodeAll, field, isWithin, parseVersioned } from '../common/json.ts';
import type { GpuGrant } from './gpu.ts';
import { isContainerName } from './names.ts';
import { type ContainerKind, type MemoryIsolation, MOST_GPUS, MOST_MEMORY_BYTES } from './request.ts';

/** What one container got: `gpus` in the order of its request, never empty, all different. */
export type ContainerGrant = {
  readonly name: string;
  /** Init containers run before the others and share their GPUs with them (see need.ts). */
  readonly kind: ContainerKind;
  readonly memoryIsolation: MemoryIsolation;
  readonly gpus: readonly GpuGrant[];
};

/** What a pod got on the node that it was bound to. */
export type PodGrant = {
  /** Transitions of the scheduler's Lease when it was granted: tells grants of one leader from those of the next. */
  readonly epoch: number;
  /** Containers with a share, by name; never empty. */
  readonly containers: readonly ContainerGrant[];
};

const VERSION = 1;
/** `GPU-` and a UUID in lower case, as NVML spells it. */
export const GPU_UUID = /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** The canonical text: containers by name, fixed order of keys. */
export function formatPodGrant({ epoch, containers }: PodGrant): string {
  return JSON.stringify({
    version: VERSION,
    epoch,
    containers: containers
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .map(({ name, kind, memoryIsolation, gpus }) => ({
        name,
        kind,
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

/** The grant, or what is wrong with the text; everything that `formatPodGrant` does not write is wrong. */
export function parsePodGrant(text: string): PodGrant | { readonly wrong: string } {
  const parsed = parseVersioned(text, VERSION);
  if ('wrong' in parsed) return parsed;
  const [epoch, given] = [field(parsed.value, 'epoch'), field(parsed.value, 'containers')];
  if (!isWithin(epoch, 0, Number.MAX_SAFE_INTEGER)) return { wrong: 'its epoch is not a count' };
  if (!Array.isArray(given) || given.length === 0) return { wrong: 'it names no container' };
  const containers = decodeAll(given, decodeContainer);
  if ('badIndex' in containers) return { wrong: `containers[${containers.badIndex}] is not a container with its GPUs` };
  if (new Set(containers.map(({ name }) => name)).size < containers.length)
    return { wrong: 'it names a container twice' };
  const grant: PodGrant = { epoch, containers };
  return formatPodGrant(grant) === text ? grant : { wrong: 'it has keys that are not known, or another order' };
}

function decodeContainer(value: unknown): ContainerGrant | undefined {
  const [name, kind, memoryIsolation] = [field(value, 'name'), field(value, 'kind'), field(value, 'memoryIsolation')];
  const given = field(value, 'gpus');
  if (!isContainerName(name)) return undefined;
  if (kind !== 'init' && kind !== 'sidecar' && kind !== 'app') return undefined;
  if (memoryIsolation !== 'on' && memoryIsolation !== 'off') return undefined;
  if (!Array.isArray(given) || given.length === 0 || given.length > MOST_GPUS) return undefined;
  const gpus = decodeAll(given, decodeGpu);
  if ('badIndex' in gpus) return undefined;
  if (new Set(gpus.map(({ gpuUuid }) => gpuUuid)).size < gpus.length) return undefined;
  return { name, kind, memoryIsolation, gpus };
}

function decodeGpu(value: unknown): GpuGrant | undefined {
  const [gpuUuid, memoryBytes] = [field(value, 'gpuUuid'), field(value, 'memoryBytes')];
  const [limitBytes, coresPercent] = [field(value, 'limitBytes'), field(value, 'coresPercent')];
  if (typeof gpuUuid !== 'string' || !GPU_UUID.test(gpuUuid)) return undefined;
  if (!isWithin(memoryBytes, 1, MOST_MEMORY_BYTES) || !isWithin(limitBytes, 1, MOST_MEMORY_BYTES)) return undefined;
  return isWithin(coresPercent, 0, 100) ? { gpuUuid, memoryBytes, limitBytes, coresPercent } : undefined;
}
