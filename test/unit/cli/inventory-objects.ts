import { type ContainerGrant, formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import type { GpuShare, PodRequest } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import type { ClusterObjects } from '../../../src/cli/cluster/inventory.ts';
import type { Node, Pod } from '../../../src/cli/cluster/objects.ts';
import type { Use } from '../../../src/cli/cluster/use.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';

export const uuid = (index: number) => `GPU-51a0c07e-4a27-4551-8d21-6e100400000${index}`;
export const NOW = Date.parse('2026-11-21T22:10:00Z');

export const node = (name: string, gpus: readonly number[], status = 'True'): Node => ({
  metadata: {
    name,
    annotations: {
      [GPUS_ANNOTATION]: formatNodeGpus({
        mostTenantsPerGpu: 50,
        gpus: gpus.map((index) => ({
          gpuUuid: uuid(index),
          index,
          model: 'NVIDIA L4',
          usableBytes: 22_600 * MIB,
          healthy: index !== 1,
        })),
      }),
    },
  },
  status: { conditions: [{ type: 'Ready', status }] },
});

export const container = (name: string, mib: number, gpus: readonly number[], more: Partial<ContainerGrant> = {}) => ({
  name,
  kind: 'app' as const,
  memoryIsolation: 'on' as const,
  gpus: gpus.map((index) => ({
    gpuUuid: uuid(index),
    memoryBytes: mib * MIB,
    limitBytes: mib * MIB,
    coresPercent: 25,
  })),
  ...more,
});

export const pod = (
  name: string,
  nodeName: string,
  containers: readonly ContainerGrant[],
  more: Partial<Pod> = {},
): Pod => ({
  metadata: {
    name,
    namespace: 'team',
    annotations: { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 1, containers }) },
  },
  spec: { nodeName, containers: containers.map((one) => ({ name: one.name })) },
  status: {
    phase: 'Running',
    containerStatuses: containers.map((one) => ({ name: one.name, restartCount: 0, state: { running: {} } })),
  },
  ...more,
});

export const request = (gpus: readonly GpuShare[], more: Partial<PodRequest> = {}): PodRequest => ({
  priority: 'normal',
  gpuModels: [],
  gpuUuids: [],
  containers: [{ name: 'main', kind: 'app', dialect: 'cotenant', asked: {}, memoryIsolation: 'on', gpus }],
  ...more,
});

const waiting: Pod = {
  metadata: {
    name: 'later',
    namespace: 'other',
    creationTimestamp: '2026-11-21T22:05:00Z',
    annotations: {
      [REQUEST_ANNOTATION]: formatPodRequest(
        request([{ memory: { kind: 'bytes', bytes: 30 * GIB }, coresPercent: 50 }]),
      ),
    },
  },
  spec: { containers: [{ name: 'main' }] },
  status: {
    phase: 'Pending',
    conditions: [{ type: 'PodScheduled', status: 'False', message: '0/2 nodes are available: no GPU has 30720 MiB.' }],
  },
};

export const usesOf = (train: number): Use => ({
  known: true,
  mode: 'enforce',
  gpus: new Map([[uuid(0), 5312 * MIB]]),
  containers: [
    {
      ...{ namespace: 'team', pod: 'train', container: 'main', gpuUuid: uuid(0), usedBytes: train },
      ...{ fence: 'interposer', enforcement: { mode: 'report', by: 'administrator' } },
    },
  ],
  foreign: [{ namespace: 'team', pod: 'sneaky', container: 'main', gpuUuid: uuid(0), usedBytes: 300 * MIB }],
  ofGonePods: [],
});

export const objects = (more: Partial<ClusterObjects> = {}): ClusterObjects => ({
  nodes: [node('node-10', [2]), node('node-2', [0, 1]), { metadata: { name: 'without-gpus' } }],
  pods: [
    pod('train', 'node-2', [
      container('main', 4096, [0]),
      container('warm', 6144, [0], { kind: 'init' }),
      container('log', 512, [0], { kind: 'sidecar' }),
    ]),
    pod('two', 'node-2', [container('main', 1024, [0, 1])]),
    pod('done', 'node-2', [container('main', 8192, [0])], { status: { phase: 'Succeeded' } }),
    waiting,
  ],
  use: new Map([['node-2', usesOf(3320 * MIB)]]),
  notes: [],
  ...more,
});
