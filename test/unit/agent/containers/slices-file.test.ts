// The slices file: what it gives, and what is wrong with it in words.
import test from 'ava';
import { parseSlices } from '../../../../src/agent/containers/slices-file.ts';
import { MIB } from '../../../../src/common/quantity.ts';

const devicesOf = (text: string) => {
  const parsed = parseSlices(text);
  if (!parsed.ok) throw new Error(parsed.error);
  return parsed.value;
};

test('each slice has its amounts, its GPUs and its compute; several are numbered', (t) => {
  const [small, ...rest] = devicesOf(`
slices:
  - name: small
    memory: 4Gi
    cores: 25
    coresLimit: 50
    policy: 3
    priority: high
    gpu: 0
  - { name: big, memory: whole, gpus: 2, model: [NVIDIA L4, NVIDIA A10], count: 2, memoryIsolation: false }
`);
  t.deepEqual(small, {
    device: 'small',
    shares: [{ memory: { kind: 'bytes', bytes: 4096 * MIB }, coresPercent: 25, coresLimitPercent: 50 }],
    gpus: ['0'],
    models: [],
    isolateMemory: true,
    compute: { policy: 'fixed', priority: 'high' },
  });
  t.deepEqual(
    rest.map(({ device }) => device),
    ['big-1', 'big-2'],
  );
  t.like(rest[0], { models: ['NVIDIA L4', 'NVIDIA A10'], isolateMemory: false });
  t.deepEqual(rest[0]?.shares, [{ memory: { kind: 'whole' } }, { memory: { kind: 'whole' } }]);
  t.deepEqual(devicesOf(''), []);
});

const WRONG: readonly (readonly [text: string, says: RegExp])[] = [
  ['slices: [{ name: a, memory: 4Gigs }]', /^slices\[0\]\.memory: .*4Gi or 512Mi/],
  ['slices: [{ name: a, memory: 1536 }]', /^slices\[0\]\.memory: /],
  ['slices: [{ name: a }]', /^slices\[0\]\.memory/],
  ['slices: [{ name: A_b, memory: 1Gi }]', /^slices\[0\]\.name: .*small letters/],
  ['slices: [{ name: a, memory: 1Gi, cores: 101 }]', /^slices\[0\]\.cores: /],
  ['slices: [{ name: a, memory: 1Gi, coresLimit: 50 }]', /^slices\[0\]\.coresLimit: 50 needs cores/],
  ['slices: [{ name: a, memory: 1Gi, gpu: nvidia0 }]', /^slices\[0\]\.gpu\[0\]: .*index or the UUID/],
  ['slices: [{ name: a, memory: 1Gi, policy: 6 }]', /^slices\[0\]\.policy: /],
  ['slices: [{ name: a, memory: 1Gi, memry: 1 }]', /memry/],
  ['slices: [{ name: a, memory: 1Gi, count: 2 }, { name: a-2, memory: 1Gi }]', /^slices\[1\]\.name: a-2 is the name/],
  ['slices: [', /./],
  ['- a', /./],
];
for (const [text, says] of WRONG) {
  test(`a slices file is refused with its place: ${text}`, (t) => {
    const parsed = parseSlices(text);
    t.false(parsed.ok);
    t.regex(parsed.ok ? '' : parsed.error, says);
  });
}
