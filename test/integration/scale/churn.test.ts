// Full cycles of pods (bound, changed, deleted, with watches cut in between) as many as hours of a busy cluster have: the
// extender keeps no object, timer or socket of what is gone. In this process, where all can be counted.
import test from 'ava';
import { createLogger } from '../../../src/common/logger.ts';
import { startScheduler } from '../../../src/scheduler/start.ts';
import { grown, inSimulatedHours, LEAKED, openSockets, takeCensus } from '../../support/machine/object-census.ts';
import { eventually } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { startStandIn } from '../../support/services/stand-in.ts';
import { recordOf } from '../../unit/scheduler/cluster.ts';

/** Before what is counted: more than are kept of the newest by the extender and the stand-in. */
const CHANGES = 10_000;
/** Each second a pod starts, changes and ends. */
const COUNTED_CHANGES = inSimulatedHours(3 * 3600, CHANGES);
/** Of these each one more is a pod that is placed, bound and deleted. */
const EVERY = 20;
/** Less than one object kept of each binding; some hundred come and go by themselves, and some MiB of the heap. */
const MOST_GROWN = { objects: (CHANGES / EVERY) * 0.8, mib: 3 };

test('changes of pods leave no object, timer or socket behind', async (t) => {
  t.timeout(600_000 + 20 * COUNTED_CHANGES);
  const cluster = await startStandIn(t, { nodes: 10, pods: 200, shares: 200, podBytes: 800 });
  const running = await startScheduler({
    ...{ config: cluster.config, host: '127.0.0.1', port: 0, healthPort: 0 },
    ...{ lease: { namespace: 'ns', name: 'l' }, leaseHolder: 'self', hostname: 'own', placement: 'binpack' },
    mostNodes: 100,
    evictOvercommittedAfterMs: 15_000,
    logger: createLogger({ component: 'scheduler', write: () => {} }),
  });
  t.teardown(() => running.close());
  const health = `http://127.0.0.1:${running.healthPort}`;
  await eventually(async () => (await fetch(`${health}/readyz`)).status === 200 || undefined, 'it leads');
  const call = async (verb: string, body: object) => {
    const answer = await fetch(`http://127.0.0.1:${running.port}/${verb}`, {
      method: 'POST',
      body: JSON.stringify(body),
    });
    return (await answer.json()) as { NodeNames?: string[]; Error?: string };
  };
  let pods = 0;
  const bindAndDelete = async () => {
    pods += 1;
    const [name, uid] = [`one-${pods}`, `uid-one-${pods}`];
    const metadata = { name, namespace: 'team', uid, annotations: { 'cotenant.io/request': recordOf(1024) } };
    const NodeNames = [cluster.nodeName(pods % 10)];
    const { NodeNames: [Node] = [] } = await call('filter', { Pod: { metadata }, NodeNames });
    const binding = { PodName: name, PodNamespace: 'team', PodUID: uid, Node };
    // A machine that is busy for seconds costs the Lease, and kube-scheduler tries again, too.
    await eventually(async () => (await call('bind', binding)).Error === undefined || undefined, 'it is bound', 60_000);
    cluster.removeBound(name);
  };
  /** Until it watches again: what changes while it waits would reach it as a list. */
  const cut = async () => {
    const watches = () => cluster.requests.get('watch pods') ?? 0;
    const before = watches();
    cluster.cutWatches();
    await eventually(() => watches() > before || undefined, 'pods are watched again', 30_000);
  };
  const cycle = async (changes: number) => {
    for (let change = 0; change < changes; change += 1) {
      cluster.churn();
      if (change % EVERY === 0) await bindAndDelete();
      if (change % 4000 === 0) await cut();
    }
  };
  const settled = async () => {
    await eventually(
      async () => {
        const page = await (await fetch(`${health}/metrics`)).text();
        const left = ['granted_pods', 'bindings_in_flight'].map((name) => seriesOf(page, `cotenant_scheduler_${name}`));
        return (left[0] === 200 && left[1] === 0) || undefined;
      },
      'what is left is known',
      30_000,
    );
    (cluster.bindings as unknown[]).length = 0;
    return takeCensus();
  };
  // Once before, for what is kept of the newest whatever comes.
  await cycle(CHANGES);
  const before = await settled();
  await cycle(COUNTED_CHANGES);
  // Connections that rest are closed after seconds.
  await eventually(() => openSockets() < before.sockets + LEAKED || undefined, 'connections end', 30_000);
  const after = await settled();
  t.log(`${COUNTED_CHANGES} changes`, before, after);
  t.deepEqual(grown(before, after, MOST_GROWN), []);
});
