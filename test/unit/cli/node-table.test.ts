// The node as text: columns that line up, bars that never overflow, and the label of each state.
import test from 'ava';
import fc from 'fast-check';
import type { ComputeUse } from '../../../src/agent/compute/usage-account.ts';
import type { Snapshot, SnapshotContainer } from '../../../src/agent/snapshot/snapshot.ts';
import { jsonText } from '../../../src/cli/lib/text.ts';
import { columns } from '../../../src/cli/output/columns.ts';
import {
  actionRows,
  gpuRows,
  nodeLines,
  policyOf,
  standing,
  stateOf,
  tenantName,
  tenantRows,
} from '../../../src/cli/output/node-table.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { exampleContainer, idleSelf } from '../../support/product/snapshots.ts';
import { gpu } from '../agent/node.ts';

const container = (more: Partial<SnapshotContainer> = {}): SnapshotContainer => ({
  grantId: 'abc123',
  namespace: 'local',
  pod: 'trainer',
  container: 'python',
  podUid: '',
  containerId: '',
  withoutGpus: false,
  gpuUuid: 'GPU-0',
  gpuIndex: 0,
  fence: 'interposer',
  enforcement: { mode: 'enforce', by: 'node' },
  isolateMemory: true,
  tampered: false,
  limitBytes: 1000 * MIB,
  coresPercent: 0,
  coresLimitPercent: undefined,
  computePolicy: 'native',
  priority: 'normal',
  computeWeight: 0,
  usedBytes: 500 * MIB,
  bypassBytes: 0,
  ledger: { contextBytes: 0, managedBytes: 0, poolBytes: 0, bufferBytes: 0 },
  smPercent: 12,
  lastActiveMs: undefined,
  over: false,
  overShare: false,
  engines: { processes: [], refused: 0, outdated: false },
  observed: { debugger: 0, profiler: 0 },
  processesKnown: true,
  memoryKnown: true,
  processes: [],
  ...more,
});
const device = (more: Parameters<typeof gpu>[1], grantedMib = 0, containers = 0): Snapshot['devices'][number] => ({
  gpu: gpu(0, more),
  mode: 'none',
  compute: { policy: 'native', source: 'configuration' },
  fences: {},
  grantedBytes: grantedMib * MIB,
  grantedCoresPercent: 0,
  containers,
  processes: { compute: 0, graphics: 0, both: 0, mps: 0 },
  unattributedBytes: 0,
});
const snapshot = (more: Partial<Snapshot>): Snapshot => ({
  atMs: 0,
  driverVersion: '',
  cudaVersion: 0,
  xids: [],
  devices: [],
  containers: [],
  assigned: [],
  unknownDevices: 0,
  foreign: [],
  containerTotals: [],
  assignedTotals: [],
  foreignTotals: [],
  kills: [],
  errors: [],
  recent: [],
  self: idleSelf,
  ...more,
});

test('columns fit their widest cell, aligned as requested, without trailing spaces', (t) => {
  t.deepEqual(
    columns(
      [
        ['A', 'BBB', 'C'],
        ['aaa', 'b', ''],
        ['a', 'bb', 'cccc'],
      ],
      ['left', 'right'],
    ),
    ['A    BBB  C', 'aaa    b', 'a     bb  cccc'],
  );
  t.deepEqual(columns([]), []);
  t.deepEqual(columns([['a', 'b'], ['c']]), ['a  b', 'c']);
});

test('no text of a tenant is more than text to a terminal', (t) => {
  const hostile = '\u001b]0;owned\u0007\u001b[2J\u009b31m\r\nnext\u202e';
  const lines = nodeLines(
    snapshot({
      devices: [device({ name: hostile })],
      containers: [container({ pod: hostile, grantId: hostile })],
      recent: [{ atMs: 0, action: 'warn', message: hostile, result: 'done' }],
      self: { ...snapshot({}).self, up: false, problem: hostile },
    }),
  );
  for (const line of lines) t.notRegex(line, /[\p{Cc}\p{Cf}]/u, JSON.stringify(line));
  t.is(lines.filter((line) => line.includes(']0;owned [2J 31m next')).length, 4);
  t.deepEqual(columns([['  in', 'b']]), ['  in  b'], 'blanks at the beginning stay');
  t.is(columns([['x'.repeat(10_000), 'b']])[0]?.length, 400 + '…  b'.length);
  const json = jsonText({ pod: hostile, more: [1] });
  t.notRegex(json.replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u);
  t.deepEqual(JSON.parse(json), { pod: hostile, more: [1] });
});

test('in every table each column begins at the same place in every row', (t) => {
  const cell = fc.stringMatching(/^[a-z0-9]{1,8}$/);
  const rows = fc
    .integer({ min: 1, max: 5 })
    .chain((width) => fc.array(fc.array(cell, { minLength: width, maxLength: width }), { minLength: 1, maxLength: 6 }));
  t.notThrows(() => {
    fc.assert(
      fc.property(rows, (table) => {
        const lines = columns(table);
        if (lines.length !== table.length) throw new Error('a row is missing');
        let at = 0;
        for (const index of (table[0] ?? []).keys()) {
          for (const [row, line] of lines.entries()) {
            if (!line.startsWith(table[row]?.[index] ?? '-', at)) throw new Error(`column ${index}: ${line}`);
          }
          at += Math.max(...table.map((row) => row[index]?.length ?? 0)) + 2;
        }
      }),
    );
  });
});

test('GPUs show used, usable and granted memory, and missing driver data', (t) => {
  const rows = gpuRows(
    snapshot({
      devices: [
        device(
          { totalBytes: 24_000 * MIB, reservedBytes: 500 * MIB, usedBytes: 11_750 * MIB, utilizationPercent: 73 },
          8192,
          2,
        ),
        device({ index: 11, totalBytes: undefined as never, usedBytes: undefined as never, healthy: false }),
      ],
    }),
  );
  t.deepEqual(rows, [
    'GPU  MODEL                          USED MiB  USABLE  GRANTED  BUSY  CONTAINERS  POLICY',
    '  0  NVIDIA L4  [########........]     11750   23500     8192   73%           2  native',
    ' 11  NVIDIA L4  [................]         -       0        0     -           0  native  LOST',
  ]);
});

test('missing driver data of a tenant is not 0, and no verdict is shown', (t) => {
  const unreported = container({ usedBytes: 0, memoryKnown: false, processesKnown: false });
  t.is(stateOf(unreported), 'unknown');
  t.is(stateOf({ ...unreported, over: true, usedBytes: 2000 * MIB }), 'OVER', 'by what is reported');
  t.regex(tenantRows(snapshot({ containers: [unreported] }))[1] ?? '', /^ +0 +trainer +- +1000 .* abc123 +unknown$/);
  const unlisted = { ...device({ processLists: [] }), containers: undefined };
  t.regex(gpuRows(snapshot({ devices: [unlisted] }))[1] ?? '', / - +native$/);
});

test('those with a problem are first, bars end, and unenforced compute is marked', (t) => {
  const rows = tenantRows(
    snapshot({
      containers: [
        container(),
        container({
          pod: 'a',
          usedBytes: 5000 * MIB,
          over: true,
          coresPercent: 25,
          enforcement: { mode: 'report', by: 'namespace' },
          fence: 'agent',
          grantId: 'd',
        }),
        container({
          pod: 'b',
          usedBytes: 0,
          limitBytes: 0,
          coresPercent: 20,
          coresLimitPercent: 60,
          computePolicy: 'soft',
          priority: 'high',
          compute: { ...exampleContainer.compute } as ComputeUse,
        }),
      ],
    }),
  );
  t.deepEqual(rows, [
    'GPU  CONTAINER                      USED MiB  GRANT  COMPUTE %  POLICY      ISOLATION   MODE               ID      STATE',
    '  0  a          [################]      5000   1000     12/~25  native      agent       report, namespace  d       OVER',
    '  0  trainer    [########........]       500   1000       12/-  native      interposer  enforce            abc123  within',
    '  0  b          [................]         0      0   12/20-60  soft, high  interposer  enforce            abc123  within',
  ]);
});

test('a full node says in one line what is wrong, and fits the terminal', (t) => {
  const names = { namespace: 'language-models', pod: 'vllm-llama-3-70b-6d4cf56db6-100sx', container: 'main' };
  const containers = Array.from({ length: 400 }, (_, number) =>
    container({ ...names, podUid: `u${number}`, gpuIndex: number % 8, over: number === 398, limitBytes: 1000 * MIB }),
  );
  const devices = Array.from({ length: 8 }, (_, index) => device({ index, healthy: index !== 6 }, 900, 50));
  const full = snapshot({ devices, containers });
  t.is(standing(full), '1 of 8 GPUs with a fault, 1 of 400 containers with a problem');
  t.is(standing(snapshot({ containers: [container()] })), 'all well');
  t.is(standing(snapshot({ self: { ...idleSelf, up: false } })), '', 'nothing is known');
  for (const width of [40, 80, 120]) {
    const lines = nodeLines(full, width);
    t.deepEqual(
      lines.filter((line) => line.length > width),
      [],
      `${width}`,
    );
    t.is(lines[1], width === 40 ? '1 of 8 GPUs with a fault, 1 of 400 cont…' : standing(full));
    const head = lines.findIndex((line) => /^GPU +CONTAIN/.test(line));
    t.true(head < 24 - 1);
    t.regex(lines[head + 1] ?? '', /0sx\/main .* OVER$/, `${width}: it is the first`);
  }
});

test("a process grant shows its name, a pod's container all of its names", (t) => {
  t.is(tenantName(container()), 'trainer');
  t.is(tenantName(container({ podUid: 'u1' })), 'local/trainer/python');
  t.is(tenantName(container({ podUid: 'u1', namespace: 'team' })), 'team/trainer/python');
});

test('a state lists every problem', (t) => {
  const cases: [Partial<SnapshotContainer>, string][] = [
    [{}, 'within'],
    [{ usedBytes: 1000 * MIB }, 'within'],
    [{ usedBytes: 1020 * MIB }, '20 MiB above, tolerated'],
    [{ usedBytes: 1200 * MIB, over: true }, 'OVER'],
    [{ bypassBytes: 100 * MIB }, 'BYPASS 100 MiB'],
    [{ overShare: true }, 'OVER SHARE'],
    [{ tampered: true }, 'LEDGER DAMAGED'],
    [{ withoutGpus: true }, 'NO GPUS'],
    [
      { usedBytes: 3000 * MIB, over: true, bypassBytes: 2900 * MIB, tampered: true },
      'OVER, BYPASS 2900 MiB, LEDGER DAMAGED',
    ],
  ];
  for (const [more, expected] of cases) t.is(stateOf(container(more)), expected);
});

test('the last actions, as many as are asked for, oldest first', (t) => {
  const recent = ['one', 'two', 'three'].map((message, index) => ({
    atMs: new Date(2026, 0, 2, 15, 4, index).getTime(),
    action: 'warn' as const,
    message,
    result: 'done' as const,
  }));
  t.deepEqual(actionRows(snapshot({ recent }), 2), ['15:04:01 warn: two', '15:04:02 warn: three']);
  t.deepEqual(actionRows(snapshot({}), 5), []);
});

test('a tenant without memory isolation is shown as such, whatever it holds', (t) => {
  const cases: [more: Partial<SnapshotContainer>, state: string][] = [
    [{ isolateMemory: false }, 'NOT ISOLATED'],
    [{ isolateMemory: false, usedBytes: 1300 * MIB }, 'NOT ISOLATED, 300 MiB above'],
    [{ usedBytes: 1300 * MIB }, '300 MiB above, tolerated'],
    [{ isolateMemory: false, overShare: true }, 'NOT ISOLATED, OVER SHARE'],
  ];
  for (const [more, state] of cases) t.is(stateOf(container(more)), state);
});

test('a tenant that asked for no compute is not native on a GPU that divides', (t) => {
  t.is(policyOf(container(), 'fixed'), 'undivided');
  t.is(policyOf(container(), 'native'), 'native');
  t.is(policyOf(container({ coresPercent: 30 }), 'fixed'), 'native');
  t.is(policyOf(container({ computePolicy: 'fixed' }), 'fixed'), 'fixed');
  const fixed = { ...device({}), compute: { policy: 'fixed', source: 'configuration' } as const };
  const [, row = ''] = tenantRows(snapshot({ devices: [fixed], containers: [container()] }));
  t.regex(row, / 12\/- +undivided +interposer /);
});
