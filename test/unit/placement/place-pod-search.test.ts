// Where pods are placed, compared with a search through every possible assignment.
import test from 'ava';
import fc from 'fast-check';
import type { ContainerGrant } from '../../../src/api/grant-annotation.ts';
import type { ContainerKind, ContainerRequest, MemoryAmount } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import type { PlaceableNode } from '../../../src/placement/node.ts';
import { placePod } from '../../../src/placement/place-pod.ts';
import { bytes, container, gpu, nodeOf, pod, share } from './pods.ts';

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
