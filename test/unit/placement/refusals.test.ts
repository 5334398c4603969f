// Why a node does not take a pod: the texts of refusals.
import test from 'ava';
import type { GpuShare, PodRequest } from '../../../src/api/request.ts';
import type { PlaceableNode } from '../../../src/placement/node.ts';
import { placePod } from '../../../src/placement/place-pod.ts';
import { container, gpu, nodeOf, pod, share } from './pods.ts';

test('a refusal is one sentence with the nearest miss, its GPU and its numbers', (t) => {
  const main = (...shares: GpuShare[]) => [container('m', 'app', ...shares)];
  const cases: [what: string, request: PodRequest, node: PlaceableNode, reason: string, temporary: boolean][] = [
    [
      'memory',
      pod(main(share(2048))),
      nodeOf(gpu('a', 512)),
      'GPU-a has 512 MiB of cotenant.io/gpu-memory free, but 2048 MiB are requested (it lacks 1536 MiB)',
      true,
    ],
    [
      'the nearest of several',
      pod(main(share(2048))),
      nodeOf(gpu('a', 512), gpu('b', 2000), gpu('c', 9000, { healthy: false })),
      'GPU-b has 2000 MiB of cotenant.io/gpu-memory free, but 2048 MiB are requested (it lacks 48 MiB), and 2 more GPUs do not fit either',
      true,
    ],
    [
      'compute',
      pod(main(share(1, 50))),
      nodeOf(gpu('a', 512, { grantedCoresPercent: 60 }), gpu('b', 0)),
      'GPU-b has 0 MiB of cotenant.io/gpu-memory free, but 1 MiB are requested (it lacks 1 MiB), and 1 more GPU does not fit either',
      true,
    ],
    [
      'memory and compute',
      pod(main(share(600, 50))),
      nodeOf(gpu('a', 512, { grantedCoresPercent: 60 })),
      'GPU-a has 512 MiB of cotenant.io/gpu-memory free, but 600 MiB are requested (it lacks 88 MiB, and 10 % of cotenant.io/gpu-cores)',
      true,
    ],
    [
      'compute alone',
      pod(main(share(1, 50))),
      nodeOf(gpu('a', 512, { grantedCoresPercent: 60 })),
      'GPU-a has 40 % of cotenant.io/gpu-cores free, but 50 % are requested (it lacks 10 %)',
      true,
    ],
    [
      'tenants',
      pod(main(share(1))),
      { ...nodeOf(gpu('a', 512, { tenants: 3 })), mostTenantsPerGpu: 3 },
      'GPU-a has 3 of at most 3 containers, and this would be one more',
      true,
    ],
    [
      'two more tenants',
      pod([...main(share(1)), container('n', 'app', share(1))]),
      { ...nodeOf(gpu('a', 512, { tenants: 2 })), mostTenantsPerGpu: 3 },
      'GPU-a has 2 of at most 3 containers, and these would be 2 more',
      true,
    ],
    [
      'more than any GPU has',
      pod(main(share(16_001))),
      nodeOf(gpu('a', 512)),
      'GPU-a has 16000 MiB of cotenant.io/gpu-memory, but 16001 MiB are requested (it lacks 1 MiB)',
      false,
    ],
    [
      'more compute than a GPU has',
      pod([...main(share(1, 60)), container('n', 'app', share(1, 60))]),
      nodeOf(gpu('a', 512)),
      'GPU-a has 100 % of cotenant.io/gpu-cores, but 120 % are requested (it lacks 20 %)',
      false,
    ],
    ['health', pod(main(share(1))), nodeOf(gpu('a', 512, { healthy: false })), 'GPU-a is not healthy', false],
    [
      'health, with its reason',
      pod(main(share(1))),
      nodeOf(gpu('a', 512, { healthy: false, fault: 'Xid 79' })),
      'GPU-a is not healthy: Xid 79',
      false,
    ],
    [
      'limits that are not enforced, which other pods do not change',
      pod(main(share(1))),
      nodeOf(gpu('a', 512, { unfenced: 'why' })),
      'limits are not enforced on GPU-a: why',
      false,
    ],
    [
      'a grant that cannot be read',
      pod(main(share(1))),
      nodeOf(gpu('a', 512, { blocked: 'the grant of team/x on it cannot be read' })),
      'GPU-a takes no new pods: the grant of team/x on it cannot be read',
      true,
    ],
    [
      'gpus',
      pod(main(share(1), share(1))),
      nodeOf(gpu('a', 512)),
      'one GPU can be used, but 2 are requested (cotenant.io/gpu)',
      false,
    ],
    [
      'one of two',
      pod(main(share(2000), share(2000))),
      nodeOf(gpu('a', 512), gpu('b', 9000)),
      'only 1 of 2 requested GPUs can be granted: GPU-a has 512 MiB of cotenant.io/gpu-memory free, but 2000 MiB are requested (it lacks 1488 MiB)',
      true,
    ],
    [
      'one of two, permanently',
      pod(main(share(2000), share(2000))),
      nodeOf(gpu('a', 512, { healthy: false }), gpu('b', 9000)),
      'only 1 of 2 requested GPUs can be granted: GPU-a is not healthy',
      false,
    ],
    [
      'model',
      pod(main(share(1)), { gpuModels: ['Tesla T4'] }),
      nodeOf(gpu('a', 512)),
      'no GPU is a Tesla T4; the node has NVIDIA L4',
      false,
    ],
    [
      'uuid',
      pod(main(share(1)), { gpuUuids: ['GPU-z'] }),
      nodeOf(gpu('a', 512)),
      'the node has none of the requested GPUs GPU-z; its GPUs are GPU-a',
      false,
    ],
    ['no GPU', pod(main(share(1))), nodeOf(), 'the agent reports no GPU (cotenant.io/gpu)', false],
  ];
  for (const [what, request, node, reason, temporary] of cases) {
    const found = placePod(request, node, 'binpack');
    if (found.ok) return t.fail(what);
    t.is(found.reason(), reason, what);
    t.is(found.temporary, temporary, what);
  }
});
