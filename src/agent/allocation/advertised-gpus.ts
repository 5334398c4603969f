// The GPUs that a node advertises to the scheduler, with their health and the grants on them. Pure.

import type { GpuStanding } from '../../api/gpu.ts';
import type { GpusReading } from '../../kube/node-gpus.ts';
import { healthState, LOST_TEXT } from '../../policy/gpu-health.ts';
import type { FenceState } from '../../policy/isolation-check.ts';
import type { Grant } from '../grants/grant.ts';
import { heldBy } from '../grants/sums.ts';
import { isShareable, type SampledGpu, usableBytes } from '../sampling/sample.ts';
import type { NodeState } from '../usage/node-usage.ts';

type Offer = {
  /** The sample is too old to advertise any GPU as healthy. */
  readonly isStale: boolean;
  readonly mostTenantsPerGpu: number;
  readonly grants: readonly Grant[];
  readonly standingOf: (gpuUuid: string) => GpuStanding;
  /** Undefined: the canary is off. */
  readonly fencesOf: ((gpuUuids: readonly string[]) => FenceState | undefined) | undefined;
};

export function advertisedGpus({ sample, devices }: NodeState, offer: Offer): GpusReading {
  const shareable = devices.flatMap(({ gpu }) => (isShareable(gpu) ? [gpu] : []));
  const isHealthy = (gpu: SampledGpu) => gpu.healthy && offer.standingOf(gpu.uuid).fault === undefined;
  const isOurs = (gpu: SampledGpu) => isHealthy(gpu) && offer.standingOf(gpu.uuid).mode !== 'none';
  const ours = shareable.flatMap((gpu) => (isOurs(gpu) ? [gpu.uuid] : []));
  const complete = sample.problem === undefined && devices.length > 0;
  const health = healthState(
    devices.map(({ gpu: { uuid, healthy: had } }) => ({
      gpuUuid: uuid,
      why: offer.standingOf(uuid).fault ?? (had ? undefined : LOST_TEXT),
    })),
  );
  const near = shareable.flatMap(({ numaNodes = [] }) => numaNodes);
  const isNumaKnown = near.length > 0 && shareable.every(({ numaNodes }) => numaNodes !== undefined);
  return {
    mostTenantsPerGpu: offer.mostTenantsPerGpu,
    gpus: shareable.map((gpu) => ({
      ...offer.standingOf(gpu.uuid),
      gpuUuid: gpu.uuid,
      index: gpu.index,
      model: gpu.name,
      usableBytes: usableBytes(gpu),
      ...(gpu.links && { links: gpu.links }),
      healthy: isHealthy(gpu) && !offer.isStale,
    })),
    ...(offer.fencesOf && { fences: offer.fencesOf(ours) }),
    ...(complete && !offer.isStale && health && { health }),
    ...(isNumaKnown && { numaNodes: [...new Set(near)].sort((a, b) => a - b) }),
    complete,
    grants: heldBy(offer.grants),
  };
}
