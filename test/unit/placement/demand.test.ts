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
