// Which containers have devices of other plugins, as the kubelet lists them.
import test from 'ava';
import { assignedOf, type PodResources } from '../../../../src/agent/attribution/other-allocations.ts';

const ONE = 'GPU-00000000-1111-4222-8333-444444444444';

const TWO = 'GPU-aaaaaaaa-1111-4222-8333-444444444444';

const GPUS = [
  { uuid: ONE, index: 0, minor: 0 },
  { uuid: TWO, index: 1, minor: 12 },
];

const MIG = 'MIG-bbbbbbbb-1111-4222-8333-444444444444';

const pod = (name: string, ...ids: readonly string[]): PodResources => ({
  name,
  namespace: 'team',
  containers: [
    { name: 'main', devices: [{ resource_name: 'nvidia.com/gpu', device_ids: ids }], dynamic_resources: [] },
    { name: 'side', devices: [], dynamic_resources: [] },
  ],
});

test('each container counts once per GPU; ended pods and other devices do not count', (t) => {
  const pods = [
    pod('two-replicas', `${ONE}::0`, `${ONE}::1`),
    pod('both', ONE, TWO),
    pod('over', ONE),
    pod('nic', 'mlx5_0'),
  ];
  const { list, unknown } = assignedOf([...pods, pod('mig', MIG)], GPUS, (_, name) => name === 'over');
  t.deepEqual(
    list.map((one) => [one.pod, one.container, one.mode, one.gpuUuid]),
    [
      ['two-replicas', 'main', 'shared', ONE],
      ['both', 'main', 'exclusive', ONE],
      ['both', 'main', 'exclusive', TWO],
      ['mig', 'main', 'mig', undefined],
    ],
  );
  t.is(unknown, 1);
});
