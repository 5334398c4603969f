// Sizes out of what an agent remembers: one container per name, whatever came and went under it.
import test from 'ava';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { fromSnapshots } from '../../../src/cli/commands/usage/recommend.ts';
import { recommendationLines } from '../../../src/cli/output/recommendation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { recommend } from '../../../src/policy/rightsizing.ts';
import { exampleContainer, exampleSnapshot } from '../../support/product/snapshots.ts';

type Totals = Snapshot['containerTotals'][number];
const [TOTALS] = exampleSnapshot.containerTotals;
const [KILL] = exampleSnapshot.kills;
if (TOTALS === undefined || KILL === undefined) throw new Error('the example lacks something');
const NONE = { memoryPercent: 0, coresPercent: 0 };

const ofPod = (grantId: string, mib: number, more: Partial<Totals> = {}): Totals => ({
  ...TOTALS,
  namespace: 'local',
  pod: 'train',
  container: 'main',
  grantId,
  gpuUuid: 'GPU-0',
  denied: 0,
  peakBytes: mib * MIB,
  ...more,
});
const snapshotOf = (snapshot: Partial<Snapshot>): Snapshot => ({
  ...exampleSnapshot,
  containers: [],
  containerTotals: [],
  assignedTotals: [],
  kills: [],
  ...snapshot,
});
const seen = (...snapshots: readonly Partial<Snapshot>[]) => fromSnapshots(snapshots.map(snapshotOf), {});
const PLAIN = ['0123456789ab', 'ba9876543210'] as const;
const POD = '0123456789abcdef01234567';

test('grants of one name are one container, on as many GPUs as it had at one time', (t) => {
  const now = { ...exampleContainer, namespace: 'local', pod: 'train', grantId: PLAIN[1], limitBytes: 1024 * MIB };
  const [one, ...more] = seen({
    containers: [now],
    containerTotals: [
      ofPod(PLAIN[0], 700, { smPeakRatio: 0.5, denied: 2, seenMs: 1 }),
      ofPod(PLAIN[0], 900, { gpuUuid: 'GPU-1', seenMs: 1 }),
      ofPod(PLAIN[1], 800, { smPeakRatio: undefined, denied: 1 }),
    ],
  });
  t.deepEqual(more, []);
  t.is(one?.gpuCount, 2);
  t.deepEqual(
    one?.gpus.map(({ gpuUuid, grantedBytes, memory, compute, denied }) => [
      gpuUuid,
      grantedBytes && grantedBytes / MIB,
      memory.peak / MIB,
      compute?.peak,
      denied,
    ]),
    [
      ['GPU-0', 1024, 800, 0.5, 3],
      ['GPU-1', undefined, 900, 0.25, 0],
    ],
  );
  const [moved] = seen({ containerTotals: [ofPod(PLAIN[0], 700), ofPod(PLAIN[1], 600, { gpuUuid: 'GPU-1' })] });
  t.is(moved?.gpuCount, 1);
});

test('a container that was stopped for its memory needs more than it had', (t) => {
  const kill = { ...KILL, namespace: 'local', pod: 'train', container: 'main', count: 2 };
  const containerTotals = [ofPod(PLAIN[0], 1224, { seenMs: 1 })];
  const linesOf = (kills: Snapshot['kills']) =>
    recommendationLines(
      seen({ containerTotals, kills }).map((one) => recommend(one, NONE)),
      'here',
    );
  const lines = linesOf([kill]);
  t.true(lines.includes('# local/train/main, at least: it was stopped for its memory'), lines.join('\n'));
  t.regex(lines[1] ?? '', / >1224 /);
  for (const other of [{ count: 0 }, { reason: 'over-share' }, { result: 'refused' }, { pod: 'other' }])
    t.true(linesOf([{ ...kill, ...other }]).includes('# local/train/main'), JSON.stringify(other));
});

test('a pod of a namespace called local is a pod, also when it has ended', (t) => {
  t.deepEqual(
    seen({ containerTotals: [ofPod(POD, 100, { seenMs: 1 })] }).map(({ plain }) => plain),
    [false],
  );
  t.deepEqual(
    seen({ containerTotals: [ofPod(PLAIN[0], 100, { seenMs: 1 })] }).map(({ plain }) => plain),
    [true],
  );
});

test('a whole GPU or a MIG instance is sized by its peak, once one was reported', (t) => {
  const [WHOLE] = exampleSnapshot.assignedTotals;
  if (WHOLE === undefined) throw new Error('the example lacks a whole GPU');
  const whole = (pod: string, gpuUuid: string, mib: number) => ({ ...WHOLE, pod, gpuUuid, peakBytes: mib * MIB });
  const assignedTotals = [whole('one', 'GPU-1', 700), whole('one', 'GPU-2', 900), whole('silent', 'GPU-3', 0)];
  const found = seen({ assignedTotals });
  t.deepEqual(
    found.map(({ pod, plain, gpuCount, gpus }) => [pod, plain, gpuCount, gpus.map(({ grantedBytes }) => grantedBytes)]),
    [['one', false, 2, [undefined, undefined]]],
  );
  t.deepEqual(
    found.map((one) => recommend(one, NONE).memory),
    [{ amount: 900 * MIB, atLeast: false }],
  );
});

test('a pod that moved between nodes is one container with its current grant', (t) => {
  const now = { ...exampleContainer, namespace: 'local', pod: 'train', grantId: POD, gpuUuid: 'GPU-9' };
  const kill = { ...KILL, namespace: 'local', pod: 'train', container: 'main', count: 1 };
  const earlier = { containerTotals: [ofPod(`a${POD.slice(1)}`, 700, { seenMs: 1 })], kills: [kill] };
  const later = { containers: [now], containerTotals: [ofPod(POD, 500, { gpuUuid: 'GPU-9' })], kills: [kill] };
  const [moved, ...more] = seen(earlier, later);
  t.deepEqual(more, []);
  t.like(moved, { gpuCount: 1, stops: 2, plain: false });
  t.deepEqual(
    moved?.gpus.map(({ gpuUuid, grantedBytes, memory }) => [gpuUuid, grantedBytes, memory.peak / MIB]),
    [
      ['GPU-0', undefined, 700],
      ['GPU-9', now.limitBytes, 500],
    ],
  );
  const plain = seen(
    { containerTotals: [ofPod(PLAIN[0], 1)], kills: [kill] },
    { containerTotals: [ofPod(PLAIN[1], 2)] },
  );
  t.deepEqual(
    plain.map(({ stops, gpus }) => [stops, gpus.map(({ memory }) => memory.peak / MIB)]),
    [
      [1, [1]],
      [0, [2]],
    ],
  );
});

test('compute that was asked for is kept where its use was not measured', (t) => {
  const gpu = { gpuUuid: 'GPU-0', grantedBytes: 1024 * MIB, grantedCoresPercent: 30, coresHeld: true, denied: 0 };
  const names = { namespace: 'local', pod: 'train', container: 'main', plain: true, stops: 0 };
  const gpus = [{ ...gpu, memory: { peak: 700 * MIB }, compute: undefined }];
  const lines = (gpuCount: number) =>
    recommendationLines([recommend({ ...names, gpuCount, gpus }, NONE)], 'here').filter((line) =>
      line.startsWith('cotenant run'),
    );
  t.deepEqual(lines(1), ['cotenant run --gpu-memory 700Mi --gpu-cores 30']);
  t.deepEqual(lines(2), ['cotenant run --gpus 2 --gpu-memory 1400Mi --gpu-cores 60']);
});

test('those too small come first, then those that need least, in 80 columns', (t) => {
  const containers = Array.from({ length: 400 }, (_, number) => {
    const memory = { p50: 0, p95: MIB, p99: MIB, peak: (900 - number) * MIB };
    const gpu = { gpuUuid: 'GPU-0', grantedBytes: 1024 * MIB, grantedCoresPercent: 2, coresHeld: true, memory };
    const gpus = [{ ...gpu, compute: undefined, denied: number === 7 ? 12 : 0 }];
    const names = { namespace: 'language-models', pod: `vllm-llama-3-70b-6d4cf56db6-${number}`, container: 'main' };
    return recommend({ ...names, plain: false, stops: 0, gpuCount: 1, gpus }, NONE);
  });
  const lines = recommendationLines(containers, 'here', 80);
  t.deepEqual(
    lines.filter((line) => line.length > 80),
    [],
  );
  t.regex(lines[0] ?? '', /^GPUS {2}CONTAINER +GRANT MiB .*NEEDED.* DENIED$/);
  t.deepEqual(
    [1, 2, 3].map((at) => /6d4cf56db6-(\d+)\/main/.exec(lines[at] ?? '')?.[1]),
    ['7', '399', '398'],
  );
  t.regex(lines[1] ?? '', / 12$/);
  t.deepEqual(lines.slice(401), ['', 'For lines to paste, name a pod.', '', 'here']);
});
