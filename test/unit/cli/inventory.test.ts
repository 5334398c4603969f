// A cluster as `cotenant inspect` shows it: what counts on which GPU, what is not known, and the table.
import test from 'ava';
import { staleSnapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import type { GpuShare } from '../../../src/api/request.ts';
import { type ClusterObjects, inventoryOf } from '../../../src/cli/cluster/inventory.ts';
import { type ContainerUse, type KnownUse, useOf, useOn } from '../../../src/cli/cluster/use.ts';
import { askedByPod } from '../../../src/cli/lib/text.ts';
import { inventoryLines } from '../../../src/cli/output/cluster-table.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { exampleContainer, exampleSnapshot } from '../../support/product/snapshots.ts';
import { container, NOW, node, objects, pod, request, usesOf, uuid } from './inventory-objects.ts';

test('a pod counts on a GPU with what it needs at one time, until it has ended', (t) => {
  const { nodes, totals } = inventoryOf(objects());
  t.deepEqual(
    nodes.map(({ name }) => name),
    ['node-2', 'node-10'],
    'by name, numbers as numbers; nodes without GPUs are none of ours',
  );
  const [first, second] = nodes[0]?.gpus ?? [];
  // The larger of the init container and the main one, the sidecar beside both, and the other pod.
  t.is(first?.grantedBytes, (6144 + 512 + 1024) * MIB);
  t.is(first?.grantedCoresPercent, 75);
  t.is(first?.tenants, 3);
  t.is(second?.grantedBytes, 1024 * MIB);
  t.deepEqual(totals, {
    nodes: 2,
    gpus: 3,
    grantedBytes: (6144 + 512 + 1024 + 1024) * MIB,
    usableBytes: 3 * 22_600 * MIB,
    containers: 4,
  });
});

test('the table has GPUs, their containers, pending pods, sums and problems', (t) => {
  t.deepEqual(inventoryLines(inventoryOf(objects({ notes: ['A note.'] })), NOW), [
    'NODE     GPU  GPU, CONTAINER                            MODEL, STATE      GRANTED MiB  USABLE      USED  COMPUTE  CONTAINERS  MODE',
    `node-2     0  ${uuid(0)}  NVIDIA L4                7680   22600      5312      75%        3/50  enforce`,
    '                team/train/log                          sidecar, running          512                 -      25%',
    '                team/train/main                         running                  4096              3320      25%              report, administrator  interposer',
    '                team/train/warm                         init, running            6144                 -      25%',
    '                team/two/main                           running                  1024                 -      25%',
    '                team/sneaky/main                        WITHOUT A GRANT             0               300        -',
    `           1  ${uuid(1)}  NVIDIA L4                1024   22600         -      25%        1/50                         LOST`,
    '                team/two/main                           running                  1024                 -      25%',
    `node-10    2  ${uuid(2)}  NVIDIA L4                   0   22600  no agent        -        0/50`,
    '',
    'Free on node-2: 14920 MiB, the largest share 14920 MiB (0% fragmented)',
    'Free on node-10: 22600 MiB, the largest share 22600 MiB (0% fragmented)',
    '',
    'other/later waits for 5 min: main asks for 30720 MiB and 50 % of the compute of one GPU. The scheduler: 0/2 nodes are available: no GPU has 30720 MiB.',
    '',
    'Granted/usable GPU memory: 8704/67800 MiB (12%), 3 GPUs (1 with a fault) on 2 nodes, 4 containers with a share, 1 pod pending.',
    'A note.',
    'No agent runs on node node-10.',
  ]);
});

test('the sums name containers that use more than their limit', (t) => {
  const sums = (used: number) =>
    inventoryLines(inventoryOf(objects({ use: new Map([['node-2', usesOf(used)]]) })), NOW).find((line) =>
      line.startsWith('Granted/usable'),
    );
  t.regex(sums(4096 * MIB) ?? '', /, 4 containers with a share, 1 pod pending\.$/);
  t.regex(
    sums(4097 * MIB) ?? '',
    /, 4 containers with a share \(above its limit: team\/train\/main\), 1 pod pending\.$/,
  );
});

test('a full node fits a terminal, and containers above their limits are the first', (t) => {
  const pods = range(400, (index) =>
    pod(`team-${index}-inference-0`, 'gpu-0.example', [container('main', 400, [index % 8])]),
  );
  const known = usesOf(0) as KnownUse;
  const [one] = known.containers;
  const seen = pods.map(({ metadata: { name } }, index) => {
    return {
      ...(one as ContainerUse),
      pod: name,
      gpuUuid: uuid(index % 8),
      usedBytes: (index === 399 ? 500 : 300) * MIB,
    };
  });
  const nodes = [
    node(
      'gpu-0.example',
      range(8, (index) => index),
    ),
  ];
  const use = new Map([['gpu-0.example', { ...known, containers: seen }]]);
  const inventory = inventoryOf(objects({ nodes, pods, use }));
  const whole = inventoryLines(inventory, NOW);
  for (const width of [40, 80, 120]) {
    const lines = inventoryLines(inventory, NOW, width);
    t.is(lines.length, whole.length);
    const table = lines.slice(0, lines.indexOf(''));
    t.is(table.length, 1 + 8 + 400 + 1);
    t.deepEqual(
      table.filter((line) => line.length > width),
      [],
    );
    t.regex(table.at(-50) ?? '', /\S+\/main .* 500 .*100 MiB abo/, `${width}: the first of its GPU`);
  }
});

test('of one namespace only its containers are listed, and the sums are of all', (t) => {
  const all = inventoryOf(objects());
  const some = inventoryOf(objects(), 'other');
  t.deepEqual(some.totals, all.totals);
  t.deepEqual(
    some.nodes.flatMap(({ gpus }) => gpus).map((gpu) => [gpu.grantedBytes, gpu.containers, gpu.foreign]),
    all.nodes.flatMap(({ gpus }) => gpus).map((gpu) => [gpu.grantedBytes, [], []]),
  );
  t.is(some.pending.length, 1);
  t.is(inventoryOf(objects(), 'team').pending.length, 0);
});

test('a node has its mode, and containers the mode of agent or annotations', (t) => {
  const off = { 'cotenant.io/enforcement-override': 'off' };
  const of = pod('two', 'node-2', [container('main', 1024, [0])]);
  const said = { ...of, metadata: { ...of.metadata, annotations: { ...of.metadata.annotations, ...off } } };
  const train = pod('train', 'node-2', [container('main', 4096, [0])]);
  const inventory = inventoryOf(objects({ pods: [train, said] }));
  const [node2, node10] = inventory.nodes;
  t.deepEqual([node2?.mode, node10?.mode], ['enforce', undefined]);
  t.deepEqual(
    node2?.gpus[0]?.containers.map((one) => one.enforcement),
    [
      { mode: 'report', by: 'administrator' },
      { mode: 'off', by: 'administrator' },
    ],
  );
  const lines = inventoryLines(inventory, NOW);
  t.regex(lines.find((line) => line.includes('team/two/main')) ?? '', / off, administrator$/);
  const unheard = inventoryOf(objects({ pods: [train, said], use: new Map() }));
  t.deepEqual(
    unheard.nodes[0]?.gpus[0]?.containers.map((one) => one.enforcement),
    [undefined, undefined],
  );
});

test('without node permissions the GPUs are those of the grants alone', (t) => {
  const { nodes, totals } = inventoryOf(objects({ nodes: undefined, use: new Map() }));
  const [first] = nodes[0]?.gpus ?? [];
  t.is(first?.gpuUuid, uuid(0));
  t.is(first?.grantedBytes, 7680 * MIB);
  t.is(first?.usableBytes, undefined);
  t.is(totals.usableBytes, 0);
});

test('GPUs that are not shared have no room for shares, and say so', (t) => {
  const one = node('node-2', [0, 2, 3]);
  const modes = ['exclusive', 'none', undefined] as const;
  const gpus = [0, 2, 3].map((index, at) => {
    const mode = modes[at];
    const about = { gpuUuid: uuid(index), index, model: 'NVIDIA L4', usableBytes: 22_600 * MIB, healthy: true };
    return { ...about, ...(mode !== undefined && { mode }) };
  });
  const annotations = { [GPUS_ANNOTATION]: formatNodeGpus({ mostTenantsPerGpu: 50, gpus }) };
  const nodes = [{ ...one, metadata: { ...one.metadata, annotations } }];
  const inventory = inventoryOf(objects({ nodes, pods: [] }));
  t.deepEqual(inventory.nodes[0]?.free, { bytes: 22_600 * MIB, largestBytes: 22_600 * MIB });
  const ends = inventoryLines(inventory, NOW)
    .filter((line) => line.includes('NVIDIA L4'))
    .map((line) => /(not shared|left to others)?$/.exec(line)?.[0]);
  t.deepEqual(ends, ['not shared', 'left to others', '']);
});

const range = <T>(count: number, make: (index: number) => T): readonly T[] =>
  Array.from({ length: count }, (_, index) => make(index));

const cut = (text: string): string => text.slice(0, -1);
const ODD: readonly (readonly [name: string, of: ClusterObjects, note: RegExp])[] = [
  [
    'a grant by a foreign writer',
    objects({
      pods: [
        {
          ...pod('bad', 'node-2', []),
          metadata: { name: 'bad', namespace: 'team', annotations: { [GRANT_ANNOTATION]: '{}' } },
        },
      ],
    }),
    /^The grant of team\/bad cannot be read, and is not counted: version: is missing\.$/,
  ],
  [
    'GPUs that cannot be read',
    objects({
      nodes: [node('node-2', [0]), node('node-3', [])].map((one) => ({
        ...one,
        metadata: {
          ...one.metadata,
          annotations: { [GPUS_ANNOTATION]: cut(one.metadata.annotations?.[GPUS_ANNOTATION] ?? '') },
        },
      })),
    }),
    /^The GPUs of node node-3 cannot be read: it is not JSON\.$/,
  ],
  [
    'a grant on a GPU that the node does not have',
    objects({ nodes: [node('node-2', [0])] }),
    new RegExp(`^Node node-2 has grants on ${uuid(1)}, which is not one of its GPUs\\.$`),
  ],
  [
    'grants on a node that reports no GPUs',
    objects({ nodes: [{ metadata: { name: 'node-2' } }] }),
    /^Node node-2 has grants, but reports no GPUs\.$/,
  ],
  [
    'an agent that does not answer',
    objects({ use: new Map([['node-2', { known: false, short: 'no answer', why: 'status 503: refused' }]]) }),
    /^Use on node node-2 is not known: status 503: refused\.$/,
  ],
];

for (const [name, of, note] of ODD) {
  test(`reported beside the rest: ${name}`, (t) => {
    const { notes, nodes } = inventoryOf(of);
    t.is(notes.filter((line) => note.test(line)).length, 1, notes.join('\n'));
    t.true(nodes.some((one) => one.name === 'node-2'));
  });
}

test("an agent's own grants count and have a line", (t) => {
  const one = node('node-2', [0]);
  const others = { memoryBytes: 512 * MIB, coresPercent: 10, tenants: 2 };
  const usableBytes = 22_600 * MIB;
  const gpus = [{ gpuUuid: uuid(0), index: 0, model: 'NVIDIA L4', usableBytes, healthy: true, others }];
  const annotations = { [GPUS_ANNOTATION]: formatNodeGpus({ mostTenantsPerGpu: 50, gpus }) };
  const inventory = inventoryOf(
    objects({
      nodes: [{ ...one, metadata: { ...one.metadata, annotations } }],
      pods: [pod('p', 'node-2', [container('main', 1024, [0])])],
    }),
  );
  t.like(inventory.nodes[0]?.gpus[0], { grantedBytes: 1536 * MIB, grantedCoresPercent: 35, tenants: 3, others });
  const line = inventoryLines(inventory, NOW).find((text) => text.includes("by the node's agent"));
  t.regex(line ?? '', /agent +512 +10%$/);
});

test('marks lost nodes and GPUs that are granted twice', (t) => {
  const of = objects({
    nodes: [node('node-2', [0, 1], 'Unknown')],
    pods: [pod('big', 'node-2', [container('main', 30_000, [0])])],
  });
  const line = inventoryLines(inventoryOf(of), NOW).find((text) => text.startsWith('node-2'));
  t.regex(line ?? '', / NODE NOT READY, OVERCOMMITTED$/);
});

test('names that an agent reports are shown as text, whatever is in them', (t) => {
  const [foreign] = exampleSnapshot.foreign;
  if (!foreign) return t.fail();
  const hostile = { ...foreign, namespace: 'team', pod: '\u001b[2J\u009b31m', container: 'x', gpuUuid: uuid(0) };
  const use = useOf({ ...exampleSnapshot, foreign: [hostile] });
  const lines = inventoryLines(inventoryOf(objects({ use: new Map([['node-2', use]]) })), NOW);
  t.true(lines.some((line) => line.includes('team/ [2J 31m/x')));
  for (const line of lines) t.notRegex(line, /[\p{Cc}\p{Cf}]/u, JSON.stringify(line));
});

test('use is read from the snapshot that the agent publishes', (t) => {
  const use = useOf(exampleSnapshot);
  if (!use.known) return t.fail(use.why);
  t.is(use.gpus.get('GPU-0'), 6 * GIB);
  t.is(use.mode, exampleSnapshot.self.mode);
  for (const one of exampleSnapshot.containers)
    t.like(useOn(use, one), { fence: one.fence, enforcement: one.enforcement });
  t.deepEqual(
    use.containers.map(({ usedBytes, smRatio }) => [usedBytes, smRatio]),
    exampleSnapshot.containers.map((one) => [one.usedBytes, (one.smPercent ?? Number.NaN) / 100]),
  );
  t.deepEqual(
    use.foreign.map(({ pod: name, usedBytes }) => [name, usedBytes]),
    exampleSnapshot.foreign.map((one) => [one.pod, one.usedBytes]),
  );
  const aboveOf = (more: Partial<typeof exampleContainer>) => {
    const above = { ...exampleContainer, usedBytes: exampleContainer.limitBytes + MIB, ...more };
    return (useOf({ ...exampleSnapshot, containers: [above] }) as KnownUse).containers[0]?.aboveGrantBytes;
  };
  t.is(aboveOf({ isolateMemory: false }), MIB);
  t.is(aboveOf({ isolateMemory: true }), undefined, 'tolerated, or stopped');
  t.is(aboveOf({ isolateMemory: false, memoryKnown: false }), undefined);
  t.is(aboveOf({ isolateMemory: false, usedBytes: 0 }), undefined);
  const unknown = { ...exampleContainer, memoryKnown: false, smPercent: undefined };
  const [container] = (useOf({ ...exampleSnapshot, containers: [unknown] }) as KnownUse).containers;
  t.false('usedBytes' in (container ?? {}));
  t.false('smRatio' in (container ?? {}));
});

test('an agent whose driver does not answer shows no use', (t) => {
  const stale = staleSnapshot(exampleSnapshot, 60_000, { abandoned: 0, hung: 0 });
  t.like(useOf(stale), { known: false, short: 'no driver' });
});

const REQUESTS: readonly (readonly [shares: readonly GpuShare[], expected: string])[] = [
  [[{ memory: { kind: 'bytes', bytes: 4 * GIB } }], 'main asks for 4096 MiB of one GPU'],
  [
    [{ memory: { kind: 'units', units: 3, unitBytes: GIB, rounding: 'cgpu' }, coresPercent: 25 }],
    'main asks for 3 units of 1024 MiB and 25 % of the compute of one GPU',
  ],
  [
    [{ memory: { kind: 'whole' } }, { memory: { kind: 'percent', percent: 50 } }],
    'main asks for the whole memory of one GPU, and 50 % of the memory of one GPU',
  ],
  [
    Array.from({ length: 2 }, () => ({
      memory: { kind: 'bytes' as const, bytes: GIB },
      memoryLimit: { kind: 'bytes' as const, bytes: 2 * GIB },
    })),
    'main asks for 1024 MiB (limit 2048 MiB) of each of 2 GPUs',
  ],
];

for (const [shares, expected] of REQUESTS) {
  test(`${expected}`, (t) => t.is(askedByPod(request(shares)), expected));
}

test('in sentences: problems of the GPUs', (t) => {
  const whole = request([{ memory: { kind: 'whole' } }], { gpuModels: ['L4', 'A10'], gpuUuids: [uuid(0)] });
  t.is(askedByPod(whole), `main asks for the whole memory of one GPU; GPUs of model L4 or A10 among ${uuid(0)}`);
});

test('what is free counts where containers may start, in all and as one share', (t) => {
  const of = objects({ nodes: [node('node-2', [0, 2]), node('node-3', [1])], use: new Map() });
  const { nodes } = inventoryOf(of);
  t.deepEqual(
    nodes.map(({ name, free }) => [name, free.bytes / MIB, free.largestBytes / MIB]),
    [
      ['node-2', 14_920 + 22_600, 22_600],
      ['node-3', 0, 0],
    ],
    'GPU 1 is not healthy',
  );
  const lines = inventoryLines(inventoryOf(of), NOW);
  t.true(lines.includes('Free on node-2: 37520 MiB, the largest share 22600 MiB (40% fragmented)'), lines.join('\n'));
  t.false(lines.some((line) => line.startsWith('Free on node-3')));
});

test('a pod that is gone and holds its grant has a row that says since when', (t) => {
  const [container] = exampleSnapshot.containers;
  if (!container) return t.fail();
  const ghost = { ...container, ...{ namespace: 'team', pod: 'ghost', container: 'main', gpuUuid: uuid(0) } };
  const atMs = Date.parse('2026-11-21T22:06:00.500Z');
  const use = useOf({ ...exampleSnapshot, containers: [exampleContainer, { ...ghost, podGoneSinceMs: atMs }] });
  const { nodes } = inventoryOf(objects({ use: new Map([['node-2', use]]) }));
  const found = nodes.flatMap(({ gpus }) => gpus.flatMap(({ ofGonePods }) => ofGonePods));
  t.deepEqual(
    found.map(({ pod: name, grantedBytes, goneSince }) => [name, grantedBytes, goneSince]),
    [['ghost', container.limitBytes, '2026-11-21T22:06:00.500Z']],
  );
  const row = inventoryLines(inventoryOf(objects({ use: new Map([['node-2', use]]) })), 0).find((line) =>
    line.includes('team/ghost/main'),
  );
  t.regex(row ?? '', / POD GONE +\(\d+\) .* since 2026-11-21T22:06:00Z$/);
});
