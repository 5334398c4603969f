// GPUs on which more is granted than there is, and which pods are evicted from them.
import test from 'ava';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { choosePodsToEvict, findOvercommittedGpus, type GrantedPod } from '../../../src/placement/overcommit.ts';

const GPUS: NodeGpus = {
  mostTenantsPerGpu: 3,
  gpus: ['a', 'b'].map((gpuUuid, index) => ({ gpuUuid, index, model: 'x', usableBytes: 1000 * MIB, healthy: true })),
};
type Amounts = Readonly<Record<string, number | readonly [mib: number, cores: number]>>;

/** Granted by leader `epoch`; created in the order of names. */
const pod = (podUid: string, epoch: number, amounts: Amounts, state: GrantedPod['state'] = 'waiting'): GrantedPod => ({
  podUid,
  epoch,
  createdMs: podUid.charCodeAt(0),
  state,
  demand: new Map(
    Object.entries(amounts).map(([gpu, amount]) => {
      const [mib, coresPercent] = typeof amount === 'number' ? [amount, 0] : amount;
      return [gpu, { memoryBytes: mib * MIB, coresPercent, tenants: 1 }];
    }),
  ),
});
const some = (...of: readonly string[]) => of.map((name) => pod(name, 1, { a: 1 }));

const OVERCOMMITTED: [what: string, pods: GrantedPod[], texts: string[]][] = [
  ['full to the last byte', [pod('p', 1, { a: [600, 50] }), pod('q', 1, { a: [400, 50] })], []],
  [
    'memory',
    [pod('p', 1, { a: 600, b: 1000 }), pod('q', 1, { a: 401 })],
    ['a of node n is overcommitted: 1001 MiB of cotenant.io/gpu-memory are granted, but it has 1000 MiB'],
  ],
  [
    'compute',
    [pod('p', 1, { b: [1, 60] }), pod('q', 1, { b: [1, 60] })],
    ['b of node n is overcommitted: 120 % of cotenant.io/gpu-cores are granted, but it has 100 %'],
  ],
  [
    'tenants',
    some('p', 'q', 'r', 's'),
    ['a of node n is overcommitted: it has 4 containers (cotenant.io/gpu), but takes 3'],
  ],
  [
    'a GPU that the node no longer has',
    [pod('p', 1, { c: 1 })],
    ['c is granted, but node n does not have it (cotenant.io/gpu)'],
  ],
  ['terminating pods do not count', [pod('p', 1, { a: 1000 }), pod('q', 1, { a: 1000, c: 1 }, 'terminating')], []],
];

for (const [what, pods, texts] of OVERCOMMITTED) {
  test(`overcommitted: ${what}`, (t) => {
    t.deepEqual(
      findOvercommittedGpus('n', GPUS, pods).map(({ text }) => text),
      texts,
    );
  });
}

const EVICTED: [what: string, pods: GrantedPod[], evicted: string[]][] = [
  ['no pod while all fit', [pod('p', 1, { a: 1000 }), pod('q', 1, { b: 1000 })], []],
  ['the one that the later leader granted', [pod('q', 1, { a: 600 }), pod('p', 2, { a: 600 })], ['p']],
  ['of one leader the one that was created later', [pod('p', 1, { a: 600 }), pod('q', 1, { a: 600 })], ['q']],
  [
    'as many as it takes, the youngest first',
    [pod('p', 1, { a: 500 }), pod('q', 1, { a: 500 }), pod('r', 1, { a: 200 }), pod('s', 1, { a: 300 })],
    ['s', 'r'],
  ],
  ['not a started pod', [pod('p', 1, { a: 600 }), pod('q', 2, { a: 600 }, 'started')], ['p']],
  ['no pod where all have started', ['p', 'q'].map((name) => pod(name, 1, { a: 600 }, 'started')), []],
  ['no other pod once one is terminating', [pod('p', 1, { a: 600 }), pod('q', 1, { a: 600 }, 'terminating')], []],
  ['only pods on the GPU', [pod('p', 1, { a: 600 }), pod('q', 1, { a: 600 }), pod('r', 2, { b: 1000 })], ['q']],
  [
    'a pod on two such GPUs leaves both',
    [pod('p', 1, { a: 600 }), pod('q', 1, { b: 600 }), pod('r', 1, { a: 600, b: 600 })],
    ['r'],
  ],
  [
    'all pods of a GPU that the node no longer has',
    [pod('p', 1, { c: 1 }), pod('q', 1, { c: 1, a: 1 }), pod('r', 1, { a: 1 })],
    ['q', 'p'],
  ],
  ['of equal pods always the same', [...some('p', 'q', 'r', 's')].map((one) => ({ ...one, createdMs: 0 })), ['s']],
];

for (const [what, pods, evicted] of EVICTED) {
  test(`evicted: ${what}`, (t) => {
    const ripe = new Set(['a', 'b', 'c']);
    const uids = (of: readonly GrantedPod[]) => choosePodsToEvict('n', GPUS, of, ripe).map(({ podUid }) => podUid);
    t.deepEqual(uids(pods), evicted);
    t.deepEqual(uids(pods.toReversed()), evicted);
  });
}

test("the agent's own grants count like a started pod", (t) => {
  const others = { memoryBytes: 500 * MIB, coresPercent: 0, tenants: 1 };
  const gpus = { ...GPUS, gpus: GPUS.gpus.map((gpu) => (gpu.gpuUuid === 'a' ? { ...gpu, others } : gpu)) };
  const [fits, excess] = [pod('p', 1, { a: 500 }), pod('q', 1, { a: 1 })];
  t.deepEqual(findOvercommittedGpus('n', gpus, [fits]), []);
  const ripe = new Set(['a']);
  t.deepEqual(choosePodsToEvict('n', gpus, [fits, excess], ripe), [
    {
      podUid: 'q',
      because:
        'a of node n is overcommitted: 1001 MiB of cotenant.io/gpu-memory are granted, 500 MiB of them by the agent of the node, but it has 1000 MiB',
    },
  ]);
  t.deepEqual(choosePodsToEvict('n', gpus, [], ripe), []);
});

test('pods leave only GPUs that were overcommitted long enough, which the reason names', (t) => {
  const pods = [pod('p', 1, { a: 600, b: 600 }), pod('q', 1, { a: 600, b: 600 })];
  t.deepEqual(choosePodsToEvict('n', GPUS, pods, new Set()), []);
  const [one, ...more] = choosePodsToEvict('n', GPUS, pods, new Set(['b']));
  t.deepEqual(more, []);
  t.like(one, {
    podUid: 'q',
    because: 'b of node n is overcommitted: 1200 MiB of cotenant.io/gpu-memory are granted, but it has 1000 MiB',
  });
});
