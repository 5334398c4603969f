// What is kept for nominated pods. The rule is kube-scheduler's (RunFilterPluginsWithNominatedPods in its framework, and
// "Nominated node" in Kubernetes' page on priority and preemption): pods nominated for a node count there for a pod of the
// same or a lower priority, and not for one of a higher priority.
import test from 'ava';
import { MIB } from '../../../../src/common/quantity.ts';
import { budgetsOf } from '../../../../src/scheduler/evictions/disruption-budgets.ts';
import { createNominations } from '../../../../src/scheduler/evictions/nominations.ts';
import { createPreemptionPlanner } from '../../../../src/scheduler/evictions/preemption.ts';
import { clusterOf, parsedRequest, recordOf, uuid } from '../cluster.ts';

/** Node `a` of 1000 MiB, of which a pod that is terminating, or may be evicted, has `mib`; other nodes are empty. */
function bed(mib: number, { isTerminating = true, priority = 0, nodes = ['a'] } = {}) {
  const { allocations, decider } = clusterOf(Object.fromEntries(nodes.map((node) => [node, 1000])));
  const facts = {
    ...{ namespace: 'team', name: 'victim', resourceVersion: '1', epoch: 0, createdMs: 0, labels: {} },
    ...{ state: 'started' as const, isRecreated: true, priority, isTerminating },
  };
  const boundPods = new Map([['victim', facts]]);
  const budgets = { ...budgetsOf([]), areKnown: true };
  const planner = createPreemptionPlanner({ allocations, boundPods, budgets, defaultPlacement: 'binpack' });
  let plans = 0;
  const counted: typeof planner = {
    ...planner,
    on(...asked) {
      plans += 1;
      return planner.on(...asked);
    },
  };
  const hold = (podUid: string, mib: number) =>
    allocations.allocate({
      ...{ podUid, nodeName: 'a' },
      demand: new Map([[uuid(0), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
    });
  if (mib > 0) hold('victim', mib);
  const nominations = createNominations({
    ...{ allocations, decider, planner: counted },
    roomMaker: { without: (_, decide) => decide() },
  });
  return {
    ...{ allocations, budgets, nominations, hold },
    plans: () => plans,
    nominate: (podUid: string, mib: number, priority: number, node = 'a') =>
      nominations.set({ pod: { podUid, priority, mayPreempt: true }, node, text: recordOf(mib), aspects: {} }),
    /** Whether filter lets a pod of this priority on the node. */
    fits: (podUid: string, mib: number, priority: number): boolean =>
      nominations.without(
        { podUid, priority },
        () => decider.filter(parsedRequest(decider, mib), ['a']).feasible.length > 0,
      ),
    grantedMib: () => (allocations.placeableNode('a')?.gpus[0]?.grantedBytes ?? 0) / MIB,
  };
}

test('what victims leave is for the nominated pod and for higher priorities alone', (t) => {
  const { allocations, fits, nominate, nominations } = bed(1000);
  nominate('urgent', 600, 5);
  t.false(fits('urgent', 600, 5), 'the victim has not ended');
  allocations.release('victim');
  for (const priority of [0, 4, 5]) {
    t.false(fits('other', 600, priority), `priority ${priority}`);
    t.true(fits('other', 400, priority), 'what is left beside it');
  }
  t.true(fits('other', 600, 6));
  t.true(fits('urgent', 600, 5), 'nothing is kept from itself');
  t.false(fits('other', 600, 5), 'it is kept again after that');
  nominations.forget('urgent');
  t.true(fits('other', 600, 0));
  t.is(allocations.pods, 0);
});

test('a higher nominated pod comes before a lower one, whichever came first', (t) => {
  const { fits, nominate, grantedMib } = bed(0);
  nominate('low', 700, 1);
  nominate('high', 700, 9);
  t.false(fits('other', 400, 1));
  t.is(grantedMib(), 700, 'both do not fit: the higher one is kept');
  t.false(fits('low', 700, 1));
  t.true(fits('high', 700, 9));
  t.true(fits('other', 700, 10));
});

test('of what cannot become free nothing is kept, and what is bound is not kept twice', (t) => {
  const { fits, nominate, grantedMib, hold, nominations, allocations } = bed(500, {
    isTerminating: false,
    priority: 7,
  });
  nominate('urgent', 600, 5);
  t.true(fits('other', 500, 0), 'the holder has a higher priority and stays');
  t.is(grantedMib(), 500);
  nominate('small', 300, 5);
  t.false(fits('other', 500, 0));
  hold('small', 300);
  t.true(fits('other', 200, 0));
  t.is(grantedMib(), 800);
  nominations.forget('small');
  t.is(grantedMib(), 800, 'its grant stays');
  nominations.setAll([]);
  t.is(allocations.pods, 2);
});

test('a pod that was allocated meanwhile leaves what was kept for others', (t) => {
  const { fits, nominate, grantedMib, hold, nominations } = bed(0);
  nominate('low', 700, 1);
  t.false(fits('other', 400, 0));
  nominations.without({ podUid: 'high', priority: 9 }, () => hold('high', 700));
  t.is(grantedMib(), 700, 'there is no room left for the lower one');
  t.true(fits('other', 300, 0));
});

test('pods of a group are not kept one by one', (t) => {
  const { fits, nominations } = bed(0);
  nominations.set({
    ...{ pod: { podUid: 'one', priority: 5, mayPreempt: true }, node: 'a', text: recordOf(600) },
    aspects: { gang: { key: 'team/g', size: 2 } },
  });
  t.true(fits('other', 600, 0));
});

const NODES = Array.from({ length: 50 }, (_, index) => `node-${index}`);

test('a filter of a higher priority plans nothing anew, but on nodes that changed', (t) => {
  const { allocations, nominate, fits, plans, nominations, hold } = bed(0, { nodes: ['a', ...NODES] });
  // On each node two fit beside each other, and a third waits.
  for (const node of NODES) for (const one of [1, 2, 3]) nominate(`${node}-${one}`, 400, one, node);
  t.false(fits('other', 1001, 9));
  const kept = () => new Map([...allocations.all()].map((one) => [one.podUid, one]));
  const before = kept();
  t.is(before.size, 2 * NODES.length);
  t.is(plans(), 3 * NODES.length, 'each is planned once');
  for (const priority of [9, 0, 3, 2]) fits('other', 1001, priority);
  t.is(plans(), 3 * NODES.length);
  t.deepEqual([...kept()].sort(), [...before].sort());
  for (const [podUid, one] of kept()) t.true(one === before.get(podUid), podUid);
  nominations.without({ podUid: 'high', priority: 9 }, () => hold('high', 400));
  t.is(plans(), 3 * NODES.length, 'node a has no nominated pod');
  nominate('on-a', 300, 1);
  fits('other', 1001, 9);
  nominations.without({ podUid: 'higher', priority: 9 }, () => hold('higher', 100));
  t.is(plans(), 3 * NODES.length + 2, 'one before and one after node a changed');
});

test('a list of nominated pods reads each of them a few times, not once for each other', (t) => {
  const { nominations, fits } = bed(0);
  const count = 2000;
  let reads = 0;
  const podOf = (podUid: string) => ({
    ...{ podUid, mayPreempt: true },
    get priority() {
      reads += 1;
      return 1;
    },
  });
  const all = Array.from({ length: count }, (_, index) => ({
    ...{ pod: podOf(`pod-${index}`), node: 'a', text: recordOf(1001), aspects: {} },
  }));
  for (let list = 0; list < 3; list += 1) nominations.setAll(all);
  fits('other', 100, 0);
  t.true(reads > 0 && reads < 10 * count, `${reads} reads`);
});

test('what was not kept is tried again when its pod is filtered', (t) => {
  const { nominate, fits, budgets } = bed(900, { isTerminating: false });
  budgets.areKnown = false;
  nominate('urgent', 600, 5);
  t.false(fits('urgent', 600, 5));
  t.true(fits('other', 50, 0), 'no pod may be evicted while budgets are unknown');
  budgets.areKnown = true;
  t.false(fits('urgent', 600, 5), 'the victim is still there');
  t.false(fits('other', 50, 0), 'what the victim will leave is kept');
});
