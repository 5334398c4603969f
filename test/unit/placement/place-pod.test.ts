// Which GPUs of a node a pod gets, compared with a search through every possible assignment, and the texts of refusals.
import test from 'ava';
import fc from 'fast-check';
import type { PlaceableGpu } from '../../../src/api/gpu.ts';
import type { ContainerGrant } from '../../../src/api/grant-annotation.ts';
import type { ContainerKind, ContainerRequest, GpuShare, MemoryAmount, PodRequest } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import type { PlaceableNode } from '../../../src/placement/node.ts';
import { placePod } from '../../../src/placement/place-pod.ts';

const gpu = (name: string, leftMib: number, more: Partial<PlaceableGpu> = {}): PlaceableGpu => ({
  gpuUuid: `GPU-${name}`,
  model: 'NVIDIA L4',
  usableBytes: 16_000 * MIB,
  healthy: true,
  grantedBytes: (16_000 - leftMib) * MIB,
  grantedCoresPercent: 0,
  tenants: 1,
  ...more,
});
const bytes = (mib: number): MemoryAmount => ({ kind: 'bytes', bytes: mib * MIB });
const share = (mib: number, coresPercent?: number): GpuShare => ({
  memory: bytes(mib),
  ...(coresPercent === undefined ? {} : { coresPercent }),
});
const container = (name: string, kind: ContainerKind, ...gpus: GpuShare[]): ContainerRequest => ({
  name,
  kind,
  gpus,
  dialect: 'cotenant',
  memoryIsolation: 'on',
  asked: {},
});
const pod = (containers: readonly ContainerRequest[], more: Partial<PodRequest> = {}): PodRequest => ({
  containers,
  priority: 'normal',
  gpuModels: [],
  gpuUuids: [],
  ...more,
});
const nodeOf = (...gpus: readonly PlaceableGpu[]): PlaceableNode => ({ mostTenantsPerGpu: 50, gpus });

/** `a:x,y b:z`: container and its GPUs; or why not. */
const placed = (request: PodRequest, node: PlaceableNode): string => {
  const found = placePod(request, node, 'binpack');
  const gpusOf = ({ name, gpus }: ContainerGrant) =>
    `${name}:${gpus.map(({ gpuUuid }) => gpuUuid.slice('GPU-'.length)).join(',')}`;
  return found.ok ? found.containers.map(gpusOf).join(' ') : found.reason();
};

test('containers go together or apart by placement; init containers reuse GPUs', (t) => {
  const node = nodeOf(gpu('a', 9000), gpu('b', 4000), gpu('c', 16_000, { tenants: 0 }));
  const cases: [what: string, containers: ContainerRequest[], binpack: string, spread: string][] = [
    ['one', [container('m', 'app', share(3000))], 'm:b', 'm:c'],
    [
      'two that fit together',
      [container('m', 'app', share(2000)), container('n', 'app', share(2000))],
      'm:b n:b',
      'm:c n:c',
    ],
    ['two that do not', [container('m', 'app', share(3000)), container('n', 'app', share(2000))], 'm:b n:a', 'm:c n:c'],
    ['several GPUs each', [container('m', 'app', share(4000), share(4000))], 'm:b,a', 'm:c,a'],
    [
      'an init container as large as the rest',
      [container('i', 'init', share(3000)), container('m', 'app', share(3000))],
      'i:b m:b',
      'i:c m:c',
    ],
    [
      'an init container that needs more',
      [container('i', 'init', share(8000)), container('m', 'app', share(3000))],
      'i:a m:b',
      'i:c m:c',
    ],
    [
      'a sidecar beside both',
      [container('i', 'init', share(3000)), container('m', 'app', share(3000)), container('s', 'sidecar', share(1001))],
      'i:b m:b s:a',
      'i:c m:c s:c',
    ],
  ];
  for (const [what, containers, binpack, spread] of cases) {
    t.is(placed(pod(containers), node), binpack, what);
    t.is(placed(pod(containers, { placement: 'spread' }), node), spread, `${what}, spread`);
    t.is(placed(pod(containers, { placement: 'fragmentation' }), node), binpack, `${what}, fragmentation`);
  }
});

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

test('a pod gets only the models and GPUs that it names', (t) => {
  const node = nodeOf(gpu('a', 9000), gpu('b', 9000, { model: 'Tesla T4' }), gpu('c', 9000, { model: 'Tesla T4' }));
  const main = [container('m', 'app', share(1000))];
  t.is(placed(pod(main, { gpuModels: ['tesla t4'] }), node), 'm:b');
  t.is(placed(pod(main, { gpuUuids: ['GPU-c', 'GPU-elsewhere'] }), node), 'm:c');
  t.is(
    placed(pod(main, { gpuModels: ['NVIDIA L4'], gpuUuids: ['GPU-c'] }), node),
    'the node has none of the requested GPUs GPU-c; its GPUs are GPU-a, GPU-b, GPU-c',
  );
});

// The oracle: counts every phase of a pod's life by itself, and tries every assignment.

type Taken = { mib: number; cores: number; tenants: number };

/** What is in use on a GPU while one init container runs, or the apps do: the largest of all phases, each by itself. */
function peak(containers: readonly { kind: ContainerKind; taken: Taken | undefined }[]): Taken {
  const during = (running: (kind: ContainerKind, index: number) => boolean): Taken =>
    containers
      .flatMap(({ kind, taken }, index) => (taken && running(kind, index) ? [taken] : []))
      .reduce((a, b) => ({ mib: a.mib + b.mib, cores: a.cores + b.cores, tenants: a.tenants + b.tenants }), {
        mib: 0,
        cores: 0,
        tenants: 0,
      });
  const phases = [during((kind) => kind !== 'init')];
  for (const [index, { kind }] of containers.entries()) {
    if (kind === 'init') phases.push(during((other, at) => other === 'sidecar' || at === index));
  }
  const most = (pick: (taken: Taken) => number) => Math.max(...phases.map(pick));
  return { mib: most(({ mib }) => mib), cores: most(({ cores }) => cores), tenants: most(({ tenants }) => tenants) };
}

/** GPUs of each container, as indexes. */
function holds(
  containers: readonly ContainerRequest[],
  gpus: readonly (readonly number[])[],
  node: PlaceableNode,
): boolean {
  return node.gpus.every((one, index) => {
    const taken = containers.map(({ kind, gpus: shares }, which) => {
      const at = gpus[which]?.indexOf(index) ?? -1;
      const asked = at < 0 ? undefined : shares[at];
      if (!asked) return { kind, taken: undefined };
      const { memory } = asked;
      const total = one.usableBytes / MIB;
      const mib =
        memory.kind === 'bytes'
          ? memory.bytes / MIB
          : memory.kind === 'percent'
            ? Math.floor(total / 100) * memory.percent
            : total;
      return { kind, taken: { mib, cores: asked.coresPercent ?? 0, tenants: 1 } };
    });
    const need = peak(taken);
    if (need.tenants === 0) return true;
    return (
      one.healthy &&
      one.grantedBytes / MIB + need.mib <= one.usableBytes / MIB &&
      (need.cores === 0 || one.grantedCoresPercent + need.cores <= 100) &&
      one.tenants + need.tenants <= node.mostTenantsPerGpu
    );
  });
}

function* choices(count: number, of: number, without: readonly number[] = []): Generator<readonly number[]> {
  if (count === without.length) yield without;
  else for (let gpu = 0; gpu < of; gpu += 1) if (!without.includes(gpu)) yield* choices(count, of, [...without, gpu]);
}

function possible(
  containers: readonly ContainerRequest[],
  node: PlaceableNode,
  chosen: readonly (readonly number[])[] = [],
): boolean {
  const next = containers[chosen.length];
  if (!next) return holds(containers, chosen, node);
  for (const gpus of choices(next.gpus.length, node.gpus.length)) {
    if (possible(containers, node, [...chosen, gpus])) return true;
  }
  return false;
}

const anyShare = fc.record({
  memory: fc.oneof(
    { weight: 4, arbitrary: fc.constantFrom(200, 300, 400, 700, 1000).map(bytes) },
    { weight: 1, arbitrary: fc.constant<MemoryAmount>({ kind: 'whole' }) },
    { weight: 1, arbitrary: fc.constantFrom(10, 50).map((percent): MemoryAmount => ({ kind: 'percent', percent })) },
  ),
  cores: fc.constantFrom(0, 0, 20, 50),
});
const anyContainer = (most: number) =>
  fc
    .record({
      kind: fc.constantFrom<ContainerKind>('app', 'app', 'init', 'sidecar'),
      shares: fc.array(anyShare, { minLength: 1, maxLength: most }),
    })
    .map(({ kind, shares }) =>
      container(
        'x',
        kind,
        ...shares.map(({ memory, cores }) => ({ memory, ...(cores > 0 && { coresPercent: cores }) })),
      ),
    );
const anyNode = fc
  .record({
    mostTenantsPerGpu: fc.constantFrom(3, 50),
    gpus: fc.array(
      fc.record({
        usable: fc.constantFrom(600, 1000, 1500),
        part: fc.constantFrom(0, 0, 0.3, 0.7, 1),
        sick: fc.nat(8),
        grantedCoresPercent: fc.constantFrom(0, 0, 50, 90),
        tenants: fc.nat(2),
      }),
      { minLength: 1, maxLength: 3 },
    ),
  })
  .map(
    ({ mostTenantsPerGpu, gpus }): PlaceableNode => ({
      mostTenantsPerGpu,
      gpus: gpus.map(({ usable, part, sick, grantedCoresPercent, tenants }, index) => ({
        gpuUuid: `GPU-${index}`,
        model: 'x',
        usableBytes: usable * MIB,
        healthy: sick > 0,
        grantedBytes: Math.floor(usable * part) * MIB,
        grantedCoresPercent,
        tenants,
      })),
    }),
  );
const placement = fc.constantFrom<'binpack' | 'spread'>('binpack', 'spread');
const indexes = (grants: readonly ContainerGrant[], containers: readonly ContainerRequest[]) =>
  containers.map(({ name }) =>
    (grants.find((grant) => grant.name === name)?.gpus ?? []).map(({ gpuUuid }) =>
      Number(gpuUuid.slice('GPU-'.length)),
    ),
  );

test('a pod with one container is placed if and only if some assignment fits', (t) => {
  t.notThrows(() =>
    fc.assert(
      fc.property(anyContainer(3), anyNode, placement, (one, node, chosen) => {
        const found = placePod(pod([one], { placement: chosen }), node, 'binpack');
        if (found.ok && !holds([one], indexes(found.containers, [one]), node)) throw new Error('overcommitted');
        if (found.ok !== possible([one], node)) throw new Error(found.ok ? 'placed' : found.reason());
      }),
      { numRuns: 2000 },
    ),
  );
});

test('several containers never overcommit a GPU, and few assignments are missed', (t) => {
  let [there, missed] = [0, 0];
  fc.assert(
    fc.property(fc.array(anyContainer(2), { minLength: 2, maxLength: 3 }), anyNode, placement, (some, node, chosen) => {
      const containers = some.map((one, index) => ({ ...one, name: `c${index}` }));
      const found = placePod(pod(containers, { placement: chosen }), node, 'binpack');
      if (found.ok && !holds(containers, indexes(found.containers, containers), node)) throw new Error('overcommitted');
      const exists = possible(containers, node);
      if (found.ok && !exists) throw new Error('placed');
      there += exists ? 1 : 0;
      missed += exists && !found.ok ? 1 : 0;
    }),
    { numRuns: 1500 },
  );
  t.true(there > 100, String(there));
  t.true(missed <= there / 50, `${missed} of ${there}`);
  t.log(`${missed} of ${there} missed`);
});

// Amounts after KEP-753's formula; the node has one GPU of 8 GiB.
test('an init container that ends before a sidecar starts may need the whole GPU', (t) => {
  const node = nodeOf(gpu('a', 8192, { usableBytes: 8192 * MIB, grantedBytes: 0, tenants: 0 }));
  const [app, side] = [container('app', 'app', share(2048)), container('side', 'sidecar', share(2048))];
  const inOrder = (...inits: ContainerRequest[]) =>
    placed(pod([...inits.map((one, initIndex) => ({ ...one, initIndex })), app]), node);
  const prep = (mib: number) => container('prep', 'init', share(mib));
  t.is(inOrder(prep(8192), side), 'app:a prep:a side:a');
  t.is(inOrder(side, prep(6144)), 'app:a prep:a side:a');
  t.regex(inOrder(side, prep(6145)), /8193 MiB are requested/);
  const whole = container('prep', 'init', { memory: { kind: 'whole' } });
  t.is(inOrder(whole, side), 'app:a prep:a side:a');
});

test('a node chooses its GPUs by its own placement, unless the pod has one', (t) => {
  const node = { ...nodeOf(gpu('a', 9000), gpu('b', 4000)), placement: 'spread' as const };
  const containers = [container('m', 'app', share(3000))];
  t.is(placed(pod(containers), { ...node, placement: 'binpack' }), 'm:b');
  t.is(placed(pod(containers), node), 'm:a');
  t.is(placed(pod(containers, { placement: 'binpack' }), node), 'm:b');
});

test('containers that belong on one GPU get one that takes all of them, or none', (t) => {
  const containers = [container('m', 'app', share(3000)), container('n', 'app', share(2000))];
  const together = (more: Partial<PodRequest> = {}) => pod(containers, { sameGpu: true, ...more });
  const node = nodeOf(gpu('a', 9000), gpu('b', 4000), gpu('c', 6000));
  t.is(placed(together(), node), 'm:c n:c');
  t.is(placed(together({ placement: 'spread' }), node), 'm:a n:a');
  t.is(placed(together({ gpuUuids: ['GPU-a', 'GPU-b'] }), node), 'm:a n:a');
  // Apart they would fit.
  const small = nodeOf(gpu('a', 4000), gpu('b', 3000));
  t.is(placed(pod(containers), small), 'm:b n:a');
  t.regex(placed(together(), small), /^GPU-a .*5000 MiB are requested/);
  t.is(placed(together(), nodeOf()), 'the agent reports no GPU (cotenant.io/gpu)');
});

test('pods on one GPU go where an exhaustive search finds a place', (t) => {
  t.notThrows(() =>
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 500, max: 9000 }), { minLength: 2, maxLength: 3 }),
        fc.array(fc.integer({ min: 0, max: 16_000 }), { minLength: 1, maxLength: 4 }),
        (sizes, left) => {
          const node = nodeOf(...left.map((mib, index) => gpu(String(index), mib)));
          const request = pod(
            sizes.map((mib, index) => container(`c${index}`, 'app', share(mib))),
            { sameGpu: true },
          );
          const found = placePod(request, node, 'binpack');
          const total = sizes.reduce((sum, mib) => sum + mib, 0);
          if (found.ok !== left.some((mib) => mib >= total)) throw new Error(`${sizes} on ${left}`);
          if (
            found.ok &&
            new Set(found.containers.flatMap(({ gpus }) => gpus.map(({ gpuUuid }) => gpuUuid))).size !== 1
          )
            throw new Error('on several GPUs');
        },
      ),
      { numRuns: 300 },
    ),
  );
});
