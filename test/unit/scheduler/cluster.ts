// Allocations, a decider, requests and nodes for tests.
import type { PodRequest } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { type Allocations, createAllocations } from '../../../src/placement/allocations.ts';
import { createDecider, type Decider, type ParsedRequest } from '../../../src/scheduler/decisions/filter-and-score.ts';

export const uuid = (gpu: number): string => `GPU-00000000-0000-4000-8000-${String(gpu).padStart(12, '0')}`;

/** The annotation of a pod with one container that requests so many MiB. */
export function recordOf(mib: number, more: Partial<PodRequest> = {}): string {
  return formatPodRequest({
    priority: 'normal',
    gpuModels: [],
    gpuUuids: [],
    containers: [
      {
        name: 'main',
        kind: 'app',
        dialect: 'cotenant',
        asked: {},
        memoryIsolation: 'on',
        gpus: [{ memory: { kind: 'bytes', bytes: mib * MIB } }],
      },
    ],
    ...more,
  });
}

/** Nodes with one GPU each of so many MiB, the first one's being GPU 0. */
export function clusterOf(gpus: Readonly<Record<string, number>>): { allocations: Allocations; decider: Decider } {
  const allocations = createAllocations();
  for (const [index, [name, mib]] of Object.entries(gpus).entries()) {
    allocations.setNode(name, {
      mostTenantsPerGpu: 10,
      gpus: [{ gpuUuid: uuid(index), index: 0, model: 'x', usableBytes: mib * MIB, healthy: true }],
    });
  }
  return { allocations, decider: createDecider(allocations, 'binpack') };
}

export function parsedRequest(decider: Decider, mib: number, more: Partial<PodRequest> = {}): ParsedRequest {
  const read = decider.read(recordOf(mib, more));
  if (!read.ok) throw new Error(read.error);
  return read.value;
}
