// Groups of pods that are placed all or none: what holds in any order of calls, deaths and expiries.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../../src/common/quantity.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import { gangOf, type SizedGang } from '../../../../src/placement/gang.ts';
import { createInFlightBindings } from '../../../../src/scheduler/allocations/in-flight.ts';
import { createGangs, HELD_MS, MOST_KINDS, pauseMs, SEEN_MS } from '../../../../src/scheduler/groups/gangs.ts';
import { clusterOf, parsedRequest, uuid } from '../cluster.ts';
import { virtualTime } from '../model/virtual-time.ts';

const NODES = ['a', 'b', 'c', 'd', 'e'];
const FULL = { memoryBytes: 1000 * MIB, coresPercent: 0, tenants: 1 };

/** Nodes of 1000 MiB, and groups with pods of 600: one on each node. */
function bed(nodes: number, sizes: readonly number[], clock?: () => number) {
  const names = NODES.slice(0, nodes);
  const { allocations, decider } = clusterOf(Object.fromEntries(names.map((name) => [name, 1000])));
  const inFlight = createInFlightBindings();
  let nowMs = 0;
  const gone = new Set<string>();
  const fault = { unlisted: false };
  const unboundPods = async () =>
    fault.unlisted
      ? undefined
      : new Set(
          sizes.flatMap((size, gang) => Array.from({ length: size }, (_, member) => `g${gang}-${member}-0`)),
        ).difference(gone);
  const gangs = createGangs({ allocations, inFlight, decider, unboundPods, now: clock ?? (() => nowMs) });
  const request = parsedRequest(decider, 600);
  const kinds = sizes.map((size, index): SizedGang => ({ key: `team/g${index}`, size }));
  const podOf = (gang: number, member: number, life = 0) => {
    const kind = kinds[gang];
    const aspects = kind ? { gang: kind } : {};
    return { podUid: `g${gang}-${member}-${life}`, request, aspects };
  };
  type Pod = ReturnType<typeof podOf>;
  /** As the binder does; the node, or why not. */
  const bind = (pod: Pod, node: string): string => {
    const held = gangs.place(pod, [node]);
    if (held && !held.ok) return held.error;
    gangs.release(pod.podUid);
    const placed = decider.on(request, node);
    if (!placed.ok) return placed.reason();
    allocations.allocate({
      ...{ podUid: pod.podUid, nodeName: node, demand: demandOf(placed.containers) },
      ...pod.aspects,
    });
    return node;
  };
  /** As the extender answers filter. */
  const filter = (pod: Pod, among: readonly string[] = names): string => {
    const held = gangs.place(pod, among);
    if (held) return held.ok ? held.value : held.error;
    return decider.filter(request, among).feasible[0] ?? 'no node';
  };
  const boundOf = (gang: number) =>
    [...allocations.all()].filter(
      ({ gang: one, podUid }) => one?.key === `team/g${gang}` && inFlight.of(podUid) === undefined,
    );
  return {
    ...{ allocations, decider, gangs, inFlight, names, podOf, bind, filter, boundOf, gone, fault },
    wait: (ms: number) => {
      nowMs += ms;
      gangs.expire();
    },
  };
}

test('a group is read from labels of scheduler-plugins, LeaderWorkerSet and JobSet', (t) => {
  const size = { 'pod-group.scheduling.sigs.k8s.io/min-available': '3' };
  const of = (labels: Record<string, string>) => gangOf({ namespace: 'team', labels });
  t.deepEqual(of({ 'pod-group.scheduling.sigs.k8s.io/name': 'x', ...size }), { key: 'team/x', size: 3 });
  t.deepEqual(of({ 'leaderworkerset.sigs.k8s.io/group-key': '689c', ...size }), { key: 'team/689c', size: 3 });
  t.deepEqual(of({ 'jobset.sigs.k8s.io/jobset-name': 'j', ...size }), { key: 'team/j', size: 3 });
  t.is(of({ 'jobset.sigs.k8s.io/jobset-name': 'j' }), undefined);
  t.is(of(size), undefined);
  for (const wrong of ['1', '0', '-2', '2.5', 'x', '5001'])
    t.is(
      of({ 'jobset.sigs.k8s.io/jobset-name': 'j', 'pod-group.scheduling.sigs.k8s.io/min-available': wrong }),
      undefined,
    );
  const spec = { schedulingGroup: { podGroupName: 'train-0' } };
  const labels = { 'jobset.sigs.k8s.io/jobset-name': 'j', ...size };
  t.deepEqual(gangOf({ namespace: 'team', labels }, spec), { key: 'team/train-0' }, "Kubernetes' field first");
});

test('no pod passes before all are there and fit at once; then each has its node', (t) => {
  const { podOf, filter, bind, allocations } = bed(2, [2, 3]);
  t.is(filter(podOf(0, 0)), 'pod group team/g0 waits: 1 of its 2 pods are there');
  t.is(allocations.pods, 0);
  t.true(NODES.includes(filter(podOf(0, 1))));
  t.is(allocations.pods, 2, 'both nodes are held');
  t.is(filter({ ...podOf(0, 9), aspects: {} }), 'no node', 'a pod without a group does not take them');
  const nodes = [0, 1].map((member) => filter(podOf(0, member)));
  t.deepEqual(nodes.toSorted(), ['a', 'b']);
  for (const [member, node] of nodes.entries()) t.is(bind(podOf(0, member), node), node);
  for (const member of [0, 1]) filter(podOf(1, member));
  t.regex(filter(podOf(1, 2)), /^pod group team\/g1 waits: 0 of its 3 pods fit at once; the next one: node /);

  const short = bed(2, [3]);
  for (const member of [0, 1]) short.filter(short.podOf(0, member));
  t.regex(short.filter(short.podOf(0, 2)), /waits: 2 of its 3 pods fit at once/);
  t.is(short.allocations.pods, 0, 'what fits is not held');
});

test('a group that did not fit is tried again once something has changed', (t) => {
  const { podOf, filter, allocations } = bed(3, [3, 3]);
  allocations.allocate({ podUid: 'other', nodeName: 'a', demand: new Map([[uuid(0), FULL]]) });
  const ask = () => [0, 1].flatMap((gang) => [0, 1, 2].map((member) => filter(podOf(gang, member))));
  ask();
  const { version } = allocations;
  const waits = [0, 1].map((gang) => `pod group team/g${gang} waits: 2 of its 3 pods fit at once; the next one: `);
  for (const [index, answer] of ask().entries()) t.true(answer.startsWith(waits[Math.floor(index / 3)] ?? '-'), answer);
  t.is(allocations.version, version, 'nothing was tried');
  allocations.release('other');
  t.true(NODES.includes(filter(podOf(1, 2))));
  t.is(allocations.pods, 3);
});

test('of more pods than a group needs those that fit are placed', (t) => {
  const { podOf, filter, allocations, decider } = bed(2, [2]);
  for (const [index, nodeName] of ['a', 'b'].entries())
    allocations.allocate({ podUid: `other-${index}`, nodeName, demand: new Map([[uuid(index), FULL]]) });
  const tooLarge = { ...podOf(0, 1), request: parsedRequest(decider, 1100) };
  const pods = [podOf(0, 0), tooLarge, podOf(0, 2)] as const;
  for (const pod of pods) t.regex(filter(pod), /^pod group team\/g0 waits: /);
  for (const index of [0, 1]) allocations.release(`other-${index}`);
  t.regex(filter(pods[0]), /waits: 1 of its 2 pods fit at once/, 'it is tried with the one that is too large');
  t.true(NODES.includes(filter(pods[2])));
  t.true(NODES.includes(filter(pods[0])));
});

test('another node that kube-scheduler offers is tried', (t) => {
  const { podOf, filter, allocations } = bed(3, [2]);
  allocations.allocate({ podUid: 'other', nodeName: 'c', demand: new Map([[uuid(2), FULL]]) });
  const [one, two] = [podOf(0, 0), podOf(0, 1)];
  filter(one);
  t.regex(filter(two, ['c']), /waits: 0 of its 2 pods fit at once/);
  t.is(filter(two, ['b']), 'b');
});

test('what is held without progress is free again, and a binding prolongs it', (t) => {
  const { podOf, filter, bind, allocations, wait } = bed(3, [3]);
  for (const member of [0, 1]) filter(podOf(0, member));
  const node = filter(podOf(0, 2));
  wait(HELD_MS - 1);
  t.is(allocations.pods, 3);
  t.is(bind(podOf(0, 2), node), node);
  wait(HELD_MS - 1);
  t.is(allocations.pods, 3, 'the others are held still');
  wait(1);
  t.is(allocations.pods, 1, 'what was bound stays');
  wait(pauseMs(1));
  t.is(filter(podOf(0, 0)), 'pod group team/g0 waits: 2 of its 3 pods are there');
  t.true(NODES.includes(filter(podOf(0, 1))));
  t.is(allocations.pods, 3);
});

test.serial('what is held without progress is free again though no pod comes', async (t) => {
  const time = virtualTime(() => undefined);
  const { podOf, filter, allocations } = bed(2, [2], () => time.nowMs);
  for (const member of [0, 1]) filter(podOf(0, member));
  t.is(allocations.pods, 2);
  await time.pass(HELD_MS + 2000);
  time.restore();
  t.is(allocations.pods, 0);
});

test('a pod that another replica has bound keeps its grant when the hold ends', (t) => {
  const { podOf, filter, allocations, inFlight, wait } = bed(2, [2]);
  for (const member of [0, 1]) filter(podOf(0, member));
  const [bound, other] = [podOf(0, 0).podUid, podOf(0, 1).podUid];
  const held = allocations.allocationOf(bound);
  // As the watch of bound pods does.
  inFlight.settle(bound);
  if (held) allocations.allocate({ ...held, digest: 'shown' });
  wait(HELD_MS);
  t.is(allocations.allocationOf(bound)?.digest, 'shown');
  t.is(allocations.allocationOf(other), undefined);
});

test('a group that is held and never bound is held less and less often', (t) => {
  const { podOf, filter, bind, wait, allocations } = bed(2, [2]);
  const tries = () => [0, 1].map((member) => filter(podOf(0, member)));
  const paused =
    'pod group team/g0 waits: it held GPUs and none of its pods could be bound; it is tried again within 5 minutes';
  const pauses = [1, 2, 3, 4, 5].map((times) => {
    tries();
    t.is(allocations.pods, 2);
    wait(HELD_MS);
    t.is(allocations.pods, 0);
    wait(pauseMs(times) - 1);
    t.is(tries()[1], paused);
    wait(1);
    return pauseMs(times);
  });
  t.deepEqual(pauses, [60_000, 120_000, 240_000, 300_000, 300_000]);
  const [, node = ''] = tries();
  t.is(bind(podOf(0, 1), node), node);
  wait(HELD_MS);
  t.is(filter(podOf(0, 0)), paused, 'what a group holds in vain is for others first, though one of its pods is bound');
  t.is(allocations.pods, 1);
  wait(pauseMs(1));
  filter(podOf(0, 0));
  t.is(allocations.pods, 2, 'a binding makes the next pause a short one');
});

test('a group whose pod was deleted before any was bound holds nothing', async (t) => {
  const { podOf, filter, gangs, gone, fault, wait, allocations } = bed(3, [3]);
  for (const member of [2, 0]) filter(podOf(0, member));
  gone.add('g0-2-0');
  t.true(NODES.includes(filter(podOf(0, 1))));
  t.false(await gangs.confirm('g0-1-0'));
  t.is(allocations.pods, 0);
  t.is(filter(podOf(0, 1)), 'pod group team/g0 waits: 2 of its 3 pods are there');
  t.true(await gangs.confirm('g0-1-0'), 'nothing is held for it');
  gone.clear();
  filter(podOf(0, 2));
  fault.unlisted = true;
  t.false(await gangs.confirm('g0-2-0'));
  t.is(allocations.pods, 0, 'nothing is bound of which nothing is known');
  fault.unlisted = false;
  t.regex(filter(podOf(0, 2)), /none of its pods could be bound/, 'and the API server is not asked again at once');
  wait(pauseMs(1));
  filter(podOf(0, 2));
  t.true(await gangs.confirm('g0-2-0'));
  gone.add('g0-0-0');
  t.true(await gangs.confirm('g0-2-0'), 'asked once for all that is held');
  t.is(allocations.pods, 3);
});

test('what is held for a group stays held when one of its bound pods has ended', (t) => {
  const { podOf, filter, bind, allocations } = bed(3, [3]);
  for (const member of [0, 1]) filter(podOf(0, member));
  const node = filter(podOf(0, 2));
  t.is(bind(podOf(0, 2), node), node);
  allocations.release(podOf(0, 2).podUid);
  for (const member of [0, 1]) t.true(NODES.includes(filter(podOf(0, member))), 'it may have done its work already');
});

test('pods that are not tried again are forgotten, and a node that is closed is left', (t) => {
  const { podOf, filter, wait, allocations } = bed(3, [2]);
  filter(podOf(0, 0));
  wait(SEEN_MS);
  t.is(filter(podOf(0, 1)), 'pod group team/g0 waits: 1 of its 2 pods are there');
  const first = filter(podOf(0, 0));
  const others = ['a', 'b', 'c'].filter((node) => node !== first);
  t.true(others.includes(filter(podOf(0, 0), others)));
  t.is(allocations.pods, 2);
  t.regex(filter(podOf(0, 0), []), /^pod group team\/g0 waits: 1 of its 2 pods fit at once/);
});

test('in any order nothing is overbooked, and no two groups block each other', (t) => {
  const step = fc.oneof(
    { weight: 6, arbitrary: fc.record({ kind: fc.constant('filter' as const), gang: fc.nat(1), member: fc.nat(3) }) },
    { weight: 4, arbitrary: fc.record({ kind: fc.constant('bind' as const), gang: fc.nat(1), member: fc.nat(3) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('start' as const), gang: fc.nat(1), member: fc.nat(3) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.constantFrom(1000, HELD_MS) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('die' as const), gang: fc.nat(1), member: fc.nat(3) }) },
  );
  let halves = 0;
  fc.assert(
    fc.property(
      fc.integer({ min: 2, max: 5 }),
      fc.tuple(fc.integer({ min: 2, max: 4 }), fc.integer({ min: 2, max: 4 })),
      fc.array(step, { maxLength: 60 }),
      (nodes, sizes, steps) => {
        const one = bed(nodes, sizes);
        const { allocations, filter, bind, podOf, boundOf, wait, inFlight, names } = one;
        const lives = new Map<string, number>();
        const pod = (gang: number, member: number) => podOf(gang, member, lives.get(`${gang} ${member}`) ?? 0);
        const isBound = (uid: string) => allocations.allocationOf(uid) !== undefined && !inFlight.of(uid);
        const passed = new Map<string, string>();
        const check = () => {
          for (const name of names)
            t.true((allocations.placeableNode(name)?.gpus ?? []).every((gpu) => gpu.grantedBytes <= gpu.usableBytes));
        };
        for (const now of steps) {
          if (now.kind === 'wait') wait(now.ms);
          else if (now.member < (sizes[now.gang] ?? 0)) {
            const of = pod(now.gang, now.member);
            if (now.kind === 'die' && isBound(of.podUid)) {
              allocations.release(of.podUid);
              lives.set(`${now.gang} ${now.member}`, (lives.get(`${now.gang} ${now.member}`) ?? 0) + 1);
            } else if (now.kind === 'filter' && !isBound(of.podUid)) {
              const node = filter(of);
              if (names.includes(node)) {
                passed.set(of.podUid, node);
                const whole = [...allocations.all()].filter(({ gang }) => gang?.key === `team/g${now.gang}`).length;
                // A pod that ended after it was bound leaves the others what they hold.
                const ended = [...lives.keys()].some((key) => key.startsWith(`${now.gang} `));
                t.true(ended || whole >= (sizes[now.gang] ?? 0), 'the whole group has its nodes');
              }
            } else if (now.kind === 'start' && !isBound(of.podUid)) {
              // Of the whole group one pod is bound, and the others do not come.
              for (let member = 0; member < (sizes[now.gang] ?? 0); member += 1)
                if (!isBound(pod(now.gang, member).podUid)) filter(pod(now.gang, member));
              const node = filter(of);
              if (names.includes(node)) bind(of, node);
              wait(HELD_MS);
            } else if (now.kind === 'bind' && !isBound(of.podUid)) {
              const node = passed.get(of.podUid);
              if (node !== undefined) bind(of, node);
            }
          }
          check();
        }
        if ([0, 1].every((gang) => boundOf(gang).length > 0 && boundOf(gang).length < (sizes[gang] ?? 0))) halves += 1;
        // From there all pods are tried in turn, and a group that is whole runs and ends: both get their turn.
        const ended = new Set<number>();
        for (let round = 0; round < 12; round += 1) {
          for (const [gang, size] of sizes.entries())
            for (let member = 0; member < size && !ended.has(gang); member += 1) {
              const of = pod(gang, member);
              if (isBound(of.podUid)) continue;
              const node = filter(of);
              if (names.includes(node)) bind(of, node);
              check();
            }
          for (const [gang, size] of sizes.entries())
            if (boundOf(gang).length === size) {
              ended.add(gang);
              for (const { podUid } of boundOf(gang)) allocations.release(podUid);
            }
          // Longer than a group pauses that was held often and never bound.
          wait(35_000);
        }
        const possible = sizes.flatMap((size, gang) => (size <= nodes ? [gang] : []));
        t.deepEqual([...ended].sort(), possible);
      },
    ),
    { numRuns: 2000 },
  );
  t.true(halves > 0, 'two groups were half placed at once in some of the orders');
});

test('a group of more different shares than are placed at once waits and holds nothing', (t) => {
  const { podOf, filter, decider, allocations } = bed(5, [MOST_KINDS + 1]);
  const answers = Array.from({ length: MOST_KINDS + 1 }, (_, member) =>
    filter({ ...podOf(0, member), request: parsedRequest(decider, 10 + member) }),
  );
  t.is(
    answers.at(-1),
    `pod group team/g0 waits: its pods ask for ${MOST_KINDS + 1} different shares; at most ${MOST_KINDS} are placed at once`,
  );
  t.is(allocations.pods, 0);
});
