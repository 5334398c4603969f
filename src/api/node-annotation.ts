// The annotation `cotenant.io/gpus` of a Node: its GPUs as its agent sees them, for the extender to choose from and for
// people to look at. Owns the text form.

import type { GpuNeed } from '../api/gpu.ts';
import { decodeAll, field, isWithin, parseVersioned } from '../common/json.ts';
import { GPU_UUID } from './grant-annotation.ts';
import { MOST_GPUS, MOST_MEMORY_BYTES } from './request.ts';

export type NodeGpu = {
  readonly gpuUuid: string;
  /** The driver's order on that node, which can change over a reboot; for people only. */
  readonly index: number;
  readonly model: string;
  /** What the driver leaves to programs: the sum of all grants on the GPU is at most this. */
  readonly usableBytes: number;
  readonly healthy: boolean;
  /** Why it is not healthy, where it is no other reason than that the driver lost it. */
  readonly fault?: string;
  /** A limit on it would not hold, and why: it takes nobody new. Absent: as far as is known it holds. */
  readonly unfenced?: string;
  /** Given away by the agent beyond what pods' annotations say (others.ts); absent: nothing. */
  readonly others?: GpuNeed;
};

export type NodeGpus = {
  /** Containers with a share that one GPU takes. */
  readonly mostTenantsPerGpu: number;
  readonly gpus: readonly NodeGpu[];
};

const VERSION = 1;
const LONGEST_MODEL = 128;
const LONGEST_WHY = 256;
const MOST_SUM = Number.MAX_SAFE_INTEGER;

export function formatNodeGpus({ mostTenantsPerGpu, gpus }: NodeGpus): string {
  return JSON.stringify({
    version: VERSION,
    mostTenantsPerGpu,
    gpus: gpus.map(({ gpuUuid, index, model, usableBytes, healthy, fault, unfenced, others }) => ({
      gpuUuid,
      index,
      model: model.slice(0, LONGEST_MODEL),
      usableBytes,
      healthy,
      ...(fault !== undefined && { fault: fault.slice(0, LONGEST_WHY) }),
      ...(unfenced !== undefined && { unfenced: unfenced.slice(0, LONGEST_WHY) }),
      ...(others && { others }),
    })),
  });
}

/** The GPUs, or what is wrong with the text. Keys that a later version adds are passed over. */
export function parseNodeGpus(text: string): NodeGpus | { readonly wrong: string } {
  const parsed = parseVersioned(text, VERSION);
  if ('wrong' in parsed) return parsed;
  const [mostTenantsPerGpu, given] = [field(parsed.value, 'mostTenantsPerGpu'), field(parsed.value, 'gpus')];
  if (!isWithin(mostTenantsPerGpu, 1, 1000)) return { wrong: 'mostTenantsPerGpu is not a count' };
  if (!Array.isArray(given) || given.length > MOST_GPUS) return { wrong: 'GPUs is not a list of GPUs' };
  const gpus = decodeAll(given, decodeGpu);
  if ('badIndex' in gpus) return { wrong: `GPUs[${gpus.badIndex}] is not a GPU` };
  if (new Set(gpus.map(({ gpuUuid }) => gpuUuid)).size < gpus.length) return { wrong: 'it names a GPU twice' };
  return { mostTenantsPerGpu, gpus };
}

function decodeGpu(value: unknown): NodeGpu | undefined {
  const [gpuUuid, index, model] = [field(value, 'gpuUuid'), field(value, 'index'), field(value, 'model')];
  const [usableBytes, healthy] = [field(value, 'usableBytes'), field(value, 'healthy')];
  if (typeof gpuUuid !== 'string' || !GPU_UUID.test(gpuUuid)) return undefined;
  if (!isWithin(index, 0, 1000) || typeof model !== 'string' || typeof healthy !== 'boolean') return undefined;
  if (!isWithin(usableBytes, 0, MOST_MEMORY_BYTES)) return undefined;
  const [fault, unfenced] = [field(value, 'fault'), field(value, 'unfenced')];
  if (fault !== undefined && typeof fault !== 'string') return undefined;
  if (unfenced !== undefined && typeof unfenced !== 'string') return undefined;
  const gpu = {
    gpuUuid,
    index,
    model: model.slice(0, LONGEST_MODEL),
    usableBytes,
    healthy,
    ...(fault !== undefined && { fault: fault.slice(0, LONGEST_WHY) }),
    ...(unfenced !== undefined && { unfenced: unfenced.slice(0, LONGEST_WHY) }),
  };
  if (field(value, 'others') === undefined) return gpu;
  const others = decodeNeed(field(value, 'others'));
  return others && { ...gpu, others };
}

function decodeNeed(value: unknown): GpuNeed | undefined {
  const memoryBytes = field(value, 'memoryBytes');
  const [coresPercent, tenants] = [field(value, 'coresPercent'), field(value, 'tenants')];
  if (!isWithin(memoryBytes, 0, MOST_SUM) || !isWithin(coresPercent, 0, MOST_SUM) || !isWithin(tenants, 0, MOST_SUM))
    return undefined;
  return { memoryBytes, coresPercent, tenants };
}
