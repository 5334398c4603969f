// What the agent costs its node: memory and processor time of a real agent with its sampler, on eight simulated cards with
// a hundred processes each. The simulator is a process of its own and not in the figures; the part of the simulated NVML
// that runs inside the sampler is.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { CHART_ENV, compiled, type RunningAgent, startAgent } from '../../support/agent.ts';
import { eventually, startNode, type Teardown } from '../../support/node.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { median } from '../statistics.ts';
import { startContainer } from './load.ts';
import { childrenOf, cpuSeconds, residentMib } from './process.ts';

const CARDS = 8;
const CONTAINERS_PER_CARD = 10;
const PROCESSES_PER_CONTAINER = 10;
/** As Prometheus does by many charts' default. */
const SCRAPE_EVERY_MS = 15_000;
const SCRAPE_HEADERS = { accept: 'application/openmetrics-text;version=1.0.0', 'accept-encoding': 'gzip' };
const PROCESSES = CARDS * CONTAINERS_PER_CARD * PROCESSES_PER_CONTAINER;

type Use = { agentCores: number; samplerCores: number; agentMib: number; samplerMib: number };

/** Cores and memory over `seconds`; memory as the median of one look a second, for a garbage collector saws. */
async function useOver(pid: number, sampler: number, seconds: number): Promise<Use> {
  const before = { at: performance.now(), agent: cpuSeconds(pid), sampler: cpuSeconds(sampler) };
  const looks: { agent: number; sampler: number }[] = [];
  for (let second = 0; second < seconds; second += 1) {
    await delay(1000);
    looks.push({ agent: residentMib(pid), sampler: residentMib(sampler) });
  }
  const wall = (performance.now() - before.at) / 1000;
  return {
    agentCores: (cpuSeconds(pid) - before.agent) / wall,
    samplerCores: (cpuSeconds(sampler) - before.sampler) / wall,
    agentMib: median(looks.map((look) => look.agent)),
    samplerMib: median(looks.map((look) => look.sampler)),
  };
}

/** Scrapes it in even steps until the end. */
function startScraper(scope: Teardown, { url }: RunningAgent): void {
  const scrape = async () => (await fetch(`${url}/metrics`, { headers: SCRAPE_HEADERS })).arrayBuffer();
  // One that fails is seen by what follows it.
  const timer = setInterval(() => void scrape().catch(() => {}), SCRAPE_EVERY_MS);
  scope.teardown(() => clearInterval(timer));
}

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

function samplerOf(agent: RunningAgent): number {
  const [pid, ...others] = childrenOf(agent.child.pid ?? 0);
  if (pid === undefined || others.length > 0) throw new Error('the agent has not exactly one child, its sampler');
  return pid;
}

export const agent: Bench = {
  name: 'agent',
  what: `memory and processor time of the agent at ${CARDS} cards and ${PROCESSES} processes`,
  async run(scope, { quick, note }) {
    const seconds = quick ? 15 : 60;
    const node = await startNode(scope, ...Array.from({ length: CARDS }, () => ['--card', 'h200']).flat());
    const contextBytes = node.books().cards[0]?.contextBytes ?? 0;
    // As the chart starts it, and not for the first time on its node: that one compiles.
    const folder = mkdtempSync(join(tmpdir(), 'ct-compiled-'));
    scope.teardown(() => rmSync(folder, { recursive: true, force: true }));
    const env = { ...CHART_ENV, NODE_COMPILE_CACHE: folder };
    await compiled(() => startAgent(scope, node, { env }));
    const running = await startAgent(scope, node, { env });
    startScraper(scope, running);
    const pid = running.child.pid ?? 0;
    // Measuring what a context costs is a matter of the first seconds of a card's life.
    const sampler = await eventually(() => {
      const children = childrenOf(pid);
      return children.length === 1 && children[0] !== undefined ? children[0] : undefined;
    }, 'the cards are measured');
    note(`agent: an empty node for ${seconds} s`);
    const empty = await useOver(pid, sampler, seconds);

    note(`agent: starting ${PROCESSES} processes in ${CARDS * CONTAINERS_PER_CARD} containers`);
    for (let number = 0; number < CARDS * CONTAINERS_PER_CARD; number += 1) {
      const card = number % CARDS;
      await startContainer(scope, node, running, {
        name: `tenant-${number}`,
        card,
        processes: PROCESSES_PER_CONTAINER,
        contextBytes,
      });
    }
    await eventually(async () => {
      const seen = (await running.view())?.containers.reduce((sum, { processes }) => sum + processes.length, 0);
      return seen === PROCESSES ? true : undefined;
    }, 'all processes are attributed');
    note(`agent: a full node for ${seconds} s`);
    const full = await useOver(pid, samplerOf(running), seconds);
    const lagSeconds = await running.metric('nodejs_eventloop_lag_max_seconds');

    const bare = await bareNodeMib(scope);
    const onEmpty = 'the same on an empty node (8 cards, no process)';
    const rows: Row[] = [
      {
        name: 'agent.rss_mb',
        value: full.agentMib + full.samplerMib,
        unit: 'MiB',
        reference: { value: bare, what: 'a Node process that does nothing; the value is agent and sampler together' },
        goal: { most: 120 },
      },
      {
        name: 'agent.empty_rss_mb',
        value: empty.agentMib + empty.samplerMib,
        unit: 'MiB',
        reference: { value: bare, what: 'a Node process that does nothing; the value is of an empty node (8 cards)' },
      },
      {
        name: 'agent.sampler_rss_mb',
        value: full.samplerMib,
        unit: 'MiB',
        reference: { value: empty.samplerMib, what: onEmpty },
      },
      {
        name: 'agent.cpu_core_ratio',
        value: full.agentCores + full.samplerCores,
        unit: 'cores',
        reference: { value: empty.agentCores + empty.samplerCores, what: `agent and sampler; ${onEmpty}` },
      },
      {
        name: 'agent.sampler_cpu_core_ratio',
        value: full.samplerCores,
        unit: 'cores',
        reference: { value: empty.samplerCores, what: onEmpty },
      },
    ];
    if (lagSeconds !== undefined)
      rows.push({ name: 'agent.event_loop.max_lag_ms', value: lagSeconds * 1000, unit: 'ms', reference: null });
    return rows;
  },
};
