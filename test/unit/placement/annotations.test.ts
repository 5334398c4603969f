// The two annotations that carry GPUs over the cluster: one value has one text, and only that text is read.
import test from 'ava';
import fc from 'fast-check';
import type { GpuDemand } from '../../../src/api/gpu.ts';
import {
  type ContainerGrant,
  formatPodGrant,
  type PodGrant,
  parsePodGrant,
} from '../../../src/api/grant-annotation.ts';
import { formatNodeGpus, type NodeGpus, parseNodeGpus } from '../../../src/api/node-annotation.ts';
import { type GpusReading, gpusToAdvertise } from '../../../src/kube/node-gpus.ts';
import { demandOf } from '../../../src/placement/demand.ts';

const uuid = (number: number) => `GPU-00000000-0000-4000-8000-${String(number).padStart(12, '0')}`;
const bytes = fc.integer({ min: 1, max: 2 ** 40 });
const gpuUuid = fc.integer({ min: 0, max: 30 }).map(uuid);
const gpu = fc.record({ gpuUuid, memoryBytes: bytes, limitBytes: bytes, coresPercent: fc.nat(100) });
const container: fc.Arbitrary<ContainerGrant> = fc.record({
  name: fc.stringMatching(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/),
  kind: fc.constantFrom('init', 'sidecar', 'app'),
  memoryIsolation: fc.constantFrom('on', 'off'),
  gpus: fc.uniqueArray(gpu, { selector: (one) => one.gpuUuid, minLength: 1, maxLength: 5 }),
});
const podGrant: fc.Arbitrary<PodGrant> = fc.record({
  epoch: fc.nat(),
  containers: fc.uniqueArray(container, { selector: ({ name }) => name, minLength: 1, maxLength: 4 }),
});
const nodeGpus: fc.Arbitrary<NodeGpus> = fc.record({
  mostTenantsPerGpu: fc.integer({ min: 1, max: 1000 }),
  gpus: fc.uniqueArray(
    fc.record(
      {
        gpuUuid,
        index: fc.nat(16),
        model: fc.string({ maxLength: 40 }),
        usableBytes: fc.nat(2 ** 30),
        healthy: fc.boolean(),
        others: fc.record({ memoryBytes: fc.nat(2 ** 30), coresPercent: fc.nat(500), tenants: fc.nat(50) }),
      },
      { requiredKeys: ['gpuUuid', 'index', 'model', 'usableBytes', 'healthy'] },
    ),
    { selector: (one) => one.gpuUuid, maxLength: 8 },
  ),
});

test('a grant is read back as it was written, whatever the order of its containers was', (t) => {
  fc.assert(
    fc.property(podGrant, (grant) => {
      const sorted = { ...grant, containers: grant.containers.toSorted((a, b) => (a.name < b.name ? -1 : 1)) };
      t.deepEqual(parsePodGrant(formatPodGrant(grant)), { ok: true, value: sorted });
    }),
  );
});

test('the GPUs of a node are read back as they were written', (t) => {
  fc.assert(
    fc.property(nodeGpus, (gpus) => t.deepEqual(parseNodeGpus(formatNodeGpus(gpus)), { ok: true, value: gpus })),
  );
});

const one = { name: 'main', kind: 'app', memoryIsolation: 'on' } as const;
const oneGpu = { gpuUuid: uuid(1), memoryBytes: 100, limitBytes: 100, coresPercent: 0 };
const good: PodGrant = { epoch: 3, containers: [{ ...one, gpus: [oneGpu] }] };

for (const [what, text] of [
  ['text', 'yes'],
  ['nothing', 'null'],
  ['another version', formatPodGrant(good).replace('"version":1', '"version":2')],
  ['no container', JSON.stringify({ version: 1, epoch: 3, containers: [] })],
  ['a GPU twice', formatPodGrant({ ...good, containers: [{ ...one, gpus: [oneGpu, oneGpu] }] })],
  ['a container twice', formatPodGrant({ ...good, containers: [...good.containers, ...good.containers] })],
  ['half a byte', formatPodGrant(good).replace('"memoryBytes":100', '"memoryBytes":100.5')],
  ['more compute than a GPU has', formatPodGrant(good).replace('"coresPercent":0', '"coresPercent":101')],
  ['a path for a GPU', formatPodGrant(good).replace(uuid(1), '../../etc')],
  ['another key', formatPodGrant(good).replace('"epoch"', '"more":1,"epoch"')],
  ['another spelling', ` ${formatPodGrant(good)}`],
] as const) {
  test(`no grant is read from ${what}`, (t) => {
    const read = parsePodGrant(text);
    t.false(read.ok, JSON.stringify(read));
  });
}

test('a pod needs the larger of its biggest init container and all its containers, and its sidecars beside both', (t) => {
  const of = (kind: ContainerGrant['kind'], name: string, ...amounts: readonly (readonly [number, number])[]) => ({
    name,
    kind,
    memoryIsolation: 'on' as const,
    gpus: amounts.map(([on, size]) => ({ ...oneGpu, gpuUuid: uuid(on), memoryBytes: size, coresPercent: size / 10 })),
  });
  const need = demandOf([
    of('init', 'a', [1, 500], [2, 100]),
    of('init', 'b', [1, 300]),
    of('sidecar', 'c', [1, 50]),
    of('app', 'd', [1, 200], [2, 400]),
    of('app', 'e', [1, 250]),
  ]);
  t.deepEqual(need.get(uuid(1)), { memoryBytes: 550, coresPercent: 55, tenants: 3 });
  t.deepEqual(need.get(uuid(2)), { memoryBytes: 400, coresPercent: 40, tenants: 1 });
  t.is(need.size, 2);
});

const gpuOf = (digit: number, healthy = true) => ({
  gpuUuid: `GPU-00000000-0000-4000-8000-00000000000${digit}`,
  index: digit,
  model: 'NVIDIA L4',
  usableBytes: 1000 + digit,
  healthy,
});
const known: NodeGpus = { mostTenantsPerGpu: 10, gpus: [gpuOf(0), gpuOf(1), gpuOf(2)] };
const held = (
  memoryBytes: number,
  digits: readonly number[],
  podUid?: string,
  kind: ContainerGrant['kind'] = 'app',
) => {
  const gpus = digits.map((digit) => ({ ...oneGpu, gpuUuid: gpuOf(digit).gpuUuid, memoryBytes, coresPercent: 20 }));
  return { ...(podUid !== undefined && { podUid }), containers: [{ ...one, kind, gpus }] };
};
const toTell = (
  reading: Omit<GpusReading, 'mostTenantsPerGpu'>,
  shown?: NodeGpus,
  texts: Record<string, string> = {},
) => gpusToAdvertise({ mostTenantsPerGpu: 20, ...reading }, shown, (podUid) => texts[podUid]).gpus;

test('a GPU that is missing stays, not healthy, while pods hold grants on it, and then no longer', (t) => {
  const reading = { gpus: [gpuOf(1)], complete: true, grants: [held(1, [1, 2], 'p')] };
  t.deepEqual(toTell(reading, known), [gpuOf(1), gpuOf(2, false)]);
  t.deepEqual(toTell({ ...reading, grants: [] }, known), [gpuOf(1)]);
  t.deepEqual(toTell(reading), [gpuOf(1)]);
  const tell = gpusToAdvertise({ mostTenantsPerGpu: 20, ...reading }, known, () => undefined);
  t.is(tell.mostTenantsPerGpu, 20);
});

test('while the driver cannot be asked all GPUs stay, and none is healthy', (t) => {
  const reading = { gpus: [], complete: false, grants: [] };
  t.deepEqual(toTell(reading, known), [gpuOf(0, false), gpuOf(1, false), gpuOf(2, false)]);
});

test('a lost GPU, which no longer tells its memory, keeps the amount that it had', (t) => {
  const lost = { ...gpuOf(1, false), usableBytes: 0 };
  const reading = { gpus: [gpuOf(0), lost], complete: true, grants: [] };
  t.deepEqual(toTell(reading, known), [gpuOf(0), gpuOf(1, false)]);
  t.deepEqual(toTell(reading), [gpuOf(0), lost]);
});

const annotated = (memoryBytes: number) =>
  formatPodGrant({
    epoch: 1,
    containers: [{ ...one, gpus: [{ ...oneGpu, gpuUuid: gpuOf(0).gpuUuid, memoryBytes }] }],
  });
const need = (memoryBytes: number, coresPercent = 0, tenants = 0): GpuDemand => ({
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
  ['nothing is held', [], {}, [undefined, undefined]],
  ['plain grants count whole', [held(300, [0]), held(50, [0, 1])], {}, [need(350, 40, 2), need(50, 20, 1)]],
  ['a pod with what its annotation says', [held(300, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  [
    'a pod that was given more',
    [held(500, [0], 'p'), held(1, [0])],
    { p: annotated(300) },
    [need(201, 20, 1), undefined],
  ],
  ['a pod that was given less', [held(100, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  ['a pod that is not known', [held(500, [0], 'p')], {}, [undefined, undefined]],
  ['a pod whose annotation cannot be read', [held(500, [0], 'p')], { p: '{' }, [undefined, undefined]],
];

for (const [what, grants, texts, others] of OTHERS) {
  test(`what the agent gave away beyond annotations is told: ${what}`, (t) => {
    // What was told before is not told again by itself.
    const shown = { ...known, gpus: known.gpus.map((gpu) => ({ ...gpu, others: need(7, 7, 7) })) };
    const reading = { gpus: [gpuOf(0), gpuOf(1)], complete: true, grants };
    const told = toTell(reading, shown, texts).map((gpu) => gpu.others);
    t.deepEqual(told, others);
  });
}

test('keys of a later version on a Node are ignored, and wrong amounts are refused', (t) => {
  const text = formatNodeGpus({ mostTenantsPerGpu: 10, gpus: [{ ...gpuOf(0), others: need(5, 1, 1) }] });
  t.deepEqual(parseNodeGpus(text.replace('"others":', '"later":1,"others":')), parseNodeGpus(text));
  for (const [wrong, error] of [
    ['"memoryBytes":-5', 'gpus[0].others.memoryBytes: -5 is not a whole number from 0'],
    ['"memoryBytes":"5"', 'gpus[0].others.memoryBytes: "5" is not a whole number from 0'],
    ['"memory":5', 'gpus[0].others.memoryBytes: is missing'],
  ] as const)
    t.deepEqual(parseNodeGpus(text.replace('"memoryBytes":5', wrong)), { ok: false, error });
});
