// A screen of `cotenant top`: who is on it, in which order, and that it fits.
import test from 'ava';
import fc from 'fast-check';
import { type ActionName, type ActionRecord, recordOf } from '../../../src/agent/enforcement/action-record.ts';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { type SORTS, topLines, userLines, usersOf } from '../../../src/cli/output/top-screen.ts';
import { MIB } from '../../../src/common/quantity.ts';
import * as snapshots from '../../support/product/snapshots.ts';
import { grantOf } from '../agent/node.ts';

const exampleContainer = { ...snapshots.exampleContainer, podUid: 'u1' };
const exampleSnapshot: Snapshot = { ...snapshots.exampleSnapshot, containers: [exampleContainer] };
const BY_GPU = { sort: 'gpu', processes: false, width: 80 } as const;
const GIB = 1024 * MIB;

test('grants, whole GPUs, instances and foreign use share a table, by GPU and memory', (t) => {
  const local = {
    ...exampleContainer,
    podUid: '',
    namespace: 'local',
    pod: 'plain',
    usedBytes: 7 * GIB,
    compute: undefined,
  };
  const foreign = exampleSnapshot.foreign.map((one) => ({ ...one, smPercent: 35 }));
  const snapshot = {
    ...snapshots.withInstance,
    foreign,
    containers: [exampleContainer, { ...local, over: true, memoryKnown: true }],
  };
  t.deepEqual(userLines(snapshot, BY_GPU), [
    'GPU  CONTAINER         USED/GRANT MiB  COMPUTE %  ISOLATION   STATE',
    '  0  plain                  7168/4096  25/~30-60  interposer  OVER',
    '  0  team/train/main        3072/4096   25/30-60  interposer  within',
    '  1  0123456789ab              5120/-       35/-  none        NO GRANT',
    '  1  team/whole/main           1024/-       50/-  none        whole GPU',
    '  2  team/sliced/main             0/-        -/-  none        instance',
  ]);
});

test('processes stand below their container, the largest first; by SM the busiest', (t) => {
  const lines = (sort: 'gpu' | 'sm') => {
    const processes = [
      { pid: 7, command: 'small', usedBytes: MIB, smPercent: 20, types: 1, inLedger: true },
      { pid: 8, command: 'large\u001b[2J', usedBytes: GIB, smPercent: 5, types: 1, inLedger: true },
    ];
    const snapshot = {
      ...exampleSnapshot,
      assigned: [],
      foreign: [],
      containers: [{ ...exampleContainer, processes }],
    };
    return userLines(snapshot, { sort, processes: true, width: 80 }).slice(2);
  };
  t.deepEqual(lines('gpu'), [
    '       8 large [2J              1024          5',
    '       7 small                     1         20',
  ]);
  t.deepEqual(
    lines('sm').map((line) => line.trim().split(' ')[0]),
    ['7', '8'],
  );
});

test('a missing value sorts last and is no number', (t) => {
  const unreported = { ...exampleContainer, pod: 'untold', memoryKnown: false, smPercent: undefined };
  const snapshot = { ...exampleSnapshot, foreign: [], containers: [unreported, exampleContainer] };
  const order = (sort: (typeof SORTS)[number]) =>
    userLines(snapshot, { ...BY_GPU, sort })
      .slice(1)
      .map((line) => line.trim().split(/ +/)[1]);
  t.deepEqual(order('memory'), ['team/train/main', 'team/whole/main', 'team/untold/main']);
  t.deepEqual(order('sm'), ['team/whole/main', 'team/train/main', 'team/untold/main']);
  t.deepEqual(order('name'), ['team/train/main', 'team/untold/main', 'team/whole/main']);
  t.regex(userLines(snapshot, BY_GPU).find((line) => line.includes('untold')) ?? '', / -\/4096 +-\/30-60 .* unknown$/);
  const [device] = exampleSnapshot.devices;
  if (!device) throw new Error('no GPU in the example');
  const top = topLines({ ...snapshot, devices: [{ ...device, containers: undefined }] }, { ...BY_GPU, width: 200 });
  t.regex(top[4] ?? '', / - *$/);
});

const UUID = 'GPU-51a0c07e-4a27-4551-8d21-6e1004000000';
/** The record of a container that exceeds its memory or compute grant. */
function acted(
  action: ActionName,
  names: readonly [string, string, string],
  gpuUuid: string,
  share = false,
): ActionRecord {
  const [namespace, pod, container] = names;
  const memory = { gpuUuid, limitBytes: 1024 * MIB, usedBytes: 1224 * MIB, bypassBytes: 200 * MIB };
  const compute = { gpuUuid, limitRatio: 0.3, usedRatio: 0.8, chargedRatio: 0.3, seconds: 10 };
  return recordOf({
    grant: { ...grantOf('one', 1024), namespace, pod, container },
    action,
    atMs: 0,
    result: 'sent',
    verdict: share
      ? { severity: 'soft', reason: 'over-share', worst: compute }
      : { severity: 'hard', reason: 'bypass', worst: memory, overBytes: 200 * MIB },
  });
}

test('a terminal of no width has nothing on its lines, and any other no more than fits', (t) => {
  const recent = [acted('kill', ['team', 'train', 'main'], UUID)];
  for (let width = 0; width < 40; width += 1) {
    const lines = topLines({ ...exampleSnapshot, recent }, { sort: 'gpu', processes: true, width });
    t.deepEqual(
      lines.filter((line) => line.length > width),
      [],
      `${width}`,
    );
  }
});

test('no line is wider than the terminal, whatever the names, and each shows problems', (t) => {
  const name = fc.stringMatching(/^[a-z0-9-]{1,60}$/);
  t.notThrows(() => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(name, name, name), { maxLength: 6 }),
        fc.integer({ min: 40, max: 200 }),
        fc.constantFrom('memory', 'gpu'),
        fc.boolean(),
        (names, width, sort, processes) => {
          const containers = names.map(([namespace, pod, container], index) => ({
            ...exampleContainer,
            namespace,
            pod,
            container,
            fence: index === 0 ? ('none' as const) : exampleContainer.fence,
            over: true,
            bypassBytes: index * GIB,
          }));
          const recent = names.map((each, index) => acted('kill', each, index === 0 ? 'GPU-0' : UUID, index === 1));
          const lines = topLines({ ...exampleSnapshot, containers, recent }, { sort, processes, width });
          for (const line of lines) if (line.length > width) throw new Error(`${line.length} of ${width}: ${line}`);
          const over = lines.filter((line) => / OVER(, B.*)?$/.test(line));
          if (over.length !== names.length) throw new Error(`${over.length} of ${names.length}`);
          if (!lines.some((line) => / XID 119$/.test(line))) throw new Error('no Xid');
        },
      ),
    );
  });
});

test('a narrow terminal drops isolation and compute before a state', (t) => {
  const long = { namespace: 'a-namespace-of-some-length', pod: 'and-a-pod-with-a-hash-7c9f', over: true };
  const containers = [{ ...exampleContainer, ...long, bypassBytes: GIB }];
  const snapshot = { ...exampleSnapshot, assigned: [], foreign: [], containers };
  const shown = (width: number) => userLines(snapshot, { ...BY_GPU, width });
  t.deepEqual(
    [200, 91, 80, 60, 40].map((width) => shown(width)[1]),
    [
      '  0  a-namespace-of-some-length/and-a-pod-with-a-hash-7c9f/main       3072/4096   25/30-60  interposer  OVER, BYPASS 1024 MiB',
      '  0  …d-with-a-hash-7c9f/main       3072/4096   25/30-60  interposer  OVER, BYPASS 1024 MiB',
      '  0  …od-with-a-hash-7c9f/main       3072/4096   25/30-60  OVER, BYPASS 1024 MiB',
      '  0  …-a-hash-7c9f/main       3072/4096  OVER, BYPASS 1024 …',
      '  0  …9f/main       3072/4096  OVER, BY…',
    ],
  );
  t.regex(shown(89)[1] ?? '', /30-60 {2}interp… {2}OVER, BYPASS 1024 MiB$/);
  t.is(shown(40)[0], 'GPU  CONTAIN…  USED/GRANT MiB  STATE');
  t.is(usersOf(snapshot)[0]?.name, 'a-namespace-of-some-length/and-a-pod-with-a-hash-7c9f/main');
});

test('an action shows container, use, limit and GPU within 80 columns', (t) => {
  const names = ['local', 'rogue', 'env'] as const;
  const recent = [
    acted('kill', names, 'GPU-0'),
    acted('warn', ['research-vision-nightly', 'trainer-7c9f8d5b6-x2x9k', 'worker'], UUID),
    acted('kill', names, 'GPU-0', true),
    {
      ...acted('released', names, 'GPU-0'),
      reason: 'none',
      message: 'local/rogue/env: its GPU memory is free again',
    } as const,
  ];
  const shown = (width: number) =>
    topLines({ ...exampleSnapshot, recent }, { ...BY_GPU, width })
      .slice(-recent.length)
      .map((line) => line.replace(/^[\d:]{8} /, ''));
  t.deepEqual(shown(80), [
    'kill: local/rogue/env 1224 of 1024 MiB on GPU 0: exceeds its GPU memor…',
    'warn: …rainer-7c9f8d5b6-x2x9k/worker 1224 of 1024 MiB on GPU-51a0c07…:…',
    'kill: local/rogue/env 80 of 30 % on GPU 0: exceeds its GPU compute sha…',
    'released: local/rogue/env: its GPU memory is free again',
  ]);
  t.is(
    shown(200)[0],
    'kill: local/rogue/env 1224 of 1024 MiB on GPU 0: exceeds its GPU memory grant, 200 MiB of it past the interposer',
  );
});

test('a GPU shows its memory, power, temperature and problems', (t) => {
  const lines = topLines(exampleSnapshot, BY_GPU);
  t.is(lines[0], 'driver 580.65.06, mode enforce, sorted by gpu');
  t.is(lines[1], '1 of 3 GPUs with a fault, 1 without a grant');
  t.regex(lines[3] ?? '', /^GPU {2}MODEL +USED\/USABLE MiB {2}BUSY {2}TEMP +POWER {2}CONTAINERS {2}FAULT$/);
  t.regex(lines[4] ?? '', /^ {2}0 {2}NVIDIA L4 +6144\/24064 +40% +41C +31\/72W +1$/);
  t.regex(lines[5] ?? '', /^ {2}1 {2}.*odd.* +6144\/24576 +- +- +- +1 {2}XID 119$/);
});

test('of a full node a terminal shows what fits, those over their grant first', (t) => {
  const [like] = exampleSnapshot.devices;
  if (like === undefined) return t.fail('no GPU');
  const devices = Array.from({ length: 8 }, (_, index) => ({
    ...like,
    gpu: { ...like.gpu, index, healthy: index !== 6 },
  }));
  const containers = Array.from({ length: 400 }, (_, number) => ({
    ...{ ...exampleContainer, pod: `pod-${number}`, gpuIndex: number % 8 },
    over: number === 398,
  }));
  const full = { ...exampleSnapshot, devices, containers, assigned: [], foreign: [], recent: [] };
  for (const height of [24, 50]) {
    const lines = topLines(full, { ...BY_GPU, height });
    t.is(lines.length, height - 1, 'and a line for the cursor');
    t.is(lines[1], '1 of 8 GPUs with a fault, 1 of 400 containers with a problem');
    const head = lines.findIndex((line) => /^GPU +CONTAINER/.test(line));
    t.regex(lines[head + 1] ?? '', /pod-398.* OVER$/);
    t.true(lines.some((line) => /^… \d+ more lines; those with a problem are first$/.test(line)));
  }
  t.is(topLines(full, BY_GPU).length, 2 + 1 + 9 + 1 + 401 + 1, 'into a file go all');
  const few = { ...full, containers: containers.slice(0, 3) };
  t.deepEqual(topLines(few, { ...BY_GPU, height: 5 }), topLines(few, BY_GPU), 'no line says that no more are left');
});
