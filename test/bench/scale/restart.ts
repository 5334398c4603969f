// What the agents of a large cluster ask of an API server that restarts: the agents' own watches, in this process,
// beside a stand-in.
import { setTimeout as delay } from 'node:timers/promises';
import { startAdvertising } from '../../../src/kube/node-status.ts';
import { startPodInformer } from '../../../src/kube/pod-informer.ts';
import { watchResourceSlices } from '../../../src/kube/resource-slices.ts';
import { eventually, type Teardown } from '../../support/native/node.ts';
import { startStandIn } from '../../support/services/stand-in.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';

const sum = (values: readonly number[]): number => values.reduce((all, one) => all + one, 0);

/** Half as many agents in half the time as in a cluster of 5,000: their watches and the other ends of these are files of
 * one process. */
const RECONNECTING = { nodes: 2500, seconds: 90, awayS: 15 };
const FEW_RECONNECTING = { nodes: 250, seconds: 10, awayS: 2 };

/** What the watches of all agents ask of an API server that restarts: the agents' own code, in this process. */
async function measureRestart(scope: Teardown, quick: boolean, note: (text: string) => void): Promise<Row[]> {
  const { nodes, seconds, awayS } = quick ? FEW_RECONNECTING : RECONNECTING;
  const cluster = await startStandIn(scope, { nodes: 10, pods: 100, shares: 0 });
  const total = () => sum([...cluster.requests.values()]);
  const spreadMs = seconds * 1000;
  const closing: (() => Promise<void>)[] = [];
  for (let index = 0; index < nodes; index += 1) {
    const of = { config: cluster.config, nodeName: cluster.nodeName(index % 10), onProblem: () => {} };
    const pods = startPodInformer(of.config, of.nodeName, of.onProblem, spreadMs);
    const advertising = startAdvertising({
      ...{ ...of, spreadMs, gpus: () => undefined, stateOf: () => ({ kind: 'gone' }), withSlots: true },
    });
    const slices = watchResourceSlices({ ...of, onSlices: () => {}, spreadMs });
    closing.push(pods.close, advertising.close, slices.close);
    await Promise.all([pods.ready, slices.ready]);
  }
  const isWatched = () => cluster.watched === 3 * nodes || undefined;
  await eventually(isWatched, 'all watch', 60_000);
  note(`restart: ${nodes} agents have ${cluster.watched} watches; the API server restarts`);
  await cluster.restart(awayS * 1000);
  const perSecond: number[] = [];
  const begunMs = performance.now();
  // One that is refused waits again, so some take longer; ten times as long none.
  while (!isWatched()) {
    if (perSecond.length > 10 * seconds) throw new Error(`${cluster.watched} of ${3 * nodes} watches came back`);
    const before = total();
    const startedMs = performance.now();
    await delay(1000);
    perSecond.push(((total() - before) * 1000) / (performance.now() - startedMs));
  }
  const tookS = (performance.now() - begunMs) / 1000;
  const most = perSecond.toSorted((a, b) => b - a).slice(0, 5);
  note(`restart: all watch again after ${tookS.toFixed(0)} s; most in a second: ${most.map(Math.round).join(', ')}`);
  await Promise.all(closing.map((close) => close()));
  return [
    {
      name: 'restart.requests_per_s',
      value: Math.max(...perSecond),
      unit: '1/s',
      reference: { value: sum(perSecond) / perSecond.length, what: `the mean; ${nodes} agents within ${seconds} s` },
      ...(!quick && { goal: { most: 500 } }),
    },
  ];
}

export const restart: Bench = {
  name: 'restart',
  what: 'requests of 2,500 agents to an API server that restarts, for which a stand-in speaks',
  run: (scope, { quick, note }) => measureRestart(scope, quick, note),
};
