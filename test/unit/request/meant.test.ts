// What people write in the place of an amount, and the proposal of what was meant: half a GPU, percent with a sign, units
// in other letters, numbers without a unit. The API server writes 0.5 as "500m" and 8000 as "8k" before the webhook reads it.
import test from 'ava';
import { outcome, podWith, rules } from './pods.ts';

const OWN = { gpu: 'cotenant.io/gpu', memory: 'cotenant.io/gpu-memory', cores: 'cotenant.io/gpu-cores' };
const PART = 'write cotenant.io/gpu-memory, such as "4Gi", and cotenant.io/gpu-cores in percent for a part of a GPU';
const PERCENT = 'write 50 (100 is all compute of the GPU), or leave it out';
const WHOLE = 'write a whole number from 1 to 64, or leave cotenant.io/gpu out where the container needs no GPU';
const ofGpu = { memory: 'percent of the memory of each GPU', compute: 'percent of the compute of each GPU' };

/** Dialect -> name of the resource -> text -> what is right. */
const LIMITS: Record<string, Record<string, Record<string, string>>> = {
  cotenant: {
    [OWN.memory]: {
      '4096': 'write "4096Mi"',
      '4096m': 'write "4096Mi"',
      '8k': 'write "8000Mi"',
      '2.0': 'write "2Mi" or "2Gi"',
      '4gb': 'write "4Gi"',
      '4 GB': 'write "4Gi"',
      '4GiB': 'write "4Gi"',
      '4 Gi': 'write "4Gi"',
      '4096MB': 'write "4096Mi"',
      '500m': 'write "500Mi"',
      '50%': 'write an amount such as "4Gi" or "1536Mi"',
      '4000000001': 'write "3814Mi" or "3815Mi"',
    },
    [OWN.gpu]: {
      '0.5': PART,
      '500m': PART,
      '50%': PART,
      '4Gi': 'write cotenant.io/gpu-memory: 4Gi',
      '4G': 'write cotenant.io/gpu-memory: 4Gi',
      '4gb': 'write cotenant.io/gpu-memory: 4Gi',
      '4k': WHOLE,
      '100Ki': WHOLE,
    },
    [OWN.cores]: { '0.5': PERCENT, '500m': PERCENT, '50%': PERCENT, '50 %': PERCENT },
  },
  hami: {
    'nvidia.com/gpumem': {
      '4096m': 'write 4096: MiB of each GPU',
      '4gb': 'write 4096: MiB of each GPU',
      '4 GB': 'write 4096: MiB of each GPU',
      '50%': 'write nvidia.com/gpumem-percentage: 50',
    },
    'nvidia.com/gpu': {
      '50%': 'write nvidia.com/gpumem-percentage: 50',
      '0.5': 'write nvidia.com/gpumem-percentage: 50',
      '500m': 'write nvidia.com/gpumem-percentage: 50',
      '4Gi': 'write nvidia.com/gpumem: 4096',
      '8GB': 'write nvidia.com/gpumem: 8192',
      '1.5': 'write a whole number from 1 to 64: GPUs',
      '4k': 'write a whole number from 1 to 64: GPUs',
      '-0.5': 'write a whole number from 1 to 64: GPUs',
    },
    'nvidia.com/gpumem-percentage': { '500m': `write 50: ${ofGpu.memory}`, '50%': `write 50: ${ofGpu.memory}` },
    'nvidia.com/gpucores': { '0.25': `write 25: ${ofGpu.compute}`, '25%': `write 25: ${ofGpu.compute}` },
  },
  'vgpu-manager': { 'nvidia.com/vgpu-number': { '0.25': 'write nvidia.com/vgpu-memory, MiB, for a part of a GPU' } },
  nvidia: {
    'nvidia.com/gpu': { '0.5': PART, '500m': PART, '4Gi': 'write cotenant.io/gpu-memory: 4Gi' },
    'nvidia.com/gpu.shared': { '0.5': 'write a whole number from 1 to 64' },
  },
  ack: {
    'aliyun.com/gpu': { '0.5': 'write aliyun.com/gpu-mem for a part of a GPU' },
    'aliyun.com/gpu-mem': { '5500m': 'write 5 or 6', '500m': 'write 1', '10GB': 'write 10', '8 Gi': 'write 8' },
  },
  metagpu: { 'cnvrg.io/metagpu': { '500m': 'write 50: 100 is one GPU', '30%': 'write 30: 100 is one GPU' } },
  tke: { 'tencent.com/vcuda-core': { '300m': 'write 30: 100 is one GPU', '30%': 'write 30: 100 is one GPU' } },
  koordinator: {
    'koordinator.sh/gpu': { '500m': 'write 50: percent, 100 is one GPU', '50%': 'write 50: percent, 100 is one GPU' },
    'koordinator.sh/gpu-memory': {
      '4096': 'write "4096Mi"',
      '4096m': 'write "4096Mi"',
      '8k': 'write "8000Mi"',
      '4gb': 'write "4Gi"',
      '512Ki': 'write at least "1Mi"',
    },
  },
};

const NAMED = 'nvidia.com/container.main.gpu-memory.request';
const KUBESHARE = { 'sharedgpu/gpu_request': '0.5', 'sharedgpu/gpu_limit': '1.0' };
/** Key of an annotation of KAI, or of a label of KubeShare -> text -> what is right. */
const KEYS: Record<string, Record<string, string>> = {
  'gpu-fraction': {
    '50%': 'write "0.5"',
    '12.5 %': 'write "0.125"',
    '0,5': 'write "0.5"',
    '50': 'write "0.5"',
    '1.5': 'write a fraction of a GPU such as "0.5", up to 1',
    '0.00001': 'write a fraction of a GPU such as "0.5", up to 1',
    '"0.5"': 'write "0.5"',
    '': 'write a fraction of a GPU such as "0.5", up to 1',
  },
  'gpu-memory': {
    '4gb': 'write 4096: MiB',
    '4096m': 'write 4096: MiB',
    '0.5': 'write "0.5" as gpu-fraction',
    '50%': 'write "0.5" as gpu-fraction',
  },
  [NAMED]: { '8192': 'write "8192Mi"', '8gb': 'write "8Gi"', '50%': 'write an amount such as "8Gi"' },
  'sharedgpu/gpu_request': { '50%': 'write "0.5"', '0,5': 'write "0.5"' },
  'sharedgpu/gpu_mem': { '4096': 'write "4096Mi"', '4gb': 'write "4Gi"' },
};

const proposed = (found: unknown): string => {
  const [problem] = Array.isArray(found) ? found : [];
  return typeof problem === 'string' ? problem.slice(problem.indexOf('; ') + 2) : `not refused: ${String(found)}`;
};

for (const [dialect, resources] of Object.entries(LIMITS)) {
  test(`${dialect}: a refusal of a resource proposes what was meant`, (t) => {
    const settings = { dialects: dialect === 'cotenant' ? [] : [dialect] };
    for (const [resource, texts] of Object.entries(resources)) {
      for (const [text, right] of Object.entries(texts))
        t.is(proposed(outcome(podWith({ [resource]: text }, {}), rules(settings))), right, `${resource}: ${text}`);
    }
  });
}

test('kai and kubeshare: a refusal of a key of the pod proposes what was meant', (t) => {
  for (const [key, texts] of Object.entries(KEYS)) {
    for (const [text, right] of Object.entries(texts)) {
      const more = key.startsWith('sharedgpu/')
        ? { labels: { ...KUBESHARE, [key]: text } }
        : { annotations: { [key]: text } };
      t.is(proposed(outcome(podWith({}, more), rules({ dialects: ['kai', 'kubeshare'] }))), right, `${key}: ${text}`);
    }
  }
});

const AMOUNT_SLIPS: Record<string, string> = {
  '': 'is empty',
  ' ': 'is empty',
  '"50"': 'write 50',
  "'50'": 'write 50',
  ' 50 ': 'write 50',
  '50,': 'write 50',
};
/** A resource of each dialect that counts, with what makes it complete. */
const COUNTED: Record<string, object> = {
  [OWN.cores]: { [OWN.memory]: '1Gi' },
  'aliyun.com/gpu-mem': {},
  'cnvrg.io/metagpu': {},
  'nvidia.com/gpumem': {},
  'nvidia.com/gpucores': {},
  'volcano.sh/vgpu-memory': { 'volcano.sh/vgpu-number': 1 },
  'koordinator.sh/gpu': {},
  'tencent.com/vcuda-memory': { 'tencent.com/vcuda-core': 30 },
  'volcano.sh/gpu-mem.128Mi': {},
  'vke.volcengine.com/mgpu-core': { 'vke.volcengine.com/mgpu-memory': 3000 },
};
test('an amount that is empty, or has quotes or a comma around it, is refused so', (t) => {
  const known = ['ack', 'metagpu', 'hami', 'volcano', 'tke', 'koordinator', 'huawei', 'volcengine'];
  for (const [resource, beside] of Object.entries(COUNTED)) {
    for (const [text, said] of Object.entries(AMOUNT_SLIPS)) {
      const [problem] = outcome(podWith({ ...beside, [resource]: text }, {}), rules({ dialects: known })) as string[];
      t.true(problem?.includes(`"] ${said}`) || problem?.includes(` ${said}`), `${resource}: ${text} -> ${problem}`);
    }
  }
});

/** Key of an annotation of ours -> text -> what is wrong, and what is right. */
const ANNOTATIONS: Record<string, Record<string, string>> = {
  'gpu-model': {
    '': '"" is empty; write the model of a GPU, such as "NVIDIA H200,Tesla T4", or leave it out',
    ',': '"," is empty; write the model of a GPU, such as "NVIDIA H200,Tesla T4", or leave it out',
    'NVIDIA L4,': '"NVIDIA L4," has an empty name; write "NVIDIA L4"',
    '"NVIDIA L4"': '"\\"NVIDIA L4\\"" is not the model of a GPU; write "NVIDIA L4"',
    '50%': '"50%" is not the model of a GPU; write names with commas, such as "NVIDIA H200,Tesla T4"',
    'L4;T4': '"L4;T4" is not the model of a GPU; write names with commas, such as "NVIDIA H200,Tesla T4"',
  },
  'gpu-uuid': {
    '': '"" is empty; write the UUID of a GPU, such as "GPU-8f3c0d52-...", or leave it out',
    'GPU-1,': '"GPU-1," has an empty name; write "GPU-1"',
    'gpu-1': '"gpu-1" is not the UUID of a GPU; write "GPU-1"',
    '0': '"0" is not the UUID of a GPU; write names with commas, such as "GPU-8f3c0d52-..."',
    'GPU-1,0':
      '"GPU-1,0" has a name that is not the UUID of a GPU; write names with commas, such as "GPU-8f3c0d52-..."',
  },
  'gpu-cores-limit': {
    '': '"" is empty; write percent over all its GPUs, such as "80", or container=percent with commas',
    '50%': '"50%" is not a percentage; write "50"',
    '0,5': '"0,5" is not a percentage; write "50"',
    'main=50%': '"main=50%" is not a percentage; write "main=50"',
    'main=50,': '"main=50," has an empty entry; write "main=50"',
    '"50"': '"\\"50\\"" is not a percentage; write "50"',
  },
  'compute-weight': { '': '"" is empty; write a whole number from 1 to 100' },
  placement: { '': '"" is empty; write one of binpack, spread, fragmentation, topology' },
  template: {
    '': '"" is empty; write one of small, or container=template with commas',
    'small,': '"small," has an empty entry; write "small"',
    'Small,': '"Small," has an empty entry; write one of small, or container=template with commas',
  },
};
test('an annotation with a slip is answered with where it is and what is right', (t) => {
  const allowed = rules({ allowGpuUuid: true, mostComputeWeight: 100, templates: { small: { gpuMemory: '1Gi' } } });
  for (const [name, texts] of Object.entries(ANNOTATIONS)) {
    const key = `cotenant.io/${name}`;
    const limits = name === 'template' ? {} : { [OWN.memory]: '1Gi', [OWN.cores]: '10' };
    for (const [text, said] of Object.entries(texts)) {
      const read = (value: string) => outcome(podWith(limits, { annotations: { [key]: value } }), allowed);
      t.deepEqual(read(text), [`metadata.annotations["${key}"]: ${said}`]);
      const [, meant] = /; write "([^"]+)"$/.exec(said) ?? [];
      if (meant !== undefined) t.true(Array.isArray(read(meant)) && typeof (read(meant) as unknown[])[0] !== 'string');
    }
  }
});

test('a limit is proposed that is not below what is reserved', (t) => {
  const over = rules({ dialects: ['kai', 'kubeshare'], allowMemoryOvercommit: true });
  const texts = ['10', '10%', '60%', '0,6', '"0.7"', '20', '0', '-1', '', '1.5', '100', '1Gi', '8GB', '3000m', '5e3'];
  const cases: [key: string, where: 'annotations' | 'labels', beside: object][] = [
    ['gpu-fraction-limit', 'annotations', { 'gpu-fraction': '0.5' }],
    ['gpu-fraction.limit', 'annotations', { 'gpu-fraction': '0.5' }],
    ['gpu-fraction-limit', 'annotations', { 'gpu-fraction': '1' }],
    ['gpu-memory-limit', 'annotations', { 'gpu-memory': '2000' }],
    [NAMED.replace('request', 'limit'), 'annotations', { [NAMED]: '4Gi' }],
    ['sharedgpu/gpu_limit', 'labels', { ...KUBESHARE, 'sharedgpu/gpu_request': '0.55' }],
  ];
  for (const [key, where, beside] of cases) {
    for (const text of texts) {
      const read = (value: string) => outcome(podWith({}, { [where]: { ...beside, [key]: value } }), over);
      const found = read(text);
      if (!Array.isArray(found) || typeof found[0] !== 'string') continue;
      const [, meant = '', other] =
        /; write (?:a whole number from )?"?([\d.]+[KMGT]?i?)"?(?: or "([^"]+)")?/.exec(found[0]) ?? [];
      for (const value of [meant, other].filter((one) => one !== undefined))
        t.true(typeof (read(value) as unknown[])[0] === 'object', `${key}: ${text} -> ${found[0]} -> ${read(value)}`);
    }
  }
  const said = (limit: string) =>
    outcome(podWith({}, { annotations: { 'gpu-fraction': '0.5', 'gpu-fraction-limit': limit } }), over);
  t.deepEqual(said('10'), [
    'metadata.annotations["gpu-fraction-limit"]: "10" is no fraction of a GPU; write "0.5" or more, up to 1',
  ]);
  t.is(proposed(said('60%')), 'write "0.6"');
});

test('percent of several GPUs is proposed as the total over them', (t) => {
  const right = (text: string) =>
    proposed(outcome(podWith({ [OWN.gpu]: 3, [OWN.memory]: '9Gi', [OWN.cores]: text }, {}), rules()));
  const total = 'write 150 for 50 of each GPU (300 is all compute of 3 GPUs), or leave it out';
  for (const text of ['50%', '500m', '0.5']) t.is(right(text), total, text);
});

test('an amount that a refusal proposes is taken in the place of what was refused', (t) => {
  const texts = ['0', '3', '101', '1k', '1500', '500m', '1.5', '4500m', '-1', '4G', '4gb', '4 Gi', '100Ki', '1048577'];
  const more = ['4000000001', '5T', '9E', '1e30', '50%', '0,5', '0.00001', 'half', ''];
  const amounts = [OWN.gpu, OWN.memory, OWN.cores, 'aliyun.com/gpu-mem', 'cnvrg.io/metagpu', 'koordinator.sh/gpu'];
  const others = ['koordinator.sh/gpu-memory', 'nvidia.com/gpumem', 'nvidia.com/gpumem-percentage'];
  const all = rules({ dialects: ['ack', 'metagpu', 'hami', 'tke', 'koordinator', 'huawei', 'volcengine', 'baidu'] });
  const ofThree = { labels: { 'volcano.sh/gpu-num': '3' } };
  const counts = { annotations: { 'vke.volcengine.com/container-multiple-gpu': '3' } };
  const cases: [resource: string, beside?: object, metadata?: object][] = [
    ...[...amounts, ...others].map((resource): [string] => [resource]),
    [OWN.memory, { [OWN.gpu]: 3 }],
    [OWN.cores, { [OWN.gpu]: 3 }],
    ['koordinator.sh/gpu-core', { 'koordinator.sh/gpu.shared': 3, 'koordinator.sh/gpu-memory-ratio': 150 }],
    ['koordinator.sh/gpu-memory-ratio', { 'koordinator.sh/gpu.shared': 3 }],
    ['koordinator.sh/gpu-memory', { 'koordinator.sh/gpu.shared': 3 }],
    ['tencent.com/vcuda-core', { 'tencent.com/vcuda-memory': 8 }],
    ['tencent.com/vcuda-memory', { 'tencent.com/vcuda-core': 30 }],
    ['tke.cloud.tencent.com/qgpu-core', { 'tke.cloud.tencent.com/qgpu-memory': 8 }],
    ['tke.cloud.tencent.com/qgpu-memory'],
    ['volcano.sh/gpu-mem.128Mi'],
    ['volcano.sh/gpu-mem.128Mi', {}, ofThree],
    ['volcano.sh/gpu-core.percentage', { 'volcano.sh/gpu-mem.128Mi': 48 }, ofThree],
    ['baidu.com/t4_16g_cgpu_memory', { 'baidu.com/t4_16g_cgpu': 1 }],
    ['baidu.com/t4_16g_cgpu_memory', { 'baidu.com/t4_16g_cgpu': 3 }],
    ['baidu.com/t4_16g_cgpu_memory_percent', { 'baidu.com/t4_16g_cgpu': 1 }],
    ['baidu.com/t4_16g_cgpu_core', { 'baidu.com/t4_16g_cgpu': 3, 'baidu.com/t4_16g_cgpu_memory': 6 }],
    ['vke.volcengine.com/mgpu-core', { 'vke.volcengine.com/mgpu-memory': 3000 }, counts],
    ['vke.volcengine.com/mgpu-memory', { 'vke.volcengine.com/mgpu-core': 30 }, counts],
  ];
  for (const [resource, beside = {}, metadata = {}] of cases) {
    for (const text of [...texts, ...more]) {
      const read = (amount: object) => outcome(podWith({ ...beside, ...amount }, metadata), all);
      const found = read({ [resource]: text });
      if (!Array.isArray(found) || typeof found[0] !== 'string') continue;
      const [, own, ...amounts] =
        /write (?:(\S+\/\S+): )?"?([\d.]+[KMGT]?i?)"?(?: or "?([\d.]+[KMGT]?i?))?/.exec(proposed(found)) ?? [];
      for (const amount of amounts.filter((one) => one !== undefined)) {
        const again = read({ [own ?? resource]: amount });
        t.true(
          Array.isArray(again) && typeof again[0] !== 'string',
          `${resource}: ${text}, of ${JSON.stringify(beside)} -> ${amount}: ${again}`,
        );
      }
    }
  }
});
