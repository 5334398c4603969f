// What the agent costs as the two processes that the chart makes of it, without types as in the image: the node half
// without a port, and the exporter half that serves what that one tells. On an empty node, and in the place of an agent
// of one process on a full one.
import { setTimeout as delay } from 'node:timers/promises';
import { eventually, type SimulatedNode, type Teardown, temporaryFolder } from '../../support/native/node.ts';
import { type RunningAgent, startAgent } from '../../support/product/agent.ts';
import { imageHome } from '../../support/product/image.ts';
import { type RunningExporter, startExporterHalf } from '../../support/product/node-and-exporter.ts';
import type { Row } from '../row.ts';
import { median } from '../statistics.ts';
import { type Cost, childrenNamed, costOver, type Kinds, mbOf, residentByKinds, sumOf } from './process.ts';

const KINDS_SECONDS = 5;

export type Halves = {
  readonly scope: Teardown;
  readonly node: SimulatedNode;
  /** As the agent of one process has it. */
  readonly env: Readonly<Record<string, string>>;
  /** Of a scrape. */
  readonly headers: Readonly<Record<string, string>>;
  readonly seconds: number;
};
type Both = { readonly half: RunningAgent; readonly exporter: RunningExporter };

/** Starts both, scrapes them in even steps while `measure` looks, and ends them. */
async function withHalves<T>(
  { scope, node, env, headers }: Halves,
  options: { readonly state?: string; readonly settings?: Readonly<Record<string, boolean>> },
  measure: (both: Both) => Promise<T>,
): Promise<T> {
  const socket = `${temporaryFolder(scope)}/snapshots.sock`;
  const root = imageHome(scope);
  const settings = { ...options.settings, 'page.socket': socket };
  const half = await startAgent(scope, node, { ...options, root, env, settings });
  // It has no folder in which compiled code would stay.
  const { NODE_COMPILE_CACHE: _, ...bare } = env;
  const exporter = await startExporterHalf(scope, socket, {}, bare, root);
  await eventually(async () => (await exporter.metric('cotenant_up')) === 1 || undefined, 'the first page');
  const scrape = async () => (await exporter.get('/metrics', headers)).arrayBuffer();
  const timer = setInterval(() => void scrape().catch(() => {}), 15_000);
  try {
    return await measure({ half, exporter });
  } finally {
    clearInterval(timer);
    await Promise.all([half.stop(), exporter.stop()]);
  }
}

/** `whole`: what the agent's own process costs that is both halves, on the same node. */
export async function measureHalves(about: Halves, whole: Cost): Promise<Row[]> {
  const [own, served] = await withHalves(about, { settings: { calibrate: false } }, ({ half, exporter }) =>
    costOver([[half.child.pid ?? 0], [exporter.child.pid ?? 0]], about.seconds),
  );
  if (!own || !served) throw new Error('unreachable');
  const what = "the agent's own process where one process is both halves; empty node";
  return Object.entries({ node: own, exporter: served }).flatMap(([name, cost]): Row[] => [
    { name: `agent.halves.${name}.rss_mb`, value: mbOf(cost), unit: 'MB', reference: { value: mbOf(whole), what } },
    {
      name: `agent.halves.${name}.cpu_core_ratio`,
      value: cost.cores,
      unit: 'cores',
      reference: { value: whole.cores, what },
    },
  ]);
}

/**
 * In the place of an agent that has ended, with what it left in `state`: until `ready`, then for `youngSeconds` without
 * a look. `whole`: what the agent of one process, its sampler and its arbiter cost on the same node.
 */
export async function measureFullHalves(
  about: Halves,
  {
    state,
    ready,
    youngSeconds,
    whole,
    mostMb,
  }: {
    readonly state: string;
    readonly ready: (half: RunningAgent) => Promise<unknown>;
    readonly youngSeconds: number;
    readonly whole: Cost;
    readonly mostMb: number;
  },
): Promise<Row[]> {
  const { costs, anonymousMib, onceMib } = await withHalves(about, { state }, async ({ half, exporter }) => {
    await ready(half);
    const pid = half.child.pid ?? 0;
    const groups = {
      node: [pid],
      sampler: childrenNamed(pid, 'cotenant-sampler'),
      arbiter: childrenNamed(pid, 'cotenant-arbitrate'),
      exporter: [exporter.child.pid ?? 0],
    };
    await delay(youngSeconds * 1000);
    const found = await costOver(Object.values(groups), about.seconds);
    const looks: Kinds[] = [];
    for (let second = 0; second < KINDS_SECONDS; second += 1) {
      await delay(1000);
      looks.push(residentByKinds(Object.values(groups).flat()));
    }
    return {
      costs: Object.keys(groups).map((name, index) => [name, found[index] as Cost] as const),
      anonymousMib: median(looks.map(({ anonymous }) => anonymous)),
      onceMib: median(looks.map(({ once }) => once)),
    };
  });
  const sum = sumOf(costs.map(([, cost]) => cost));
  const what = 'agent, sampler and arbiter where one process is both halves; the same node';
  return [
    {
      name: 'agent.halves.full.rss_mb',
      value: mbOf(sum),
      unit: 'MB',
      reference: { value: mbOf(whole), what },
      goal: { most: mostMb },
    },
    {
      name: 'agent.halves.full.once_mb',
      value: mbOf({ mib: onceMib }),
      unit: 'MB',
      reference: { value: mbOf(sum), what: 'the same with pages that both halves have of one file counted for each' },
      goal: { most: mostMb },
    },
    {
      name: 'agent.halves.full.anonymous_mb',
      value: mbOf({ mib: anonymousMib }),
      unit: 'MB',
      reference: { value: mbOf({ mib: onceMib }), what: 'the same with pages of files, each counted once' },
    },
    {
      name: 'agent.halves.full.cpu_core_ratio',
      value: sum.cores,
      unit: 'cores',
      reference: { value: whole.cores, what },
    },
    ...costs.flatMap(([name, cost]): Row[] => [
      { name: `agent.halves.full.${name}.rss_mb`, value: mbOf(cost), unit: 'MB', reference: null },
      { name: `agent.halves.full.${name}.cpu_core_ratio`, value: cost.cores, unit: 'cores', reference: null },
    ]),
  ];
}
