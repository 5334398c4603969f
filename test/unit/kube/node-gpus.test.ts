// The GPUs that a Node advertises, from the agent's reading, what was advertised before, and the grants.
import test from 'ava';
import type { GpuDemand } from '../../../src/api/gpu.ts';
import { type ContainerGrant, formatPodGrant } from '../../../src/api/grant-annotation.ts';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import { type GpusReading, gpusToAdvertise, type HolderState, heldSlots } from '../../../src/kube/node-gpus.ts';

const uuid = (number: number) => `GPU-00000000-0000-4000-8000-${String(number).padStart(12, '0')}`;
const one = { name: 'main', kind: 'app', memoryIsolation: 'on' } as const;
const oneGpu = { gpuUuid: uuid(1), memoryBytes: 100, limitBytes: 100, coresPercent: 0 };

const gpuOf = (digit: number, healthy = true) => ({
  gpuUuid: `GPU-00000000-0000-4000-8000-00000000000${digit}`,
  index: digit,
  model: 'NVIDIA L4',
  usableBytes: 1000 + digit,
  healthy,
});
const known: NodeGpus = { mostTenantsPerGpu: 10, gpus: [gpuOf(0), gpuOf(1), gpuOf(2)] };
const grantOf = (
  memoryBytes: number,
  digits: readonly number[],
  podUid?: string,
  kind: ContainerGrant['kind'] = 'app',
) => {
  const gpus = digits.map((digit) => ({ ...oneGpu, gpuUuid: gpuOf(digit).gpuUuid, memoryBytes, coresPercent: 20 }));
  return { ...(podUid !== undefined && { podUid }), containers: [{ ...one, kind, gpus }] };
};
const advertised = (
  reading: Omit<GpusReading, 'mostTenantsPerGpu'>,
  shown?: NodeGpus,
  texts: Record<string, string> = {},
) => gpusToAdvertise({ mostTenantsPerGpu: 20, ...reading }, shown, ({ podUid }) => stateOf(texts[podUid])).gpus;
const stateOf = (grantText: string | undefined): HolderState => {
  if (grantText === 'gone') return { kind: 'gone' };
  return grantText === undefined ? { kind: 'unknown' } : { kind: 'present', grantText };
};

test('a missing GPU stays, not healthy, while pods hold grants on it', (t) => {
  const reading = { gpus: [gpuOf(1)], complete: true, grants: [grantOf(1, [1, 2], 'p')] };
  t.deepEqual(advertised(reading, known), [gpuOf(1), gpuOf(2, false)]);
  t.deepEqual(advertised({ ...reading, grants: [] }, known), [gpuOf(1)]);
  t.deepEqual(advertised(reading), [gpuOf(1)]);
  const all = gpusToAdvertise({ mostTenantsPerGpu: 20, ...reading }, known, () => ({ kind: 'unknown' }));
  t.is(all.mostTenantsPerGpu, 20);
});

test('a missing GPU is linked to none: its index may be that of another one now', (t) => {
  const linked = { ...known, gpus: known.gpus.map((gpu) => ({ ...gpu, links: [0, 5, 5] })) };
  t.deepEqual(advertised({ gpus: [], complete: false, grants: [] }, linked)[1], gpuOf(1, false));
});

test('while the driver does not answer all GPUs stay, and none is healthy', (t) => {
  const reading = { gpus: [], complete: false, grants: [] };
  t.deepEqual(advertised(reading, known), [gpuOf(0, false), gpuOf(1, false), gpuOf(2, false)]);
});

test('a lost GPU, which reports no memory, keeps the amount that it had', (t) => {
  const lost = { ...gpuOf(1, false), usableBytes: 0 };
  const reading = { gpus: [gpuOf(0), lost], complete: true, grants: [] };
  t.deepEqual(advertised(reading, known), [gpuOf(0), gpuOf(1, false)]);
  t.deepEqual(advertised(reading), [gpuOf(0), lost]);
});

const annotated = (memoryBytes: number) =>
  formatPodGrant({
    epoch: 1,
    containers: [{ ...one, gpus: [{ ...oneGpu, gpuUuid: gpuOf(0).gpuUuid, memoryBytes }] }],
  });
const demand = (memoryBytes: number, coresPercent = 0, tenants = 0): GpuDemand => ({
  memoryBytes,
  coresPercent,
  tenants,
});
const OTHERS: [
  what: string,
  held: GpusReading['grants'],
  texts: Record<string, string>,
  others: (GpuDemand | undefined)[],
][] = [
  ['no grants', [], {}, [undefined, undefined]],
  [
    'plain processes count fully',
    [grantOf(300, [0]), grantOf(50, [0, 1])],
    {},
    [demand(350, 40, 2), demand(50, 20, 1)],
  ],
  ['a pod with what its annotation says', [grantOf(300, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  [
    'a pod whose grant grew',
    [grantOf(500, [0], 'p'), grantOf(1, [0])],
    { p: annotated(300) },
    [demand(201, 20, 1), undefined],
  ],
  ['a pod whose grant shrank', [grantOf(100, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  ['a pod that is not known', [grantOf(500, [0], 'p')], {}, [undefined, undefined]],
  ['a pod that is gone', [grantOf(500, [0], 'p')], { p: 'gone' }, [demand(500, 20, 1), undefined]],
  ['a pod whose annotation cannot be read', [grantOf(500, [0], 'p')], { p: '{' }, [undefined, undefined]],
];

for (const [what, grants, texts, others] of OTHERS) {
  test(`the agent's grants beyond annotations: ${what}`, (t) => {
    // Amounts that were advertised before do not persist by themselves.
    const shown = { ...known, gpus: known.gpus.map((gpu) => ({ ...gpu, others: demand(7, 7, 7) })) };
    const reading = { gpus: [gpuOf(0), gpuOf(1)], complete: true, grants };
    const found = advertised(reading, shown, texts).map((gpu) => gpu.others);
    t.deepEqual(found, others);
  });
}

test('containers of pods count once per GPU, and processes not at all', (t) => {
  t.is(heldSlots([]), 0);
  t.is(heldSlots([grantOf(1, [0, 1]), grantOf(1, [0], 'p')]), 1);
  const [app, init] = [grantOf(1, [0, 1], 'q'), grantOf(1, [0], 'q', 'init')];
  t.is(heldSlots([{ ...app, containers: [...app.containers, ...init.containers] }]), 2);
});
