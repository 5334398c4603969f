// GPUs of which more is granted than there is, and who has to go from them.
import test from 'ava';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { displacedOn, excessesOf, type Holder } from '../../../src/placement/overcommit.ts';

const GPUS: NodeGpus = {
  mostTenantsPerGpu: 3,
  gpus: ['a', 'b'].map((gpuUuid, index) => ({ gpuUuid, index, model: 'x', usableBytes: 1000 * MIB, healthy: true })),
};
type Need = Readonly<Record<string, number | readonly [mib: number, cores: number]>>;

/** Granted by leader `epoch`; created in the order of names. */
const holder = (podUid: string, epoch: number, need: Need, state: Holder['state'] = 'waits'): Holder => ({
  podUid,
  epoch,
  createdMs: podUid.charCodeAt(0),
  state,
  need: new Map(
    Object.entries(need).map(([gpu, amount]) => {
      const [mib, coresPercent] = typeof amount === 'number' ? [amount, 0] : amount;
      return [gpu, { memoryBytes: mib * MIB, coresPercent, tenants: 1 }];
    }),
  ),
});
const some = (...of: readonly string[]) => of.map((name) => holder(name, 1, { a: 1 }));

const EXCESSES: [what: string, holders: Holder[], said: string[]][] = [
  ['full to the last byte', [holder('p', 1, { a: [600, 50] }), holder('q', 1, { a: [400, 50] })], []],
  [
    'memory',
    [holder('p', 1, { a: 600, b: 1000 }), holder('q', 1, { a: 401 })],
    ['a of node n is overbooked: 1001 MiB of cotenant.io/gpu-memory are granted, it has 1000 MiB'],
  ],
  [
    'compute',
    [holder('p', 1, { b: [1, 60] }), holder('q', 1, { b: [1, 60] })],
    ['b of node n is overbooked: 120 % of cotenant.io/gpu-cores are granted, it has 100 %'],
  ],
  [
    'tenants',
    some('p', 'q', 'r', 's'),
    ['a of node n is overbooked: 4 tenants (cotenant.io/gpu) are on it, it takes 3'],
  ],
  ['a GPU that has gone', [holder('p', 1, { c: 1 })], ['c is granted, and node n does not have it (cotenant.io/gpu)']],
  ['what is leaving', [holder('p', 1, { a: 1000 }), holder('q', 1, { a: 1000, c: 1 }, 'leaves')], []],
];

for (const [what, holders, said] of EXCESSES) {
  test(`more than there is, in words: ${what}`, (t) => {
    t.deepEqual(
      excessesOf('n', GPUS, holders).map(({ text }) => text),
      said,
    );
  });
}

const DISPLACED: [what: string, holders: Holder[], who: string[]][] = [
  ['nobody while all fits', [holder('p', 1, { a: 1000 }), holder('q', 1, { b: 1000 })], []],
  ['the one that the later leader placed', [holder('q', 1, { a: 600 }), holder('p', 2, { a: 600 })], ['p']],
  ['of one leader the one that was created later', [holder('p', 1, { a: 600 }), holder('q', 1, { a: 600 })], ['q']],
  [
    'as many as it takes, the youngest first',
    [holder('p', 1, { a: 500 }), holder('q', 1, { a: 500 }), holder('r', 1, { a: 200 }), holder('s', 1, { a: 300 })],
    ['s', 'r'],
  ],
  ['not who has started', [holder('p', 1, { a: 600 }), holder('q', 2, { a: 600 }, 'started')], ['p']],
  ['nobody where all have started', ['p', 'q'].map((name) => holder(name, 1, { a: 600 }, 'started')), []],
  ['nobody else once one is leaving', [holder('p', 1, { a: 600 }), holder('q', 1, { a: 600 }, 'leaves')], []],
  [
    'only who is on the GPU',
    [holder('p', 1, { a: 600 }), holder('q', 1, { a: 600 }), holder('r', 2, { b: 1000 })],
    ['q'],
  ],
  [
    'who is on two such GPUs goes from both',
    [holder('p', 1, { a: 600 }), holder('q', 1, { b: 600 }), holder('r', 1, { a: 600, b: 600 })],
    ['r'],
  ],
  [
    'all of a GPU that has gone',
    [holder('p', 1, { c: 1 }), holder('q', 1, { c: 1, a: 1 }), holder('r', 1, { a: 1 })],
    ['q', 'p'],
  ],
  ['of equals always the same', [...some('p', 'q', 'r', 's')].map((one) => ({ ...one, createdMs: 0 })), ['s']],
];

for (const [what, holders, who] of DISPLACED) {
  test(`who has to go: ${what}`, (t) => {
    const ripe = new Set(['a', 'b', 'c']);
    const uids = (of: readonly Holder[]) => displacedOn('n', GPUS, of, ripe).map(({ podUid }) => podUid);
    t.deepEqual(uids(holders), who);
    t.deepEqual(uids(holders.toReversed()), who);
  });
}

test('what the agent gave away itself takes room like a pod that has started', (t) => {
  const others = { memoryBytes: 500 * MIB, coresPercent: 0, tenants: 1 };
  const gpus = { ...GPUS, gpus: GPUS.gpus.map((gpu) => (gpu.gpuUuid === 'a' ? { ...gpu, others } : gpu)) };
  const [fits, excess] = [holder('p', 1, { a: 500 }), holder('q', 1, { a: 1 })];
  t.deepEqual(excessesOf('n', gpus, [fits]), []);
  const ripe = new Set(['a']);
  t.deepEqual(displacedOn('n', gpus, [fits, excess], ripe), [
    {
      podUid: 'q',
      because:
        'a of node n is overbooked: 1001 MiB of cotenant.io/gpu-memory are granted, 500 MiB of them by the agent of the node, it has 1000 MiB',
    },
  ]);
  t.deepEqual(displacedOn('n', gpus, [], ripe), []);
});

test('from a GPU that has not been overbooked for long enough nobody goes, and the reason names the GPU that has', (t) => {
  const holders = [holder('p', 1, { a: 600, b: 600 }), holder('q', 1, { a: 600, b: 600 })];
  t.deepEqual(displacedOn('n', GPUS, holders, new Set()), []);
  const [one, ...more] = displacedOn('n', GPUS, holders, new Set(['b']));
  t.deepEqual(more, []);
  t.like(one, {
    podUid: 'q',
    because: 'b of node n is overbooked: 1200 MiB of cotenant.io/gpu-memory are granted, it has 1000 MiB',
  });
});
