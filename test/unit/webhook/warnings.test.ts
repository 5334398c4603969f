// What owners of pods are warned of.
import test from 'ava';
import { configured, patched, sharePod } from './reviews.ts';

test('a pod that sees devices without a share is left alone, with a warning', (t) => {
  const env = (value: string) => ({
    spec: { containers: [{ name: 'a', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value }] }] },
  });
  t.like(patched(env('all')), {
    outcome: 'allowed',
    patch: [],
    warnings: ['a: NVIDIA_VISIBLE_DEVICES without a share: GPU use is reported as foreign on shared nodes'],
  });
  t.like(patched(env('void')), { outcome: 'allowed', patch: [], warnings: [] });
});

test('choices without a share are left alone, with a warning', (t) => {
  const pod = {
    metadata: { annotations: { 'cotenant.io/placement': 'spread' } },
    spec: { containers: [{ name: 'a' }] },
  };
  t.like(patched(pod), {
    patch: [],
    warnings: ['cotenant.io/placement: no effect, because no container asks for a share of a GPU'],
  });
});

test('a misspelled annotation of ours gets a warning', (t) => {
  const annotations = { 'cotenant.io/placment': 'spread', 'x.cotenant.io/y': '', 'cotenant.io.example.com/z': '' };
  t.deepEqual(patched(sharePod({}, {}, { annotations })).warnings, [
    'annotation cotenant.io/placment is not known to Cotenant and has no effect',
    'annotation x.cotenant.io/y is not known to Cotenant and has no effect',
  ]);
});

test('a choice that is written as a label gets a warning', (t) => {
  const labels = { 'cotenant.io/placement': 'spread', 'cotenant.io/component': 'x' };
  t.deepEqual(patched(sharePod({}, {}, { labels })).warnings, [
    'label cotenant.io/placement has no effect: write it as an annotation',
  ]);
});

test('every warning fits the 120 characters that kubectl shows', (t) => {
  const name = 'a'.repeat(63);
  const env = ['CUDA_MPS_PINNED_DEVICE_MEM_LIMIT', 'NVIDIA_VISIBLE_DEVICES', 'LD_AUDIT'].map((key) => ({
    name: key,
    value: '',
  }));
  const annotations = { 'cotenant.io/later': 'fixed' };
  const limits = { 'cotenant.io/gpu-cores': '7' };
  const resources = { limits, claims: [{ name: 'device' }] };
  const { warnings } = patched(sharePod({ name, env, resources }, {}, { annotations }));
  t.is(warnings.length, 6);
  for (const warning of warnings) t.true(warning.length <= 120, warning);
});

test('a claim of a container with a share stays, with a warning', (t) => {
  const claims = [{ name: 'device' }];
  const own = { limits: { 'cotenant.io/gpu': '1' } };
  const initContainers = [{ name: 'other', resources: { claims } }];
  const { pod, warnings } = patched(sharePod({ resources: { ...own, claims } }, { initContainers }));
  t.deepEqual(warnings, ['main: a GPU of resources.claims is hidden from CUDA here']);
  t.like(pod, { spec: { containers: [{ resources: { claims } }], initContainers: [{ resources: { claims } }] } });
});

test('a share that may not hold a CUDA context is admitted with a warning', (t) => {
  const warningsOf = (amount: string) =>
    patched(sharePod({ resources: { limits: { 'cotenant.io/gpu-memory': amount } } })).warnings;
  t.regex(warningsOf('100Mi').join(), /^main: 100 MiB of a GPU may not hold a CUDA context/);
  t.deepEqual(warningsOf('512Mi'), []);
});

// Kubernetes 1.34 and later, KEP-5004: an amount of a DeviceClass is a claim that the scheduler makes.
test('an amount of a device class beside a share stays, with a warning', (t) => {
  const name = 'deviceclass.resource.kubernetes.io/gpu.nvidia.com';
  const resources = { limits: { 'cotenant.io/gpu-memory': '1Gi', [name]: '1' } };
  const { pod, warnings } = patched(sharePod({ resources }));
  t.deepEqual(warnings, ['main: a GPU of deviceclass.resource.kubernetes.io/* is hidden from CUDA here']);
  t.like(pod, { spec: { containers: [{ resources: { limits: { [name]: '1' } } }] } });
  const none = { limits: { ...resources.limits, [name]: '0' } };
  t.deepEqual(patched(sharePod({ resources: none })).warnings, []);
});

// What these ask for: project-hami.io, "Configure" and the guides of dynamic MIG and NUMA; Volcano's "How to use vGPU";
// vgpu-manager, how_to_use_gpu_topology.md; koordinator.sh, "Device Scheduling"; the README of KubeShare 2.
test('a choice of another system without effect gets a warning', (t) => {
  const topology = 'not read; write cotenant.io/placement: topology, where it is allowed';
  const choices: [dialect: string, limits: object, metadata: object, warnings: string[]][] = [
    [
      'hami',
      { 'nvidia.com/gpu': '2' },
      { annotations: { 'nvidia.com/numa-bind': 'true' } },
      [`nvidia.com/numa-bind: ${topology}`],
    ],
    [
      'hami',
      { 'nvidia.com/gpu': '1' },
      { annotations: { 'nvidia.com/vgpu-mode': 'mig' } },
      ['nvidia.com/vgpu-mode: not read'],
    ],
    [
      'hami',
      { 'nvidia.com/gpu': '1' },
      { annotations: { 'nvidia.com/vgpu-mode': 'hami-core', 'nvidia.com/numa-bind': 'false' } },
      [],
    ],
    [
      'volcano',
      { 'volcano.sh/vgpu-number': '1' },
      { annotations: { 'volcano.sh/vgpu-mode': 'mig' } },
      ['volcano.sh/vgpu-mode: not read'],
    ],
    [
      'vgpu-manager',
      { 'nvidia.com/vgpu-number': '2' },
      { annotations: { 'nvidia.com/device-topology-mode': 'link' } },
      [`nvidia.com/device-topology-mode: ${topology}`],
    ],
    [
      'koordinator',
      { 'koordinator.sh/gpu': '200' },
      { annotations: { 'scheduling.koordinator.sh/device-allocate-hint': '{}' } },
      [`scheduling.koordinator.sh/device-allocate-hint: ${topology}`],
    ],
    [
      'kubeshare',
      {},
      {
        labels: {
          'sharedgpu/gpu_request': '1.0',
          'sharedgpu/gpu_limit': '1.0',
          'sharedgpu/priority': '0',
          'sharedgpu/gpu_model': 'Tesla-V100-PCIE-32GB',
        },
      },
      ['sharedgpu/gpu_model: not read; write cotenant.io/gpu-model, where it is allowed'],
    ],
  ];
  for (const [dialect, limits, metadata, warnings] of choices) {
    const pod = sharePod({ resources: { limits } }, {}, metadata);
    t.deepEqual(
      patched(pod, configured({ rules: { dialects: [dialect] } })).warnings,
      warnings,
      JSON.stringify(metadata),
    );
  }
});
