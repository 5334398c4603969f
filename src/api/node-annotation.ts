// The annotation `cotenant.io/gpus` of a Node: its GPUs as the node's agent sees them, from which the scheduler
// chooses.
import * as v from 'valibot';
import { createPool } from '../common/digest.ts';
import type { Result } from '../common/result.ts';
import { listOf, parseVersionedJson, whole } from '../common/schema.ts';
import { GPU_MODES, gpuUuid } from './gpu.ts';
import { MOST_GPUS, MOST_MEMORY_BYTES } from './request.ts';

const VERSION = 1;
const LONGEST_MODEL = 128;
const LONGEST_REASON = 256;
export const MOST_LEVEL = 99;
const count = whole(0, Number.MAX_SAFE_INTEGER);

const clipped = (most: number) =>
  v.pipe(
    v.string(),
    v.transform((text) => text.slice(0, most)),
  );

/** Most nodes of a cluster are of a few kinds. */
const sharedLinks = createPool<readonly number[]>(1000);
/** Most GPUs of a cluster have one of a few. */
const sharedModel = createPool<string>(1000);

const nodeGpu = v.object({
  gpuUuid,
  /** The driver's order on that node, which can change with a reboot; for people, and for `links`. */
  index: whole(0, 1000),
  model: v.pipe(
    clipped(LONGEST_MODEL),
    v.transform((model) => sharedModel(model, model)),
  ),
  /** Memory that the driver leaves to programs: the sum of all grants on the GPU is at most this. */
  usableBytes: whole(0, MOST_MEMORY_BYTES),
  /**
   * The level of the path to each other GPU, by its index, the better the higher: 1 between NUMA nodes, 2 within one, 3 one
   * host bridge, 4 PCIe switches, 5 one PCIe switch, 6 one board, 6 + n: n NVLinks. 0: unknown, or the GPU itself.
   */
  links: v.exactOptional(
    v.pipe(
      listOf(whole(0, MOST_LEVEL), 0, MOST_GPUS),
      v.transform((levels) => sharedLinks(levels.join(), levels)),
    ),
  ),
  healthy: v.boolean(),
  /** Why it is not healthy, unless the driver lost it. */
  fault: v.exactOptional(clipped(LONGEST_REASON)),
  /** Why a limit on it would not hold, so that it accepts no new containers. Absent: as far as is known limits hold. */
  unfenced: v.exactOptional(clipped(LONGEST_REASON)),
  /** Absent: it is shared. */
  mode: v.exactOptional(v.picklist(GPU_MODES)),
  /** Granted by the agent beyond what pods' annotations say (unscheduled-demand.ts); absent: nothing. */
  others: v.exactOptional(v.object({ memoryBytes: count, coresPercent: count, tenants: count })),
});

const nodeGpus = v.object({
  /** Containers with a share that one GPU takes. */
  mostTenantsPerGpu: whole(1, 1000),
  gpus: v.pipe(
    listOf(nodeGpu, 0, MOST_GPUS),
    v.check((gpus) => new Set(gpus.map((gpu) => gpu.gpuUuid)).size === gpus.length, 'a list of different GPUs'),
  ),
});
export type NodeGpus = v.InferOutput<typeof nodeGpus>;

export function formatNodeGpus({ mostTenantsPerGpu, gpus }: NodeGpus): string {
  return JSON.stringify({
    version: VERSION,
    mostTenantsPerGpu,
    gpus: gpus.map(({ gpuUuid, index, model, usableBytes, links, healthy, fault, unfenced, mode, others }) => ({
      gpuUuid,
      index,
      model: model.slice(0, LONGEST_MODEL),
      usableBytes,
      links: links?.slice(0, MOST_GPUS),
      healthy,
      fault: fault?.slice(0, LONGEST_REASON),
      unfenced: unfenced?.slice(0, LONGEST_REASON),
      mode,
      others,
    })),
  });
}

/** Reads the annotation. Keys that a later version adds are ignored. */
export function parseNodeGpus(text: string): Result<NodeGpus> {
  return parseVersionedJson(nodeGpus, VERSION, text);
}
