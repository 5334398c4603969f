// A ledger and a decider for tests, and requests and nodes in few words.

import type { PodRequest } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createLedger, type Ledger } from '../../../src/placement/allocations.ts';
import { createDecider, type Decider, type Shape } from '../../../src/scheduler/filter-and-score.ts';

export const uuid = (gpu: number): string => `GPU-00000000-0000-4000-8000-${String(gpu).padStart(12, '0')}`;

/** The annotation of a pod with one container that asks for so many MiB. */
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
export function clusterOf(gpus: Readonly<Record<string, number>>): { ledger: Ledger; decider: Decider } {
  const ledger = createLedger();
  for (const [index, [name, mib]] of Object.entries(gpus).entries()) {
    ledger.setNode(name, {
      mostTenantsPerGpu: 10,
      gpus: [{ gpuUuid: uuid(index), index: 0, model: 'x', usableBytes: mib * MIB, healthy: true }],
    });
  }
  return { ledger, decider: createDecider(ledger, 'binpack') };
}

export function shapeOf(decider: Decider, mib: number, more: Partial<PodRequest> = {}): Shape {
  const shape = decider.read(recordOf(mib, more));
  if ('wrong' in shape) throw new Error(shape.wrong);
  return shape;
}
