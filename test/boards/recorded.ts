// A Prometheus with the last hour of a fleet: what the agents' own renderer serves for each of its minutes, and the
// families of webhook and scheduler, with the labels that scraping adds.
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { CONFIGURATION } from '../../dashboards/lib/configuration.ts';
import { CONTROL_PLANE_METRICS } from '../../dashboards/lib/metrics.ts';
import { processes } from '../../src/exporter/collectors/process.ts';
import { COLLECTORS, createRenderer } from '../../src/exporter/render.ts';
import { type Teardown, temporaryFolder } from '../support/native/node.ts';
import { type RunningPrometheus, startPrometheus } from '../support/services/prometheus.ts';
import { type FleetSize, fleet } from './fleet.ts';

const MINUTES = 60;
const render = createRenderer([...COLLECTORS, processes]);

export type Recorded = {
  readonly prometheus: RunningPrometheus;
  /** Of the last minute, Unix time. */
  readonly toSeconds: number;
  /** At any time of the hour. */
  readonly series: number;
  /** Names of the nodes. */
  readonly nodes: readonly string[];
};

const labelled = (labels: Readonly<Record<string, string>>): string =>
  Object.entries(labels)
    .map(([name, value]) => `${name}="${value}"`)
    .join(',');

/** With the labels of the target; a line has a value, and braces if it has labels. */
function scraped(page: string, target: string): readonly string[] {
  const lines = page.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return lines.map((line) => {
    const end = line.lastIndexOf(' ');
    const [series, value] = [line.slice(0, end), line.slice(end)];
    return series.endsWith('}') ? `${series.slice(0, -1)},${target}}${value}` : `${series}{${target}}${value}`;
  });
}

/** What each Node.js process serves of itself, and Prometheus of each target. */
const ofProcess = (minute: number, sinceMs: number, weight: number): readonly string[] => [
  'up 1',
  `scrape_samples_scraped ${Math.round(900 * weight)}`,
  `process_resident_memory_bytes ${Math.round((88 + 9 * weight + Math.sin(minute)) * 2 ** 20)}`,
  `process_start_time_seconds ${Math.round(sinceMs / 1000 - 86_400)}`,
  `process_cpu_seconds_total ${(minute * 60 * 0.012 * weight).toFixed(3)}`,
  `nodejs_heap_size_used_bytes ${Math.round((31 + 4 * weight) * 2 ** 20)}`,
  `nodejs_eventloop_lag_max_seconds ${(0.011 * weight).toFixed(4)}`,
];

/** Calls a minute that took up to so many seconds: of those that wait for the API server, and of all others. */
const SLOW: Readonly<Record<string, number>> = { '0.001': 0, '0.005': 20, '0.025': 55, '0.25': 60, '+Inf': 60 };
const FAST: Readonly<Record<string, number>> = { '0.001': 60, '0.005': 60, '0.025': 60, '0.25': 60, '+Inf': 60 };
const WAITS = ['bind', 'preempt'];
const VALUES: Readonly<Record<string, readonly string[]>> = {
  route: ['mutate', 'validate'],
  verb: ['filter', 'prioritize', 'bind', 'preempt'],
  outcome: ['ok', 'refused', 'failed', 'denied', 'internal'],
  result: ['loaded'],
  kind: ['pods', 'nodes'],
  le: Object.keys(SLOW),
};
/** Of these most end well. */
const CALLS = ['cotenant_webhook_reviews_total', 'cotenant_scheduler_decisions_total'];
type Gauges = Readonly<Record<string, number>>;
const GAUGES: Gauges = {
  cotenant_scheduler_leader: 1,
  cotenant_webhook_live_rules_valid: 1,
};

/** Each family of webhook or scheduler, with a series for each value of its labels. */
function controlPlane(of: 'webhook' | 'scheduler', minute: number, sinceMs: number, gauges: Gauges): readonly string[] {
  return Object.entries(CONTROL_PLANE_METRICS).flatMap(([name, { type, labels }]) => {
    if (!name.startsWith(`cotenant_${of}_`)) return [];
    const sets = labels.reduce<readonly Readonly<Record<string, string>>[]>(
      (all, label) => all.flatMap((set) => (VALUES[label] ?? []).map((value) => ({ ...set, [label]: value }))),
      [{}],
    );
    const value = (set: Readonly<Record<string, string>>, at: number): number => {
      if (name.endsWith('not_after_timestamp_seconds')) return sinceMs / 1000 + 80 * 86_400;
      if (type === 'gauge') return gauges[name] ?? 0;
      // The higher the bucket, the more calls it has.
      if (set.le !== undefined) return minute * ((WAITS.includes(set.verb ?? '') ? SLOW : FAST)[set.le] ?? 0);
      return set.outcome === 'ok' && CALLS.includes(name) ? minute * 60 : Math.floor(minute / (20 + 9 * at));
    };
    return sets.map((set, at) => `${name}{${labelled(set)}} ${value(set, at)}`.replace('{}', ''));
  });
}

/** All series at one minute. */
async function minuteOf(nodes: ReturnType<typeof fleet>, minute: number, sinceMs: number): Promise<readonly string[]> {
  const pages = [];
  let pods = 0;
  const namespaces = new Set<string>();
  for (const { name, snapshot } of nodes) {
    const seen = snapshot(minute, sinceMs);
    const { text } = await render(seen);
    pods += seen.containers.length;
    for (const { namespace } of seen.containers) namespaces.add(namespace);
    const target = labelled({ job: CONFIGURATION.job, instance: name });
    pages.push(...scraped([text, ...ofProcess(minute, sinceMs, 1 + (name.length % 5) / 4)].join('\n'), target));
  }
  for (const namespace of namespaces)
    for (const [type, share] of [
      ['used', 0.85],
      ['hard', 1],
    ] as const) {
      const of = { namespace, resourcequota: 'gpus', resource: 'requests.cotenant.io/gpu-memory', type };
      const target = labelled({ job: 'kube-state-metrics', instance: '10.1.0.8:8080' });
      pages.push(...scraped(`kube_resourcequota{${labelled(of)}} ${share * 200 * 2 ** 30}`, target));
    }
  const parts = [
    ['webhook', CONFIGURATION.webhookJob],
    ['scheduler', CONFIGURATION.schedulerJob],
  ] as const;
  for (const [part, job] of parts) {
    const gauges = { ...GAUGES, cotenant_scheduler_nodes: nodes.length, cotenant_scheduler_granted_pods: pods };
    const page = [...controlPlane(part, minute, sinceMs, gauges), ...ofProcess(minute, sinceMs, 1)].join('\n');
    pages.push(...scraped(page, labelled({ job, instance: '10.1.0.7:9464' })));
  }
  return pages;
}

export async function recordedFleet(t: Teardown, size: FleetSize): Promise<Recorded> {
  // Beside a plot Grafana leaves 8 pixels: a time label at its very end is cut, whatever the board says.
  const toSeconds = Math.floor(Date.now() / 600_000) * 600 - 180;
  const sinceMs = (toSeconds - MINUTES * 60) * 1000;
  const nodes = fleet(size);
  const recorded = join(temporaryFolder(t), 'hour.txt');
  const file = createWriteStream(recorded);
  let series = 0;
  for (let minute = 0; minute <= MINUTES; minute += 1) {
    const lines = await minuteOf(nodes, minute, sinceMs);
    series = lines.length;
    const at = sinceMs / 1000 + minute * 60;
    if (!file.write(`${lines.map((line) => `${line} ${at}`).join('\n')}\n`)) await once(file, 'drain');
  }
  file.end('# EOF\n');
  await once(file, 'finish');
  const prometheus = await startPrometheus(t, { recorded });
  return { prometheus, toSeconds, series, nodes: nodes.map(({ name }) => name) };
}
