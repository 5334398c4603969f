// What the agent costs its node: memory and processor time of a real agent with its sampler, on eight simulated GPUs
// with a hundred processes each. The simulator is a process of its own and not in the figures; the part of the
// simulated NVML that runs inside the sampler is.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, startNode, type Teardown } from '../../support/native/node.ts';
import { CHART_ENV, compiled, type RunningAgent, startAgent } from '../../support/product/agent.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { type Halves, measureFullHalves, measureHalves } from './halves.ts';
import { type Load, startContainer } from './load.ts';
import { type Cost, childrenNamed, costOver, mbOf, residentMib, sumOf } from './process.ts';

const GPUS = 8;
const CONTAINERS_PER_GPU = 10;
const PROCESSES_PER_CONTAINER = 10;
/** While processes come V8 compiles what is run for each of them, and the agent does not rest: no measure of what it
 * takes for good. */
const YOUNG_SECONDS = 60;
/** As Prometheus does by many charts' default. */
const SCRAPE_EVERY_MS = 15_000;
const SCRAPE_HEADERS = { accept: 'application/openmetrics-text;version=1.0.0', 'accept-encoding': 'gzip' };
/** Resident memory of all that is the agent's, MB. */
const MOST_MB = 120;
const PROCESSES = GPUS * CONTAINERS_PER_GPU * PROCESSES_PER_CONTAINER;

/** Of the agent's own process and of its two programs. */
type Use = { readonly agent: Cost; readonly sampler: Cost; readonly arbiter: Cost };

/** Cores and memory over `seconds`. */
async function useOver(agent: RunningAgent, seconds: number): Promise<Use> {
  const pid = agent.child.pid ?? 0;
  const sampler = childrenNamed(pid, 'cotenant-sampler');
  if (sampler.length !== 1) throw new Error(`the agent has ${sampler.length} samplers`);
  const arbiter = childrenNamed(pid, 'cotenant-arbitrate');
  const [own, sampled, arbitrated] = await costOver([[pid], sampler, arbiter], seconds);
  if (!own || !sampled || !arbitrated) throw new Error('unreachable');
  return { agent: own, sampler: sampled, arbiter: arbitrated };
}

/** Scrapes it in even steps until the end. */
function startScraper(scope: Teardown, { url }: RunningAgent): void {
  const scrape = async () => (await fetch(`${url}/metrics`, { headers: SCRAPE_HEADERS })).arrayBuffer();
  // One that fails is seen by what follows it.
  const timer = setInterval(() => void scrape().catch(() => {}), SCRAPE_EVERY_MS);
  scope.teardown(() => clearInterval(timer));
}

const totalOf = ({ agent, sampler, arbiter }: Use): Cost => sumOf([agent, sampler, arbiter]);

/** Memory of a Node process that does nothing. */
async function bareNodeMib(scope: Teardown): Promise<number> {
  const child = spawn(process.execPath, ['-e', 'console.log(1); setInterval(() => {}, 1000)'], { stdio: 'pipe' });
  const exited = once(child, 'exit');
  scope.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  await once(child.stdout, 'data');
  return residentMib(child.pid ?? 0);
}

export const agent: Bench = {
  name: 'agent',
  what: `memory and processor time of the agent at ${GPUS} GPUs and ${PROCESSES} processes`,
  async run(scope, { quick, note }) {
    const seconds = quick ? 30 : 60;
    const node = await startNode(scope, ...Array.from({ length: GPUS }, () => ['--gpu', 'h200']).flat());
    const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
    // As the chart starts it, and not for the first time on its node: that one compiles.
    const folder = mkdtempSync(join(tmpdir(), 'ct-compiled-'));
    scope.teardown(() => rmSync(folder, { recursive: true, force: true }));
    const env = { ...CHART_ENV, NODE_COMPILE_CACHE: folder };
    await compiled(() => startAgent(scope, node, { env }));
    const running = await startAgent(scope, node, { env });
    startScraper(scope, running);
    // Measuring what a context costs is a matter of the first seconds of a GPU's life.
    await running.measured(GPUS);
    await eventually(async () => {
      const snapshot = await running.snapshot();
      return snapshot?.devices.every(({ fences }) => fences.interposer !== undefined) ? true : undefined;
    }, 'the fence has been tried on each GPU');
    note(`agent: an empty node for ${seconds} s`);
    const empty = await useOver(running, seconds);
    note(`agent: an empty node whose agent is two processes for ${seconds} s`);
    const halves: Halves = { scope, node, env, headers: SCRAPE_HEADERS, seconds };
    const emptyHalves = await measureHalves(halves, empty.agent);

    note(`agent: starting ${PROCESSES} processes in ${GPUS * CONTAINERS_PER_GPU} containers`);
    const loads: Load[] = [];
    for (let number = 0; number < GPUS * CONTAINERS_PER_GPU; number += 1) {
      const gpu = number % GPUS;
      const load = await startContainer(scope, node, running, {
        name: `tenant-${number}`,
        gpu,
        processes: PROCESSES_PER_CONTAINER,
        contextBytes,
      });
      loads.push(load);
    }
    const attributed = (by: RunningAgent) =>
      eventually(async () => {
        const seen = (await by.snapshot())?.containers.reduce((sum, { processes }) => sum + processes.length, 0);
        return seen === PROCESSES ? true : undefined;
      }, 'all processes are attributed');
    await attributed(running);
    note(`agent: a full node for its first ${YOUNG_SECONDS} s, then for ${seconds} s`);
    const young = await useOver(running, YOUNG_SECONDS);
    const full = await useOver(running, seconds);
    for (const load of loads) load.work();
    await eventually(async () => {
      const snapshot = await running.snapshot();
      return snapshot?.containers.every(({ compute }) => (compute?.chargedSeconds ?? 0) > 0) ? true : undefined;
    }, 'all containers run kernels');
    note(`agent: a full node on which one process of each container runs a kernel of 1 ms a second, for ${seconds} s`);
    const busy = await useOver(running, seconds);
    const lagSeconds = await running.metric('nodejs_eventloop_lag_max_seconds');

    note(`agent: the same node whose agent is two processes, for ${YOUNG_SECONDS} s and then for ${seconds} s`);
    await running.stop();
    const fullHalves = await measureFullHalves(halves, {
      state: running.state,
      ready: attributed,
      youngSeconds: YOUNG_SECONDS,
      whole: totalOf(busy),
      mostMb: MOST_MB,
    });

    const bare = mbOf({ mib: await bareNodeMib(scope) });
    const onEmpty = 'the same on an empty node (8 GPUs, no process)';
    const parts = ['agent', 'sampler', 'arbiter'] as const;
    const rows: Row[] = [
      {
        name: 'agent.rss_mb',
        value: mbOf(totalOf(full)),
        unit: 'MB',
        reference: { value: bare, what: 'a Node process that does nothing; the value is agent, sampler and arbiter' },
        goal: { most: MOST_MB },
      },
      {
        name: 'agent.empty_rss_mb',
        value: mbOf(totalOf(empty)),
        unit: 'MB',
        reference: { value: bare, what: 'a Node process that does nothing; the value is of an empty node (8 GPUs)' },
      },
      {
        name: 'agent.cpu_core_ratio',
        value: totalOf(full).cores,
        unit: 'cores',
        reference: { value: totalOf(empty).cores, what: `agent, sampler and arbiter; ${onEmpty}` },
        goal: { most: 0.01 },
      },
      {
        name: 'agent.young.cpu_core_ratio',
        value: totalOf(young).cores,
        unit: 'cores',
        reference: { value: totalOf(full).cores, what: `the same after these first ${YOUNG_SECONDS} s` },
      },
      {
        name: 'agent.busy.cpu_core_ratio',
        value: totalOf(busy).cores,
        unit: 'cores',
        reference: { value: totalOf(full).cores, what: 'the same where the processes only hold memory' },
      },
      ...parts.map(
        (part): Row => ({
          name: `agent.busy.part.${part}.cpu_core_ratio`,
          value: busy[part].cores,
          unit: 'cores',
          reference: { value: full[part].cores, what: 'the same where the processes only hold memory' },
        }),
      ),
      ...parts.flatMap((part): Row[] => [
        {
          name: `agent.part.${part}.rss_mb`,
          value: mbOf(full[part]),
          unit: 'MB',
          reference: { value: mbOf(empty[part]), what: onEmpty },
        },
        {
          name: `agent.part.${part}.cpu_core_ratio`,
          value: full[part].cores,
          unit: 'cores',
          reference: { value: empty[part].cores, what: onEmpty },
        },
      ]),
    ];
    rows.push(...emptyHalves, ...fullHalves);
    if (lagSeconds !== undefined)
      rows.push({ name: 'agent.event_loop.max_lag_ms', value: lagSeconds * 1000, unit: 'ms', reference: null });
    return rows;
  },
};
