// What the agent's sampler costs the driver of one GPU with 20 processes: its calls of NVML by name and second, counted
// under a real agent on the simulated node, and their time, by the medians that a real driver was observed to take for
// them (step nvml.cost of test/gpu/probe). While such a call runs, allocations of other processes wait.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { eventually, startNode } from '../../support/native/node.ts';
import { countNvmlCalls, isWait } from '../../support/native/nvml-calls.ts';
import { startAgent } from '../../support/product/agent.ts';
import { type Bench, type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';
import { startContainer } from './load.ts';

const PROCESSES = 20;
const OBSERVED = join(import.meta.dirname, '../../gpu/observed');
/** Of calls whose time was not observed: more than all short ones took. */
const OTHER_SECONDS = 10e-6;
const GOAL = { most: 0.01 };

type Step = {
  readonly id: string;
  readonly data?: {
    readonly callsByClients?: Readonly<Record<string, Readonly<Record<string, { readonly medianS: number }>>>>;
  };
};

/** Seconds by name of call, with as many processes on the GPU; undefined: no real driver was observed. */
function observedSeconds(): ReadonlyMap<string, number> | undefined {
  for (const name of readdirSync(OBSERVED).filter((file) => file.endsWith('.json'))) {
    const { simulated, steps } = JSON.parse(readFileSync(join(OBSERVED, name), 'utf8'));
    const step: Step | undefined = simulated ? undefined : steps.find(({ id }: Step) => id === 'nvml.cost');
    const calls = step?.data?.callsByClients?.[PROCESSES];
    if (calls) return new Map(Object.entries(calls).map(([call, { medianS }]) => [call, medianS]));
  }
  return undefined;
}

/** Calls per second by name, of an agent whose container is within its grant, or bypasses the interposer. */
function callRates(bypass: boolean, { quick, note }: BenchOptions): Promise<ReadonlyMap<string, number>> {
  return withTeardown(async (scope) => {
    const node = await startNode(scope, '--gpu', 'h100');
    const { library, env, read } = countNvmlCalls(scope, node);
    // It reports and does not stop the container, which is over its grant for as long as this takes.
    const settings = { 'enforcement.mode': 'report', calibrate: false };
    const agent = await startAgent(scope, node, { library, env, settings });
    await eventually(async () => ((await agent.metric('cotenant_up')) === 1 ? true : undefined), 'the first page');
    const contextBytes = node.usage().gpus[0]?.contextBytes ?? 0;
    const load = await startContainer(scope, node, agent, {
      name: 'tenant',
      gpu: 0,
      processes: PROCESSES,
      contextBytes,
      bypass,
    });
    load.work();
    await eventually(async () => {
      const processes = (await agent.snapshot())?.containers[0]?.processes;
      return processes?.length === PROCESSES ? true : undefined;
    }, 'all processes are attributed');
    const seconds = quick ? 15 : 60;
    note(`nvml: ${PROCESSES} processes ${bypass ? 'that bypass the interposer' : 'within their grant'}, ${seconds} s`);
    const before = read();
    const began = performance.now();
    await delay(seconds * 1000);
    const after = read();
    const took = (performance.now() - began) / 1000;
    const made = [...after].filter(([name]) => !isWait(name));
    return new Map(made.map(([name, calls]) => [name, (calls - (before.get(name) ?? 0)) / took]));
  });
}

function rowsOf(rates: ReadonlyMap<string, number>, urgent: ReadonlyMap<string, number>): Row[] {
  const seconds = observedSeconds();
  const skipped = seconds === undefined ? { skipped: 'no real driver was observed' } : {};
  const cost = (of: ReadonlyMap<string, number>): number | null =>
    seconds === undefined
      ? null
      : [...of].reduce((sum, [name, rate]) => sum + rate * (seconds.get(name) ?? OTHER_SECONDS), 0);
  const what = 'while a container is over its grant or bypasses the interposer';
  return [
    {
      name: 'nvml.cost_core_ratio',
      value: cost(rates),
      unit: 'cores',
      reference: { value: cost(urgent), what },
      goal: GOAL,
      ...skipped,
    },
    {
      name: 'nvml.urgent.cost_core_ratio',
      value: cost(urgent),
      unit: 'cores',
      reference: null,
      goal: GOAL,
      ...skipped,
    },
    ...[...rates]
      .filter(([name, rate]) => rate > 0 || (urgent.get(name) ?? 0) > 0)
      .map(
        ([name, rate]): Row => ({
          name: `nvml.calls.${name}`,
          value: rate,
          unit: 'calls/s',
          reference: { value: urgent.get(name) ?? 0, what },
        }),
      ),
  ];
}

export const nvmlCost: Bench = {
  name: 'nvml',
  what: `calls of NVML by the agent for one GPU with ${PROCESSES} processes, and what they cost an observed driver`,
  async run(_scope, options) {
    return rowsOf(await callRates(false, options), await callRates(true, options));
  },
};
