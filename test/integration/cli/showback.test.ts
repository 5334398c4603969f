// `cotenant showback` on recorded series: what it says of each namespace is what the simulator's books say.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { recordingRules } from '../../../dashboards/recording.ts';
import { AMOUNTS, KINDS, type Showback } from '../../../src/policy/chargeback.ts';
import { testUnless } from '../../support/gate.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { prometheusReason, startPrometheus } from '../../support/services/prometheus.ts';
import { findPromtool, run } from '../../support/services/promtool.ts';
import { type RecordedSeries, recordedFile } from '../../support/services/recorded.ts';

const ROOT = join(import.meta.dirname, '../../..');
const FIXTURES = join(ROOT, 'test/fixtures/prometheus');
const testWithPrometheus = testUnless(prometheusReason());
const END = '2026-11-01T00:06:03Z';
const TENANTS = { research: ['train', 'greedy'], web: ['serve'] } as const;
type Booked = { readonly atSeconds: number } & Readonly<
  Record<'train' | 'serve' | 'greedy', readonly { readonly bytes: number; readonly smSeconds: number }[]>
>;

const cotenant = (...args: readonly string[]) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(ROOT, 'src/cli/main.ts'), 'showback', ...args], {
    encoding: 'utf8',
  });
  return { code: status, out: stdout, err: stderr };
};
const books = JSON.parse(readFileSync(join(FIXTURES, 'books.json'), 'utf8')) as readonly Booked[];
/** Of a GPU, as the recorded pages tell them. */
const USABLE = 22_600 * 2 ** 20;

/** From the second scrape to the last. */
const SECONDS = 347;

/** GPU-hours of memory and compute by the books, from the second scrape on: the first was before there were tenants. */
function booked(namespace: keyof typeof TENANTS): { readonly memory: number; readonly compute: number } {
  const [, ...seen] = books;
  let gpuSeconds = 0;
  for (const [index, { atSeconds, ...tenants }] of seen.entries()) {
    const until = seen[index + 1]?.atSeconds ?? atSeconds;
    for (const name of TENANTS[namespace])
      gpuSeconds += (tenants[name].reduce((sum, { bytes }) => sum + bytes, 0) / USABLE) * (until - atSeconds);
  }
  const smSeconds = TENANTS[namespace].flatMap((name) => seen.at(-1)?.[name].map((gpu) => gpu.smSeconds) ?? []);
  return { memory: gpuSeconds / 3600, compute: smSeconds.reduce((sum, value) => sum + value, 0) / 3600 };
}

testWithPrometheus("a namespace's use is the simulator's, and the unused part of grants is wasted", async (t) => {
  t.timeout(180_000);
  const prometheus = await startPrometheus(t, { recorded: join(FIXTURES, 'node.om') });
  const range = ['--prometheus', prometheus.url, '--range', '6m', '--until', END];
  const { code, out, err } = cotenant(...range, '--json');
  t.is(code, 0, err);
  const { shares, total, gpuHours } = JSON.parse(out) as Showback;
  t.deepEqual(
    shares.map(({ namespace }) => namespace),
    ['research', 'web'],
  );
  const near = (value: number, expected: number, within: number, what: string) =>
    t.true(Math.abs(value - expected) <= expected * within, `${what}: ${value}, and not ${expected}`);
  near(gpuHours, (2 * 360) / 3600, 0.02, 'gpus');
  for (const { namespace, memory, compute } of shares) {
    const expected = booked(namespace as keyof typeof TENANTS);
    near(memory.used, expected.memory, 0.03, `memory of ${namespace}`);
    // The driver's samples name one process each: docs/reference/metrics.md says how far that is off, and this is three
    // times that.
    const ratio = (expected.compute * 3600) / SECONDS;
    const error = Math.sqrt((ratio * (1 - ratio)) / (7.2 * SECONDS)) / ratio;
    near(compute.used, expected.compute, 3 * error, `compute of ${namespace}`);
    near(memory.wasted, memory.granted - memory.used, 0.01, `wasted memory of ${namespace}`);
    t.true(compute.wasted > 0 && compute.wasted < compute.granted);
  }
  const hours = SECONDS / 3600;
  const [research, web] = shares;
  near(research?.memory.granted ?? 0, ((10_240 * 2 ** 20) / USABLE) * hours, 0.03, 'granted to research');
  near(web?.memory.granted ?? 0, ((9216 * 2 ** 20) / USABLE) * hours, 0.03, 'granted to web');
  near(research?.compute.granted ?? 0, 0.5 * hours, 0.03, 'compute granted to research');
  t.is(total.memory.used, (research?.memory.used ?? 0) + (web?.memory.used ?? 0));

  const table = cotenant(...range).out.split('\n');
  t.regex(table[0] ?? '', /^ +MEMORY +COMPUTE$/);
  t.regex(table[1] ?? '', /^NAMESPACE +GRANTED +USED +WASTED +GRANTED +USED +WASTED$/);
  t.regex(table[4] ?? '', /^all +0\.\d\d /);
  t.regex(
    table[6] ?? '',
    /^GPU-hours, of 0\.20 that the GPUs had: 4\d% of the memory was granted, and 7\d% of that left idle; /,
  );
  const csv = cotenant(...range, '-o', 'csv', '-n', 'web')
    .out.trimEnd()
    .split('\n');
  t.is(csv.length, 2);
  t.is(csv[0]?.split(',').length, 7);
  t.deepEqual(csv[1]?.split(',').slice(0, 3), ['web', web?.memory.granted.toFixed(6), web?.memory.used.toFixed(6)]);
});

testWithPrometheus('the recording rules give the same hours', async (t) => {
  t.timeout(180_000);
  // What the rules would have recorded of the same series, as promtool makes it up afterwards.
  const first = await startPrometheus(t, { recorded: join(FIXTURES, 'node.om') });
  const folder = temporaryFolder(t);
  writeFileSync(
    join(folder, 'rules.yaml'),
    stringify({ groups: recordingRules().groups.map((group) => ({ ...group, interval: '5s' })) }),
  );
  const promtool = findPromtool();
  const at = (text: string) => String(Date.parse(text) / 1000);
  const made = run(
    'path' in promtool ? promtool.path : '',
    [
      ...['tsdb', 'create-blocks-from', 'rules', `--start=${at('2026-11-01T00:00:00Z')}`, `--end=${at(END)}`],
      ...[
        `--url=${first.url}`,
        `--output-dir=${join(folder, 'blocks')}`,
        '--eval-interval=15s',
        join(folder, 'rules.yaml'),
      ],
    ],
    folder,
    60_000,
  );
  t.true(made.ok, made.stdout + made.stderr);
  const second = await startPrometheus(t, { recorded: join(FIXTURES, 'node.om'), blocks: join(folder, 'blocks') });
  const range = ['--prometheus', second.url, '--range', '6m', '--until', END, '--json'];
  const [raw, recorded] = [cotenant(...range), cotenant(...range, '--recorded')].map(
    ({ out }) => JSON.parse(out) as Showback,
  );
  t.is(recorded?.shares.length, 2);
  for (const [index, share] of (raw?.shares ?? []).entries()) {
    const same = recorded?.shares[index];
    for (const amount of ['granted', 'used', 'wasted'] as const) {
      const [one, other] = [share.memory[amount], same?.memory[amount] ?? 0];
      t.true(Math.abs(one - other) < one * 0.1, `${share.namespace} ${amount}: ${one} and ${other}`);
    }
    t.true(Math.abs((same?.compute.granted ?? 0) - share.compute.granted) < share.compute.granted * 0.1);
  }
});

const HOUR = 3600;
const FROM = Date.parse('2026-11-01T00:00:00Z') / 1000;
const GIB = 2 ** 30;
const GPU = 20 * GIB;

/** Three hours of one container with half of a GPU, one with all of another, and one with an instance of a third. */
function threeWays(more: Readonly<Record<string, string>>): RecordedSeries[] {
  const target = { job: 'cotenant', instance: 'node-1', ...more };
  const of = (namespace: string, mode: string, gpu_uuid: string, figures: Readonly<Record<string, number>>) =>
    Object.entries(figures).map(([name, value]): RecordedSeries => {
      const run = name === 'info' && { pod_uid: namespace, container_id: 'c', runtime: 'container', fence: 'none' };
      const labels = { ...target, gpu: '0', gpu_uuid, namespace, pod: 'p', container: 'main', mode, ...run };
      return {
        metric: `cotenant_container_${name}`,
        labels: { ...labels, ...(name === 'sm_limit_ratio' && { enforced: 'true' }) },
        at: (second) => (name.endsWith('_total') ? value * second : value),
      };
    });
  const gpu = (gpu_uuid: string, bytes: number): RecordedSeries => ({
    metric: 'cotenant_device_memory_total_bytes',
    labels: { ...target, gpu: '0', gpu_uuid },
    at: () => bytes,
  });
  return [
    ...['GPU-a', 'GPU-b', 'GPU-c'].map((uuid) => gpu(uuid, GPU)),
    gpu('MIG-d', GPU / 4),
    ...of('half', 'shared', 'GPU-a', {
      info: 1,
      memory_limit_bytes: GPU / 2,
      memory_used_bytes: GPU / 4,
      sm_limit_ratio: 0.5,
      sm_seconds_total: 0.25,
    }),
    ...of('whole', 'exclusive', 'GPU-b', { info: 1, memory_used_bytes: GPU / 4, sm_seconds_total: 0.25 }),
    ...of('instance', 'mig', 'MIG-d', { info: 1, memory_used_bytes: GPU / 4, sm_seconds_total: 0.25 }),
  ];
}

for (const more of [{}, { cluster: 'east', node: 'node-1' }])
  testWithPrometheus(
    `GPU hours count idle whole GPUs as wasted, no instances (labels: ${Object.keys(more).join()})`,
    async (t) => {
      t.timeout(180_000);
      const recorded = recordedFile(t, threeWays(more), { from: FROM, seconds: 3 * HOUR, everySeconds: 15 });
      const prometheus = await startPrometheus(t, { recorded });
      const figures = {
        memory: { granted: 0.5, used: 0.25, wasted: 0.25 },
        compute: { granted: 0.5, used: 0.25, wasted: 0.25 },
      };
      const all = {
        memory: { granted: 1, used: 0.25, wasted: 0.75 },
        compute: { granted: 1, used: 0.25, wasted: 0.75 },
      };
      // Aligned to a minute, and not; ranges of whole steps, and not.
      for (const second of [2 * HOUR, 2 * HOUR + 17])
        for (const range of [HOUR, 90, 3700]) {
          const until = new Date((FROM + second) * 1000).toISOString();
          const argv = ['--prometheus', prometheus.url, '--range', `${range}s`, '--until', until, '--json'];
          const { code, out, err } = cotenant(...argv);
          t.is(code, 0, err);
          const { shares, gpuHours } = JSON.parse(out) as Showback;
          const near = (value: number, expected: number, what: string) =>
            t.true(
              Math.abs((value * HOUR) / range - expected) < 1e-3,
              `${what} of ${range} s: ${value}, and not ${expected}`,
            );
          near(gpuHours, 3, 'gpus');
          t.deepEqual(
            shares.map(({ namespace }) => namespace),
            ['whole', 'half'],
          );
          for (const share of shares)
            for (const kind of KINDS)
              for (const amount of AMOUNTS) {
                const expected = (share.namespace === 'half' ? figures : all)[kind][amount];
                near(share[kind][amount], expected, `${share.namespace} ${kind} ${amount}`);
              }
        }
    },
  );
