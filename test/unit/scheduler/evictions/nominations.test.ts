// What is kept for nominated pods. The rule is kube-scheduler's (RunFilterPluginsWithNominatedPods in its framework, and
// "Nominated node" in Kubernetes' page on priority and preemption): pods nominated for a node count there for a pod of the
// same or a lower priority, and not for one of a higher priority.
import test from 'ava';
import { MIB } from '../../../../src/common/quantity.ts';
import { budgetsOf } from '../../../../src/scheduler/evictions/disruption-budgets.ts';
import { createNominations } from '../../../../src/scheduler/evictions/nominations.ts';
import { createPreemptionPlanner } from '../../../../src/scheduler/evictions/preemption.ts';
import { clusterOf, parsedRequest, recordOf, uuid } from '../cluster.ts';

/** Node `a` of 1000 MiB, of which a pod that is terminating, or may be evicted, has `mib`. */
function bed(mib: number, { isTerminating = true, priority = 0 } = {}) {
  const { allocations, decider } = clusterOf({ a: 1000 });
  const facts = {
    ...{ namespace: 'team', name: 'victim', resourceVersion: '1', epoch: 0, createdMs: 0, labels: {} },
    ...{ state: 'started' as const, isRecreated: true, priority, isTerminating },
  };
  const boundPods = new Map([['victim', facts]]);
  const budgets = budgetsOf([]);
  const planner = createPreemptionPlanner({ allocations, boundPods, budgets, defaultPlacement: 'binpack' });
  const hold = (podUid: string, mib: number) =>
    allocations.allocate({
      ...{ podUid, nodeName: 'a' },
      demand: new Map([[uuid(0), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
    });
  if (mib > 0) hold('victim', mib);
  const nominations = createNominations({
    ...{ allocations, decider, planner },
    roomMaker: { without: (_, decide) => decide() },
  });
  return {
    ...{ allocations, nominations, hold },
    nominate: (podUid: string, mib: number, priority: number) =>
      nominations.set({
        ...{ pod: { podUid, priority, mayPreempt: true }, node: 'a', text: recordOf(mib), aspects: {} },
      }),
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
