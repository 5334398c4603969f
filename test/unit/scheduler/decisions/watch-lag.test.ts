// Decisions while the watches lag behind kube-scheduler's, which tries a pod again at an event that is not here yet.
// Kubernetes 1.36: `flushUnschedulablePodsLeftover` of its scheduling queue is the only other try, after five minutes.
import test, { type ExecutionContext } from 'ava';
import { createDecideInLag } from '../../../../src/scheduler/decisions/watch-lag.ts';
import { clusterOf, parsedRequest, uuid } from '../cluster.ts';
import { type VirtualTime, virtualTime } from '../model/virtual-time.ts';

const gpu = { gpuUuid: uuid(0), index: 0, model: 'x', usableBytes: 2 ** 31, healthy: true };

/** A node without room, which gets some so many milliseconds after the pod was asked for. */
async function filterBefore(time: VirtualTime, afterMs: readonly number[]) {
  const { allocations, decider } = clusterOf({ a: 1 });
  const decideInLag = createDecideInLag(allocations);
  const request = parsedRequest(decider, 1024);
  let decisions = 0;
  const startedMs = time.nowMs;
  for (const [index, ms] of afterMs.entries()) {
    const last = index === afterMs.length - 1;
    setTimeout(
      () => allocations.setNode('a', { mostTenantsPerGpu: 10, gpus: [{ ...gpu, ...(!last && { usableBytes: 1 }) }] }),
      ms,
    );
  }
  const ask = async () => {
    const decide = async () => {
      decisions += 1;
      return decider.filter(request, ['a']).feasible;
    };
    const feasible = await time.until(decideInLag(decide, (nodes) => nodes.length === 0));
    return { feasible, ms: time.nowMs - startedMs, decisions };
  };
  return { first: await ask(), ask };
}

const inVirtualTime = (title: string, run: (t: ExecutionContext, time: VirtualTime) => Promise<void>) =>
  test.serial(title, async (t) => {
    const time = virtualTime(() => undefined);
    try {
      await run(t, time);
    } finally {
      time.restore();
    }
  });

inVirtualTime('an event that comes after the pod was asked for is waited for', async (t, time) => {
  t.deepEqual((await filterBefore(time, [42])).first, { feasible: ['a'], ms: 45, decisions: 2 });
  t.deepEqual((await filterBefore(time, [13, 42])).first, { feasible: ['a'], ms: 45, decisions: 3 }, 'of two events');
});

inVirtualTime('a pod that fits is not waited for, one that never fits for 100 ms', async (t, time) => {
  const { first, ask } = await filterBefore(time, [99]);
  t.deepEqual(first, { feasible: ['a'], ms: 100, decisions: 2 });
  t.deepEqual(await ask(), { feasible: ['a'], ms: 100, decisions: 3 });
  t.deepEqual((await filterBefore(time, [])).first, { feasible: [], ms: 100, decisions: 1 });
});

inVirtualTime('all pods together are waited for once a second', async (t, time) => {
  const { first, ask } = await filterBefore(time, [1050]);
  t.deepEqual(first, { feasible: [], ms: 100, decisions: 1 });
  for (let pods = 0; pods < 10; pods += 1) t.is((await ask()).ms, 100);
  await time.pass(901);
  t.deepEqual(await ask(), { feasible: ['a'], ms: 1051, decisions: 13 });
});
