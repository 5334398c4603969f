// What a pod demands of each GPU at the same time.
import test from 'ava';
import type { ContainerGrant } from '../../../src/api/grant-annotation.ts';
import { demandOf } from '../../../src/placement/demand.ts';

const uuid = (number: number) => `GPU-00000000-0000-4000-8000-${String(number).padStart(12, '0')}`;
const oneGpu = { gpuUuid: uuid(1), memoryBytes: 100, limitBytes: 100, coresPercent: 0 };

test('a pod demands the larger of its biggest init container and the rest', (t) => {
  const of = (kind: ContainerGrant['kind'], name: string, ...amounts: readonly (readonly [number, number])[]) => ({
    name,
    kind,
    memoryIsolation: 'on' as const,
    gpus: amounts.map(([on, size]) => ({ ...oneGpu, gpuUuid: uuid(on), memoryBytes: size, coresPercent: size / 10 })),
  });
  const demand = demandOf([
    of('init', 'a', [1, 500], [2, 100]),
    of('init', 'b', [1, 300]),
    of('sidecar', 'c', [1, 50]),
    of('app', 'd', [1, 200], [2, 400]),
    of('app', 'e', [1, 250]),
  ]);
  t.deepEqual(demand.get(uuid(1)), { memoryBytes: 550, coresPercent: 55, tenants: 3 });
  t.deepEqual(demand.get(uuid(2)), { memoryBytes: 400, coresPercent: 40, tenants: 1 });
  t.is(demand.size, 2);
});

// KEP-753 (Sidecar Containers), "Resources calculation for scheduling and pod admission": an init container needs
// itself and the restartable init containers before it; the pod needs the most of these, or all restartable ones and
// its containers.
test('an init container is counted beside the sidecars that start before it', (t) => {
  const of = (kind: ContainerGrant['kind'], memoryBytes: number, initIndex?: number) => ({
    kind,
    ...(initIndex !== undefined && { initIndex }),
    gpus: [{ ...oneGpu, memoryBytes }],
  });
  const cases: [containers: ReturnType<typeof of>[], bytes: number, tenants: number][] = [
    [[of('init', 8, 0), of('sidecar', 2, 1), of('app', 2)], 8, 2],
    [[of('sidecar', 2, 0), of('init', 6, 1), of('app', 2)], 8, 2],
    [[of('sidecar', 2, 0), of('init', 6, 1), of('sidecar', 3, 2), of('init', 4, 3), of('app', 1)], 9, 3],
    [[of('sidecar', 5, 1), of('init', 6, 0), of('sidecar', 1, 2), of('app', 1)], 7, 3],
    // Grants from before the order was recorded: beside all sidecars.
    [[of('init', 8), of('sidecar', 2), of('app', 2)], 10, 2],
  ];
  for (const [containers, memoryBytes, tenants] of cases)
    t.like(demandOf(containers).get(uuid(1)), { memoryBytes, tenants }, JSON.stringify(containers));
});
