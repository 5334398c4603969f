// Room that the extender holds for a pod whose victims have not ended. The rule is kube-scheduler's: a nomination counts
// for pods of the same or a lower priority (RunFilterPluginsWithNominatedPods), and preemption by a higher one clears the
// nominations of lower priority on its node (prepareCandidate in its preemption package).
import test from 'ava';
import { createLogger } from '../../../../src/common/logger.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import { createInFlightBindings } from '../../../../src/scheduler/allocations/in-flight.ts';
import { budgetsOf } from '../../../../src/scheduler/evictions/disruption-budgets.ts';
import { createRoomMaker } from '../../../../src/scheduler/evictions/make-room.ts';
import { createPreemptionPlanner } from '../../../../src/scheduler/evictions/preemption.ts';
import { clusterOf, parsedRequest, uuid } from '../cluster.ts';

const logger = createLogger({ component: 'scheduler', level: 'error' });

/** Nodes `a` and `b` of 1000 MiB, and a pod of priority 5 that takes 600 of `a` from one that does not end in time. */
function holding() {
  const { allocations, decider } = clusterOf({ a: 1000, b: 1000 });
  const facts = {
    ...{ namespace: 'team', name: 'victim', resourceVersion: '1', epoch: 0, createdMs: 0, labels: {} },
    ...{ state: 'started' as const, isRecreated: true, priority: 0, isTerminating: false },
  };
  const boundPods = new Map([['victim', facts]]);
  const planner = createPreemptionPlanner({
    ...{ allocations, boundPods, budgets: budgetsOf([]), defaultPlacement: 'binpack' },
  });
  const inFlight = createInFlightBindings();
  const roomMaker = createRoomMaker({
    ...{ allocations, inFlight, planner, boundPods, hostname: 'test', logger },
    evict: async () => {},
    // Of an API server that takes none.
    writeEvent: () => new Promise<void>(() => {}),
    times: { waitMs: 0, heldMs: 60_000 },
  });
  const take = (podUid: string, nodeName: string, mib: number, reserved = false): void =>
    allocations.allocate({
      ...{ podUid, nodeName, reserved },
      demand: new Map([[uuid(nodeName === 'a' ? 0 : 1), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
    });
  take('victim', 'a', 1000);
  const request = parsedRequest(decider, 600);
  const pod = { podUid: 'urgent', priority: 5, mayPreempt: true };
  /** As bind does it, until the victim is asked to leave. */
  const begin = () => {
    roomMaker.nominate(pod, request, ['a']);
    const plan = roomMaker.planFor('urgent', request, 'a');
    if (!plan) throw new Error('no victims');
    allocations.allocate({ podUid: 'urgent', nodeName: 'a', demand: demandOf(plan.containers), reserved: true });
    inFlight.add('urgent', 'a');
    return roomMaker.makeRoom({ podUid: 'urgent', podName: 'urgent', podNamespace: 'team', node: 'a' }, plan);
  };
  const fits = (priority: number, node = 'a'): boolean =>
    roomMaker.without(priority, () => decider.on(parsedRequest(decider, 600), node).ok);
  return { allocations, inFlight, roomMaker, take, begin, fits };
}

test('room held for a pod is there for higher priorities alone, until one takes it', async (t) => {
  const { allocations, inFlight, roomMaker, take, begin, fits } = holding();
  t.like(await begin(), { ok: false });
  allocations.release('victim');
  for (const priority of [0, 5]) t.false(fits(priority), `priority ${priority}`);
  t.true(fits(6));
  t.true(roomMaker.holds('urgent'), 'asking takes nothing');
  t.false(fits(5), 'it is held again');

  roomMaker.without(6, () => take('higher', 'b', 600));
  t.true(roomMaker.holds('urgent'), 'another node');
  roomMaker.without(6, () => take('higher', 'a', 600));
  t.false(roomMaker.holds('urgent'));
  t.is(inFlight.of('urgent'), undefined);
  t.is(allocations.allocationOf('urgent'), undefined);
  t.is(allocations.placeableNode('a')?.gpus[0]?.grantedBytes, 600 * MIB);
});

test('room is not given away while the pod that it is held for is being bound', async (t) => {
  const { allocations, roomMaker, begin, fits } = holding();
  const made = begin();
  allocations.release('victim');
  t.false(fits(6));
  await made;
  roomMaker.release('urgent');
});
