// The sampler's lines, each by itself: what is taken, and that nothing half-written, foreign or ill-typed becomes a
// figure.
import test from 'ava';
import fc from 'fast-check';
import { createSampleDecoder } from '../../../../src/agent/sampling/delta-decoder.ts';
import { parseLine, type SampleLine } from '../../../../src/agent/sampling/line-schema.ts';
import { compared, gpu, grantOf, ofGrant, reading, sampledProcess, sampleOf, use } from '../node.ts';

const good = (): SampleLine => ({
  ...sampleOf(
    [gpu(0), { ...gpu(1, { usedBytes: 2 ** 64 }), processLists: [] }],
    [sampledProcess(11, [use(0, { bytes: 5 }), use(1)]), { pid: 12, gone: true, gpus: [] }],
  ),
  removedPids: [],
  processCount: 2,
  utilizationCursors: [{ uuid: 'GPU-0', dayUs: 7, bootUs: 5, setUs: 0 }],
  errors: [{ call: 'nvmlDeviceGetMemoryInfo_v2', code: 3, count: 1 }],
});
const wrong = (line: string): string => {
  const found = parseLine(line);
  return found.ok ? 'taken' : found.error;
};

test('a line is read as written, also one without GPUs and one with a reason for that', (t) => {
  const empty = { ...sampleOf([], []), removedPids: [], processCount: 0, utilizationCursors: [] };
  const lines: SampleLine[] = [good(), empty, { ...empty, problem: 'no libnvidia-ml.so.1' }];
  for (const line of lines) t.deepEqual(parseLine(JSON.stringify(line)), { ok: true, value: line });
});

test('a field of a later sampler is no fault', (t) => {
  t.is(wrong(JSON.stringify({ ...good(), later: 1, gpus: [{ ...gpu(0), later: [] }] })), 'taken');
});

/** The good sample with one thing changed; undefined takes it away. */
function changed(path: readonly (string | number)[], value: unknown): string {
  const sample = JSON.parse(JSON.stringify(good())) as unknown;
  let place = sample as Record<string | number, unknown>;
  for (const step of path.slice(0, -1)) place = place[step] as Record<string | number, unknown>;
  const last = path.at(-1) ?? '';
  if (value === undefined) delete place[last];
  else place[last] = value;
  return JSON.stringify(sample);
}

test('an invalid sample is refused with the path of its error and the expected value', (t) => {
  const cases: [line: string, wrong: string][] = [
    ['[]', 'round: is missing'],
    ['null', 'null is not an object'],
    ['"text"', '"text" is not an object'],
    ['17', '17 is not an object'],
    ['{}', 'round: is missing'],
    [changed(['atMs'], undefined), 'atMs: is missing'],
    [changed(['atMs'], '1700000000000'), 'atMs: "1700000000000" is not a whole number'],
    [changed(['atMs'], -1), 'atMs: -1 is not a whole number'],
    [changed(['atMs'], 1.5), 'atMs: 1.5 is not a whole number'],
    [changed(['bootNs'], null), 'bootNs: null is not a whole number'],
    [changed(['driverVersion'], 580), 'driverVersion: 580 is not a text'],
    [changed(['problem'], false), 'problem: false is not a text'],
    [changed(['removedPids'], undefined), 'removedPids: is missing'],
    [changed(['removedPids'], [11, '12']), 'removedPids[1]: "12" is not a whole number'],
    [changed(['processCount'], undefined), 'processCount: is missing'],
    [changed(['utilizationCursors'], undefined), 'utilizationCursors: is missing'],
    [changed(['utilizationCursors', 0, 'bootUs'], -1), 'utilizationCursors[0].bootUs: -1 is not a whole number'],
    [changed(['gpus'], undefined), 'gpus: is missing'],
    [changed(['gpus'], { 0: {} }), 'gpus: an object is not a list'],
    [changed(['gpus', 1], null), 'gpus[1]: null is not an object'],
    [changed(['gpus', 1, 'uuid'], 7), 'gpus[1].uuid: 7 is not a text'],
    [changed(['gpus', 1, 'index'], '1'), 'gpus[1].index: "1" is not a whole number'],
    [changed(['gpus', 0, 'processLists'], ['compute', 1]), 'gpus[0].processLists[1]: 1 is not a text'],
    [changed(['gpus', 0, 'failedProcessLists'], 'graphics'), 'gpus[0].failedProcessLists: "graphics" is not a list'],
    [changed(['gpus', 0, 'healthy'], 'yes'), 'gpus[0].healthy: "yes" is not true or false'],
    [changed(['gpus', 0, 'smActivePpm'], 0.5), 'gpus[0].smActivePpm: 0.5 is not a whole number'],
    [changed(['gpus', 0, 'tensorActivePpm'], null), 'gpus[0].tensorActivePpm: null is not a whole number'],
    [changed(['gpus', 0, 'gpmDenied'], 1), 'gpus[0].gpmDenied: 1 is not true or false'],
    [changed(['gpus', 0, 'usedBytes'], '5'), 'gpus[0].usedBytes: "5" is not a whole number'],
    [changed(['processes'], 'none'), 'processes: "none" is not a list'],
    [changed(['processes', 0], []), 'processes[0].pid: is missing'],
    [changed(['processes', 0, 'pid'], undefined), 'processes[0].pid: is missing'],
    [changed(['processes', 0, 'pid'], -1), 'processes[0].pid: -1 is not a whole number'],
    [changed(['processes', 0, 'startTicks'], '12'), 'processes[0].startTicks: "12" is not a whole number'],
    [changed(['processes', 0, 'cgroup'], 5), 'processes[0].cgroup: 5 is not a text'],
    [changed(['processes', 0, 'ancestors'], ['1']), 'processes[0].ancestors[0]: "1" is not a whole number'],
    [changed(['processes', 0, 'gone'], 1), 'processes[0].gone: 1 is not true or false'],
    [changed(['processes', 1, 'gpus'], undefined), 'processes[1].gpus: is missing'],
    [changed(['processes', 0, 'gpus', 1], null), 'processes[0].gpus[1]: null is not an object'],
    [changed(['processes', 0, 'gpus', 0, 'bytes'], '5'), 'processes[0].gpus[0].bytes: "5" is not a whole number'],
    [changed(['processes', 0, 'gpus', 0, 'bytes'], null), 'processes[0].gpus[0].bytes: null is not a whole number'],
    [changed(['processes', 0, 'gpus', 0, 'smUs'], undefined), 'processes[0].gpus[0].smUs: is missing'],
    [changed(['processes', 0, 'gpus', 0, 'listed'], 0), 'processes[0].gpus[0].listed: 0 is not true or false'],
    [changed(['errors', 0, 'count'], undefined), 'errors[0].count: is missing'],
    ['{"round":1e999}', 'round: Infinity is not a whole number'],
  ];
  for (const [line, expected] of cases) t.is(wrong(line), expected, line);
});

test('a line that is cut anywhere, or is no JSON, is refused', (t) => {
  const line = JSON.stringify(good());
  for (let length = 0; length < line.length; length++) t.regex(wrong(line.slice(0, length)), /^it is not JSON$/);
  t.regex(wrong(`${line}${line}`), /^it is not JSON$/);
  t.regex(wrong('NVML: driver reset'), /^it is not JSON$/);
});

test('whatever is in a line, it is refused or can be compared without a fault', (t) => {
  const texts = ['driverVersion', 'gpus', 'processes', 'errors', 'left', 'utilizationCursors'];
  const fields = ['round', 'atMs', 'bootNs', 'cudaVersion', 'tookUs', 'total', ...texts];
  const value = fc.oneof(
    fc.jsonValue({ maxDepth: 2 }),
    fc.constantFrom<unknown>([null], [[]], [{}], [{ gpus: [null] }]),
  );
  const paths: (string | number)[][] = [
    ...fields.map((name) => [name]),
    ...['uuid', 'index', 'lists', 'usedBytes'].map((name) => ['gpus', 0, name]),
    ...['uuid', 'dayUs', 'bootUs', 'setUs'].map((name) => ['utilizationCursors', 0, name]),
    ...['pid', 'cgroup', 'gpus', 'startTicks', 'command'].map((name) => ['processes', 0, name]),
    ...['gpu', 'bytes', 'types', 'activeUs'].map((name) => ['processes', 0, 'gpus', 0, name]),
  ];
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.constantFrom(...paths), value, (path, put) => {
        const sample = createSampleDecoder().read(changed(path, put));
        if (!sample.ok) return;
        const state = compared(sample.value, [reading(grantOf('one', 1))], { 11: ofGrant('one') });
        const used = state.containers[0]?.gpus[0]?.usedBytes;
        if (!Number.isInteger(used)) throw new Error(`${path.join('.')} = ${JSON.stringify(put)} made ${used}`);
      }),
      { numRuns: 1000 },
    );
  });
});
