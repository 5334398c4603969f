// To whom a process belongs: by its grant's group, its ancestry and what was known of it, by its container, or to
// none.
import test from 'ava';
import {
  type GrantRoot,
  type KnownOwners,
  type Owner,
  ownerOfProcess,
  type PodContainers,
  remember as rememberOwners,
} from '../../../../src/agent/attribution/attribute.ts';
import { WHOLE_POD } from '../../../../src/agent/attribution/container-index.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { sampledProcess } from '../node.ts';
import { NO_PODS } from './no-pods.ts';

const ID = 'ab'.repeat(32);
const UID = '0f3c1c4e-77aa-4c2f-9f3b-2b5d0c9a1e77';
const grant = (id: string): Owner => ({ kind: 'grant', id });
const HOST: Owner = { kind: 'host' };
/** Grant `one` was given to process 100, which started at tick 1000. */
const ROOT: GrantRoot = { id: 'one', pid: 100, startTicks: 1000, alive: true };
const GROUPED: GrantRoot = { id: 'two', pid: 200, startTicks: 2000, alive: true, group: '/user.slice/cotenant-two' };
const ROOTS = [ROOT, GROUPED];
const IDS = new Set(['one', 'two']);

const FACTS = { roots: ROOTS, grantIds: IDS, known: new Map(), pods: NO_PODS, isAlive: () => true };
const owner = (process: SampledProcess, known: KnownOwners = new Map()): Owner =>
  ownerOfProcess(process, { ...FACTS, known });
/** What one sample leaves, without earlier ones. */
const remember = (processes: readonly SampledProcess[], ownerOf: (process: SampledProcess) => Owner): KnownOwners =>
  rememberOwners(
    new Map(processes.map((process) => [process, ownerOf(process)])),
    new Map(),
    () => false,
    () => false,
  );
/** A process of pid 300 that started at tick 3000, unless said otherwise. */
const found = (more: Partial<SampledProcess> & { pid?: number }) => sampledProcess(300, [], more);

test("a process belongs to its cgroup's or ancestor's grant, its container or the host", (t) => {
  const container = `0::/kubepods/pod${UID}/${ID}`;
  const cases: [what: string, process: SampledProcess, expected: Owner][] = [
    ['the process that the grant was given to', found({ pid: 100, startTicks: 1000 }), grant('one')],
    ['its child', found({ ancestors: [100, 1] }), grant('one')],
    ['its child of the same tick', found({ startTicks: 1000, ancestors: [100, 1] }), grant('one')],
    ['a descendant far down', found({ ancestors: [290, 280, 270, 100, 1] }), grant('one')],
    ['a process of its group, whatever its parent is', found({ cgroup: '0::/user.slice/cotenant-two' }), grant('two')],
    ['a process below its group', found({ cgroup: '0::/user.slice/cotenant-two/x' }), grant('two')],
    [
      'the group counts before the ancestry',
      found({ cgroup: '0::/user.slice/cotenant-two', ancestors: [100] }),
      grant('two'),
    ],
    ["a group of that name elsewhere is not the grant's", found({ cgroup: '0::/evil/cotenant-two' }), HOST],
    ['a longer name', found({ cgroup: '0::/user.slice/cotenant-two2' }), HOST],
    ['a stranger', found({}), HOST],
    ['its ancestors are not known', found({ ancestors: undefined as never }), HOST],
    ['in a container of a pod', found({ cgroup: container }), { kind: 'container', containerId: ID, podUid: UID }],
    ['in a container without a pod', found({ cgroup: `0::/docker/${ID}` }), { kind: 'container', containerId: ID }],
    ['a grant counts before the container', found({ cgroup: container, ancestors: [100] }), grant('one')],
    ['gone before it could be read', found({ startTicks: undefined as never }), { kind: 'unknown', reason: 'gone' }],
    ['its cgroup cannot be read', found({ cgroup: undefined as never }), { kind: 'unknown', reason: 'no_cgroup' }],
    ['its cgroup is empty', found({ cgroup: '' }), { kind: 'unknown', reason: 'no_cgroup' }],
  ];
  for (const [what, process, expected] of cases) t.deepEqual(owner(process), expected, what);
});

test('a pid that has come to mean another process does not inherit a grant', (t) => {
  const cases: [what: string, process: SampledProcess, expected: Owner][] = [
    ["the pid of the grant's process, reused later", found({ pid: 100, startTicks: 1001 }), HOST],
    ["the pid of the grant's process, held by an older process", found({ pid: 100, startTicks: 999 }), HOST],
    ['a process that is older than its ancestor', found({ startTicks: 999, ancestors: [100, 1] }), HOST],
  ];
  for (const [what, process, expected] of cases) t.deepEqual(owner(process), expected, what);
});

test('a child of a reused PID belongs to the new process; its cgroup stays its cgroup', (t) => {
  const roots = [ROOT, GROUPED].map((root) => ({ ...root, alive: false }));
  const of = (process: SampledProcess) => ownerOfProcess(process, { ...FACTS, roots });
  t.deepEqual(of(found({ ancestors: [100, 1] })), HOST);
  t.deepEqual(of(found({ ancestors: [1], cgroup: '0::/user.slice/cotenant-two' })), grant('two'));
});

test('processes and their children stay with a grant when their parents have ended', (t) => {
  const child = found({ pid: 301, ancestors: [100, 1] });
  const known = remember([child], owner);
  const orphan = found({ pid: 301, startTicks: child.startTicks, ancestors: [1] });
  t.deepEqual(owner(orphan, known), grant('one'));
  t.deepEqual(owner(found({ pid: 302, ancestors: [301, 1] }), known), grant('one'), 'a child of the orphan');
  t.deepEqual(owner(found({ pid: 301, startTicks: 9999, ancestors: [1] }), known), HOST, 'its pid, reused');
  t.deepEqual(owner({ ...orphan, gone: true }, known), grant('one'), 'listed by the driver, no more in /proc');
  const again = remember([orphan], (process) => owner(process, known));
  t.deepEqual(owner(orphan, again), grant('one'), 'from sample to sample');
});

test('a reused PID makes neither the new process nor older ones its child', (t) => {
  const known = remember([found({ pid: 301, ancestors: [100, 1] })], owner);
  const of = (process: SampledProcess, isAlive: boolean) => {
    const asked: number[] = [];
    const found = ownerOfProcess(process, {
      ...FACTS,
      roots: [],
      known,
      isAlive(...one) {
        asked.push(...one);
        return isAlive;
      },
    });
    return [found, asked];
  };
  const container = `0::/docker/${ID}`;
  const stranger = found({ pid: 302, ancestors: [301, 1], cgroup: container });
  t.deepEqual(of(stranger, true), [grant('one'), [301, 3000]]);
  t.deepEqual(of(stranger, false), [{ kind: 'container', containerId: ID }, [301, 3000]]);
  t.deepEqual(of({ ...stranger, startTicks: 2999 }, true), [{ kind: 'container', containerId: ID }, []]);
});

test('data on a grant that has ended is not used', (t) => {
  const child = found({ ancestors: [100, 1] });
  const known = remember([child], owner);
  const later = (process: SampledProcess): Owner =>
    ownerOfProcess(process, { ...FACTS, roots: [GROUPED], grantIds: new Set(['two']), known });
  t.deepEqual(later({ ...child, ancestors: [1] }), HOST);
  t.deepEqual(later(found({ pid: 305, ancestors: [child.pid, 1] })), HOST);
});

test('only processes of the last sample are remembered', (t) => {
  const one = found({ pid: 310, ancestors: [100, 1] });
  const two = found({ pid: 311, ancestors: [100, 1] });
  const unread = found({ pid: 313, startTicks: undefined as never });
  t.deepEqual([...remember([one, unread], owner)], [[310, { id: 'one', startTicks: one.startTicks }]]);
  t.deepEqual([...remember([two], owner).keys()], [311]);
  t.is(remember([found({})], owner).size, 0, 'a process of the host');
});

test("a process in a pod's container has its grant once the container ID is known", (t) => {
  const [main, side, other] = ['aa', 'bb', 'cc'].map((digits) => digits.repeat(32)) as [string, string, string];
  const [strange, sandbox] = ['dd'.repeat(32), 'ee'.repeat(32)] as const;
  const elsewhere = '7d0a6a52-1111-4222-8333-444455556666';
  const several = '8e0a6a52-1111-4222-8333-444455556666';
  const names = new Map([
    [main, { podUid: UID, container: 'main' }],
    [side, { podUid: UID, container: 'side' }],
    [other, { podUid: elsewhere, container: 'main' }],
    [sandbox, { podUid: UID, container: WHOLE_POD }],
  ]);
  const pods: PodContainers = {
    nameOf: (id) => names.get(id),
    grantOf: (podUid, container) => (podUid === UID && container === 'main' ? 'pod1' : undefined),
    grantsOf: (podUid) => (podUid === UID ? ['pod1'] : podUid === several ? ['pod2', 'pod3'] : []),
  };
  const inGroup = (uid: string, id: string) => found({ cgroup: `4:memory:/kubepods/burstable/pod${uid}/${id}\n` });
  const cases: [what: string, process: SampledProcess, expected: Owner][] = [
    ['the container with the share', inGroup(UID, main), grant('pod1')],
    ['a container of the pod without one', inGroup(UID, side), { kind: 'container', containerId: side, podUid: UID }],
    ['its container is not known yet', inGroup(UID, strange), { kind: 'unknown', reason: 'container_not_known' }],
    [
      'of a pod without any',
      inGroup(elsewhere, strange),
      { kind: 'container', containerId: strange, podUid: elsewhere },
    ],
    [
      'an id that is known to be of another pod',
      inGroup(UID, other),
      { kind: 'container', containerId: other, podUid: UID },
    ],
    [
      'a sandboxed pod: its processes are those of the pod',
      found({ cgroup: `4:memory:/kubepods/burstable/pod${elsewhere}\n` }),
      { kind: 'container', containerId: '', podUid: elsewhere },
    ],
    [
      'a sandboxed pod of which one container has a share: no other one has a GPU',
      found({ cgroup: `4:memory:/kubepods/burstable/pod${UID}\n` }),
      grant('pod1'),
    ],
    ['the same in the group of its sandbox', inGroup(UID, sandbox), grant('pod1')],
    [
      'a sandboxed pod of which several have one',
      found({ cgroup: `4:memory:/kubepods/burstable/pod${several}\n` }),
      { kind: 'unknown', reason: 'container_not_known' },
    ],
    [
      'the sandbox of one pod in the path of another',
      inGroup(elsewhere, sandbox),
      { kind: 'container', containerId: sandbox, podUid: elsewhere },
    ],
    ['the id under another pod', inGroup(elsewhere, main), { kind: 'container', containerId: main, podUid: elsewhere }],
  ];
  for (const [what, process, expected] of cases)
    t.deepEqual(ownerOfProcess(process, { ...FACTS, grantIds: new Set(['pod1']), pods }), expected, what);
});
