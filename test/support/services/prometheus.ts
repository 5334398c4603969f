// A Prometheus for one test: on loopback, in a temporary folder. Starts it, fills it with recorded series and queries
// it; the scrape targets and rules are the test's part.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { stringify } from 'yaml';
import { CONFIGURATION } from '../../../dashboards/lib/configuration.ts';
import { freePort } from '../machine/ports.ts';
import { eventually, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { findPrometheus, findPromtool, run } from './promtool.ts';

export type Answered = { readonly metric: Readonly<Record<string, string>>; readonly value: number };

export type RunningPrometheus = {
  readonly url: string;
  query(expression: string, atSeconds?: number): Promise<readonly Answered[]>;
  /** Values of a label over the series that a selector matches, as a dashboard variable offers them. */
  values(label: string, selector: string): Promise<readonly string[]>;
  /** All loaded rules, and the result of their last evaluation. */
  rules(): Promise<readonly { readonly name: string; readonly file: string; readonly health: string }[]>;
  /** Names of the firing alerts. */
  firing(): Promise<ReadonlySet<string>>;
};

/** Thousands of series of an hour take minutes on a busy machine. */
const RECORDED_MS = 15 * 60_000;

/** Scrape configuration for agents, each second as in the chart's ServiceMonitor: addresses with their labels. */
export const scraping = (
  ...targets: readonly (readonly [url: string, labels?: Readonly<Record<string, string>>])[]
) => ({
  global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
  scrape_configs: [
    {
      job_name: CONFIGURATION.job,
      honor_labels: true,
      static_configs: targets.map(([url, labels]) => ({ targets: [new URL(url).host], ...(labels && { labels }) })),
    },
  ],
});

/** Why there is no Prometheus here; undefined if there is one. */
export function prometheusReason(): string | undefined {
  const missing = [findPromtool(), findPrometheus()].find((found) => 'reason' in found);
  return missing && 'reason' in missing ? missing.reason : undefined;
}

function pathOf(found: ReturnType<typeof findPromtool>): string {
  if ('reason' in found) throw new Error(found.reason);
  return found.path;
}

export async function startPrometheus(
  t: Teardown,
  {
    configuration = {},
    ruleFiles = {},
    recorded,
    blocks,
    program = pathOf(findPrometheus()),
  }: {
    /** Contents of prometheus.yml, without rule_files. */
    readonly configuration?: Readonly<Record<string, unknown>>;
    /** Contents of rule files by name. */
    readonly ruleFiles?: Readonly<Record<string, string>>;
    /** A file of series with timestamps, in the OpenMetrics format. */
    readonly recorded?: string;
    /** A folder with a Prometheus database. */
    readonly blocks?: string;
    /** Another version than that of this machine. */
    readonly program?: string;
  },
): Promise<RunningPrometheus> {
  const folder = temporaryFolder(t);
  const data = join(folder, 'data');
  mkdirSync(data);
  if (recorded !== undefined) {
    const made = run(
      pathOf(findPromtool()),
      ['tsdb', 'create-blocks-from', 'openmetrics', recorded, data],
      folder,
      RECORDED_MS,
    );
    if (!made.ok) throw new Error(made.stdout + made.stderr);
  }
  if (blocks !== undefined) cpSync(blocks, data, { recursive: true });
  for (const [name, text] of Object.entries(ruleFiles)) writeFileSync(join(folder, name), text);
  const file = join(folder, 'prometheus.yml');
  writeFileSync(file, stringify({ ...configuration, rule_files: Object.keys(ruleFiles) }));
  const port = await freePort();
  const flags = [
    `--config.file=${file}`,
    `--storage.tsdb.path=${data}`,
    // Recorded series keep their own timestamps.
    '--storage.tsdb.retention.time=100y',
    `--web.listen-address=127.0.0.1:${port}`,
    '--log.level=warn',
  ];
  const child = spawn(program, flags, { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] });
  const said: string[] = [];
  child.stderr.on('data', (part: Buffer) => said.push(String(part)));
  const exited = once(child, 'exit');
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await exited;
  });
  const url = `http://127.0.0.1:${port}`;
  await eventually(
    async () => {
      if (child.exitCode !== null) throw new Error(`Prometheus ended: ${said.join('')}`);
      const answer = await fetch(`${url}/-/ready`).catch(() => undefined);
      return answer?.ok || undefined;
    },
    'Prometheus is ready',
    START_MS,
  );
  const get = async (path: string): Promise<unknown> => {
    const body = (await (await fetch(`${url}${path}`)).json()) as { status: string; data?: unknown; error?: string };
    if (body.status !== 'success') throw new Error(`${path}: ${body.error}`);
    return body.data;
  };
  return {
    url,
    async query(expression, atSeconds) {
      const at = atSeconds === undefined ? '' : `&time=${atSeconds}`;
      const data = (await get(`/api/v1/query?query=${encodeURIComponent(expression)}${at}`)) as {
        result: { metric: Record<string, string>; value: [number, string] }[];
      };
      return data.result.map(({ metric, value }) => ({ metric, value: Number(value[1]) }));
    },
    async values(label, selector) {
      return (await get(`/api/v1/label/${label}/values?match[]=${encodeURIComponent(selector)}`)) as string[];
    },
    async rules() {
      const { groups } = (await get('/api/v1/rules')) as {
        groups: { file: string; rules: { name: string; health: string }[] }[];
      };
      return groups.flatMap(({ file, rules }) =>
        rules.map(({ name, health }) => ({ name, file: basename(file), health })),
      );
    },
    async firing() {
      const { alerts } = (await get('/api/v1/alerts')) as {
        alerts: { state: string; labels: { alertname: string } }[];
      };
      return new Set(alerts.flatMap(({ state, labels }) => (state === 'firing' ? [labels.alertname] : [])));
    },
  };
}
