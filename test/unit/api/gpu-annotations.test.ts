// The annotations with a pod's grant and a Node's GPUs: what is written is read back, and invalid texts are refused.
import test from 'ava';
import fc from 'fast-check';
import {
  type ContainerGrant,
  formatPodGrant,
  type PodGrant,
  parsePodGrant,
} from '../../../src/api/grant-annotation.ts';
import { formatNodeGpus, type NodeGpus, parseNodeGpus } from '../../../src/api/node-annotation.ts';

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
        links: fc.array(fc.nat(99), { maxLength: 16 }),
        others: fc.record({ memoryBytes: fc.nat(2 ** 30), coresPercent: fc.nat(500), tenants: fc.nat(50) }),
      },
      { requiredKeys: ['gpuUuid', 'index', 'model', 'usableBytes', 'healthy'] },
    ),
    { selector: (one) => one.gpuUuid, maxLength: 8 },
  ),
});

test('a grant is read back as it was written, in any order of its containers', (t) => {
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

const gpuOf = (digit: number, healthy = true) => ({
  gpuUuid: `GPU-00000000-0000-4000-8000-00000000000${digit}`,
  index: digit,
  model: 'NVIDIA L4',
  usableBytes: 1000 + digit,
  healthy,
});
test('keys of a later version on a Node are ignored, and wrong amounts are refused', (t) => {
  const text = formatNodeGpus({
    mostTenantsPerGpu: 10,
    gpus: [{ ...gpuOf(0), others: { memoryBytes: 5, coresPercent: 1, tenants: 1 } }],
  });
  t.deepEqual(parseNodeGpus(text.replace('"others":', '"later":1,"others":')), parseNodeGpus(text));
  for (const [wrong, error] of [
    ['"memoryBytes":-5', 'gpus[0].others.memoryBytes: -5 is not a whole number from 0'],
    ['"memoryBytes":"5"', 'gpus[0].others.memoryBytes: "5" is not a whole number from 0'],
    ['"memory":5', 'gpus[0].others.memoryBytes: is missing'],
  ] as const)
    t.deepEqual(parseNodeGpus(text.replace('"memoryBytes":5', wrong)), { ok: false, error });
});
