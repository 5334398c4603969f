// `cotenant recommend` on series that are recorded for the test: golden sizes, moved and restarted containers, and answers
// of servers that fail.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { testUnless } from '../../support/gate.ts';
import { runCotenant } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';
import { prometheusReason, startPrometheus } from '../../support/services/prometheus.ts';
import { type RecordedSeries, recordedFile } from '../../support/services/recorded.ts';

const ROOT = join(import.meta.dirname, '../../..');
const testWithPrometheus = testUnless(prometheusReason());

const GOLDEN = join(ROOT, 'test/golden/cli/recommend.txt');

testWithPrometheus('the sizes of recorded series are the golden ones', async (t) => {
  t.timeout(180_000);
  const recorded = join(ROOT, 'test/fixtures/prometheus/node.om');
  const prometheus = await startPrometheus(t, { recorded });
  const range = ['--range', '10m', '--until', '2026-11-01T00:06:10Z', '--window', '1m'];
  const reported: string[] = [];
  for (const argv of [
    [],
    ['--memory-headroom', '20', '--cores-headroom', '10', '-n', 'research'],
    ['serve', '-o', 'json'],
  ]) {
    const { code, out, err } = await runCotenant('recommend', '--prometheus', prometheus.url, ...range, ...argv);
    t.is(code, 0, err);
    reported.push(
      `$ cotenant recommend ${argv.join(' ')}\n${out.replaceAll(prometheus.url, 'http://prometheus:9090')}`,
    );
  }
  const text = reported.join('\n');
  if (process.env.UPDATE_GOLDEN === '1') writeFileSync(GOLDEN, text);
  t.is(text, readFileSync(GOLDEN, 'utf8'));
});

type Recommended = {
  readonly pod: string;
  readonly gpuCount: number;
  readonly stops: number;
  readonly gpus: readonly { readonly denied: number }[];
  readonly memoryBytes: { readonly amount: number; readonly atLeast: boolean };
  readonly resources: Readonly<Record<string, string>>;
};
const FROM = Date.parse('2026-11-01T00:00:00Z') / 1000;
const HOUR = 3600;
const HOURS = 4;

/** What an agent tells of a container, from one second to another. */
function containerSeries(
  pod: string,
  gpu: string,
  from: number,
  until: number,
  figures: { readonly [metric: string]: (second: number) => number },
  more: Readonly<Record<string, string>> = {},
): RecordedSeries[] {
  const labels = { job: 'cotenant', instance: 'node-1', gpu: '0', gpu_uuid: gpu, namespace: 'web', pod, ...more };
  return Object.entries(figures).map(([metric, at]) => ({
    metric: `cotenant_container_${metric}`,
    labels: { ...labels, container: 'main' },
    at: (second) => (second >= from && second < until ? at(second) : undefined),
  }));
}
const held = (mib: number, grantMib: number) => ({
  info: () => 1,
  memory_peak_bytes: () => mib * MIB,
  memory_used_bytes: () => mib * MIB,
  memory_limit_bytes: () => grantMib * MIB,
});
const stopSeries = (
  pod: string,
  from: number,
  until: number,
  of: Record<string, string>,
  at: (second: number) => number,
) => containerSeries(pod, 'GPU-a', from, until, { kills_total: at }, { action: 'kill', reason: 'bypass', ...of });

testWithPrometheus('a moved container counts the GPUs at one time; a refusal or stop needs more', async (t) => {
  t.timeout(180_000);
  const end = HOURS * HOUR + 1;
  /** No scrape for half an hour; the range begins in it. */
  const isScraped = (second: number) => second < 1.5 * HOUR || second >= 2 * HOUR;
  const series: RecordedSeries[] = [
    { metric: 'cotenant_up', labels: { job: 'cotenant', instance: 'node-1' }, at: () => 1 },
    // One after the other, and both at once.
    ...containerSeries('moved', 'GPU-a', 0, 2.5 * HOUR, held(4000, 8192)),
    ...containerSeries('moved', 'GPU-b', 2.75 * HOUR, end, held(3000, 8192)),
    ...containerSeries('wide', 'GPU-a', 0, end, held(1000, 2048)),
    ...containerSeries('wide', 'GPU-b', 0, end, held(1500, 2048)),
    // Refused long before the range.
    ...containerSeries('before', 'GPU-a', 0, end, { ...held(100, 1024), allocations_denied_total: () => 5 }),
    // Refused before it was first scraped, within the range.
    ...containerSeries('born', 'GPU-a', 3 * HOUR, end, { ...held(100, 1024), allocations_denied_total: () => 3 }),
    ...containerSeries('refused', 'GPU-a', 0, end, {
      ...held(100, 1024),
      allocations_denied_total: (second) => (second < 3 * HOUR ? 5 : 7),
    }),
    ...containerSeries('stopped', 'GPU-a', 0, end, held(1224, 1024)),
    ...stopSeries('stopped', 0, end, { result: 'released' }, (second) => (second < 3 * HOUR ? 0 : 2)),
    // Stopped for its compute; not stopped at all; stopped before the range.
    ...['over-share', 'refused', 'long ago'].flatMap((pod) => containerSeries(pod, 'GPU-a', 0, end, held(100, 1024))),
    ...stopSeries('over-share', 0, end, { reason: 'over-share', result: 'released' }, (second) =>
      second < 3 * HOUR ? 0 : 2,
    ),
    ...stopSeries('refused', 0, end, { result: 'refused' }, (second) => (second < 3 * HOUR ? 0 : 2)),
    ...stopSeries('long ago', 0, end, { result: 'released' }, () => 2),
  ].map((one) => ({ ...one, at: (second) => (isScraped(second) ? one.at(second) : undefined) }));
  const recorded = recordedFile(t, series, { from: FROM, seconds: HOURS * HOUR, everySeconds: 30 });
  const prometheus = await startPrometheus(t, { recorded });
  const until = new Date((FROM + HOURS * HOUR) * 1000).toISOString();
  const of = async (range: string) => {
    const argv = ['--prometheus', prometheus.url, '--range', range, '--until', until, '--json'];
    const { code, out, err } = await runCotenant('recommend', ...argv);
    t.is(code, 0, err);
    const reported = JSON.parse(out) as Recommended[];
    return Object.fromEntries(
      reported.map(({ pod, gpuCount, stops, gpus, memoryBytes, resources }) => {
        const sum = gpus.reduce((total, gpu) => total + gpu.denied, 0);
        const { amount, atLeast } = memoryBytes;
        return [
          pod,
          [gpuCount, sum, stops, `${atLeast ? '>' : ''}${amount / MIB}`, resources['cotenant.io/gpu-memory']],
        ];
      }),
    );
  };
  const expected = {
    before: [1, 0, 0, '100', '100Mi'],
    born: [1, 3, 0, '>1024', '1Gi'],
    'long ago': [1, 0, 0, '100', '100Mi'],
    moved: [1, 0, 0, '4000', '4000Mi'],
    'over-share': [1, 0, 0, '100', '100Mi'],
    refused: [1, 2, 0, '>1024', '1Gi'],
    stopped: [1, 0, 2, '>1224', '1224Mi'],
    wide: [2, 0, 0, '1500', '3000Mi'],
  };
  t.deepEqual(await of('3h'), expected);
  // The range begins where nothing was recorded: half an hour, and then a day.
  t.deepEqual(await of('8100s'), expected);
  t.deepEqual(await of('1d'), expected);
});

testWithPrometheus('refusals that a restarted agent restores are not counted as new ones', async (t) => {
  t.timeout(180_000);
  const isBlind = (second: number) => second >= 3 * HOUR && second < 3.25 * HOUR;
  const series: RecordedSeries[] = [
    {
      metric: 'cotenant_up',
      labels: { job: 'cotenant', instance: 'node-1' },
      at: (second) => (isBlind(second) ? 0 : 1),
    },
    ...containerSeries('restored', 'GPU-a', 0, HOURS * HOUR + 1, {
      ...held(100, 1024),
      allocations_denied_total: () => 500,
    }).map(({ at, ...one }) => ({ ...one, at: (second: number) => (isBlind(second) ? undefined : at(second)) })),
  ];
  const recorded = recordedFile(t, series, { from: FROM, seconds: HOURS * HOUR, everySeconds: 30 });
  const prometheus = await startPrometheus(t, { recorded });
  const until = new Date((FROM + HOURS * HOUR) * 1000).toISOString();
  const argv = ['--prometheus', prometheus.url, '--range', '3h', '--until', until, '--json'];
  const { out, err } = await runCotenant('recommend', ...argv);
  const [reported] = JSON.parse(out) as Recommended[];
  t.deepEqual([reported?.pod, reported?.gpus[0]?.denied, reported?.memoryBytes.atLeast], ['restored', 0, false], err);
});

testWithPrometheus('a server that is not Prometheus, or refuses, is reported in one sentence', async (t) => {
  const prometheus = await startPrometheus(t, {});
  const cases: readonly (readonly [args: readonly string[], says: RegExp])[] = [
    [['--prometheus', 'http://127.0.0.1:1'], /^cotenant: no Prometheus answers at http:\/\/127\.0\.0\.1:1 \(.+\)\n$/],
    [['--prometheus', 'prometheus'], /^cotenant: --prometheus prometheus: want an address such as http:/],
    [['--prometheus', `${prometheus.url}/graph`], /does not answer as a Prometheus does \(status 40[45]\): /],
    [
      ['--prometheus', prometheus.url, '--range', '1y'],
      /^cotenant: --range 1y: want 60s to 400d, such as 12h, 7d or 4w\n$/,
    ],
    [['--prometheus', prometheus.url, '--until', 'soon'], /^cotenant: --until soon: want a time such as 2026-/],
    [['--prometheus', prometheus.url, '--window', '5s'], /^cotenant: --window 5s: want 1m to 1h\n$/],
    [['--prometheus', prometheus.url, '--state', '/tmp'], /^cotenant: --state names an agent of this machine, /],
    [['--range', '1d'], /^cotenant: --range is about a Prometheus: name one with --prometheus URL\n$/],
    [['--memory-headroom', 'much'], /^cotenant: --memory-headroom much: want 0 to 999\n$/],
    [['a/b', '-n', 'c'], /^cotenant: -n c and a\/b name two namespaces: want one\n$/],
  ];
  for (const [args, says] of cases) {
    const { code, err } = await runCotenant('recommend', ...args);
    t.is(code, 2, args.join(' '));
    t.regex(err, says);
  }
  const empty = await runCotenant('recommend', '--prometheus', prometheus.url);
  t.is(empty.code, 1);
  t.regex(empty.out, /^http:\/\/127\.0\.0\.1:\d+, .* to .*: no container with a grant was found\.\n$/);
});

testWithPrometheus('a pod is one container on any node, with the last grant that it had', async (t) => {
  t.timeout(180_000);
  const end = HOURS * HOUR + 1;
  const on = (instance: string) => ({ instance });
  const share = (ratio: number) => ({ sm_limit_ratio: () => ratio });
  const moved = 2 * HOUR;
  const series: RecordedSeries[] = [
    ...['node-1', 'node-2'].map((instance) => ({
      metric: 'cotenant_up',
      labels: { job: 'cotenant', instance },
      at: () => 1,
    })),
    // It moved, its share is smaller and held by no container, and it was refused memory.
    ...containerSeries('moved', 'GPU-a', 0, moved, held(6000, 8192), on('node-1')),
    ...containerSeries('moved', 'GPU-a', 0, moved, share(0.5), { ...on('node-1'), enforced: 'true' }),
    ...containerSeries('moved', 'GPU-b', moved, end, held(2000, 3072), on('node-2')),
    ...containerSeries('moved', 'GPU-b', moved, end, share(0.2), { ...on('node-2'), enforced: 'false' }),
    ...stopSeries('moved', 0, moved, { result: 'released' }, (second) => (second < HOUR ? 0 : 2)),
    ...stopSeries('moved', moved, end, { result: 'released', ...on('node-2') }, (second) =>
      second < 3 * HOUR ? 0 : 1,
    ),
    // On the GPU that it had, it asks for less memory and for no compute.
    ...containerSeries('again', 'GPU-a', 0, end, {
      ...held(1000, 0),
      memory_limit_bytes: (second) => (second < moved ? 8192 : 3072) * MIB,
    }),
    ...containerSeries('again', 'GPU-a', 0, moved, share(0.5), { enforced: 'true' }),
    // Nothing holds it to its share any more.
    ...containerSeries('let go', 'GPU-a', 0, end, held(1000, 1024)),
    ...containerSeries('let go', 'GPU-a', 0, moved, share(0.5), { enforced: 'true' }),
    ...containerSeries('let go', 'GPU-a', moved, end, share(0.3), { enforced: 'false' }),
    // Two people's programs, and one that moved to another GPU while the other one of its GPUs stayed.
    ...['node-1', 'node-2'].flatMap((instance, index) => {
      const { info, ...figures } = held(1000 * (index + 1), 4096);
      return [
        ...containerSeries('plain', 'GPU-a', 0, end, figures, { instance }),
        ...containerSeries('plain', 'GPU-a', 0, end, { info }, { instance, runtime: 'process' }),
      ];
    }),
    ...containerSeries('wide', 'GPU-a', 0, end, held(100, 512)),
    ...containerSeries('wide', 'GPU-b', 0, moved, held(100, 1024)),
    ...containerSeries('wide', 'GPU-c', moved + 600, end, held(100, 512)),
  ];
  const recorded = recordedFile(t, series, { from: FROM, seconds: HOURS * HOUR, everySeconds: 30 });
  const prometheus = await startPrometheus(t, { recorded });
  const until = new Date((FROM + HOURS * HOUR) * 1000).toISOString();
  const argv = ['--prometheus', prometheus.url, '--range', '4h', '--until', until, '--json'];
  const { code, out, err } = await runCotenant('recommend', ...argv);
  t.is(code, 0, err);
  type Gpu = { gpuUuid: string; grantedBytes?: number; grantedCoresPercent?: number; coresHeld: boolean };
  const reported = JSON.parse(out) as (Omit<Recommended, 'gpus'> & { readonly gpus: readonly Gpu[] })[];
  t.deepEqual(
    reported.map(({ pod, gpuCount, stops, gpus, memoryBytes: { amount, atLeast } }) => [
      pod,
      gpuCount,
      stops,
      `${atLeast ? '>' : ''}${amount / MIB}`,
      gpus.map((gpu) => [
        gpu.gpuUuid,
        gpu.grantedBytes && gpu.grantedBytes / MIB,
        gpu.grantedCoresPercent,
        gpu.coresHeld,
      ]),
    ]),
    [
      ['again', 1, 0, '1000', [['GPU-a', 3072, undefined, false]]],
      ['let go', 1, 0, '1000', [['GPU-a', 1024, 30, false]]],
      [
        'moved',
        1,
        3,
        '>6000',
        [
          ['GPU-a', undefined, undefined, false],
          ['GPU-b', 3072, 20, false],
        ],
      ],
      ['plain', 1, 0, '1000', [['GPU-a', 4096, undefined, false]]],
      ['plain', 1, 0, '2000', [['GPU-a', 4096, undefined, false]]],
      [
        'wide',
        2,
        0,
        '100',
        [
          ['GPU-a', 512, undefined, false],
          ['GPU-b', undefined, undefined, false],
          ['GPU-c', 512, undefined, false],
        ],
      ],
    ],
  );
});
