import test from 'ava';
import { devicesOf } from '../../../../src/agent/kubelet/device-plugin/service.ts';

test('slots become devices of ids that say nothing of GPUs, the same ids at every time', (t) => {
  t.deepEqual(devicesOf({ healthy: 2, unhealthy: 1 }), [
    { ID: 's-000', health: 'Healthy' },
    { ID: 's-001', health: 'Healthy' },
    { ID: 's-002', health: 'Unhealthy' },
  ]);
  t.deepEqual(devicesOf({ healthy: 0, unhealthy: 0 }), []);
  const many = devicesOf({ healthy: 16_000, unhealthy: 0 }).map(({ ID }) => ID);
  t.is(new Set(many).size, 16_000);
  t.true(many.every((id) => id.length <= 63));
});

test('a slot is near the NUMA nodes of all GPUs, for any of them may be granted', (t) => {
  t.deepEqual(devicesOf({ healthy: 1, unhealthy: 0, numaNodes: [0, 2] }), [
    { ID: 's-000', health: 'Healthy', topology: { nodes: [{ ID: 0 }, { ID: 2 }] } },
  ]);
});
