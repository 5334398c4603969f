// What the extender answers: from the ledger as it stands, in sentences that stay few however many nodes there are.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { V1Pod } from '@kubernetes/client-node';
import test from 'ava';
import fc from 'fast-check';
import type { PodRequest } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { bindingOf } from '../../../src/scheduler/binding-writer.ts';
import { readBoundPod } from '../../../src/scheduler/bound-pod.ts';
import { filterResult, readBindingRequest, readNodesAsked } from '../../../src/scheduler/extender-api.ts';
import { createDecider, type Decider } from '../../../src/scheduler/filter-and-score.ts';
import { clusterOf, recordOf, shapeOf, uuid } from './cluster.ts';

const booked = (podUid: string, nodeName: string, gpu: number, mib: number) => ({
  podUid,
  nodeName,
  need: new Map([[uuid(gpu), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
});

test('nodes with room pass; the others are told what is missing, apart by whether waiting can help', (t) => {
  const { ledger, decider } = clusterOf({ a: 1000, b: 3000, c: 4000 });
  ledger.book(booked('p', 'b', 1, 1500));
  t.deepEqual(decider.filter(shapeOf(decider, 2000), ['a', 'b', 'c', 'plain']), {
    feasible: ['c'],
    failed: { b: `node b: ${uuid(1)} has 1500 MiB of cotenant.io/gpu-memory left, 2000 MiB are asked for` },
    unresolvable: {
      a: `node a: ${uuid(0)} has 1000 MiB in all, 2000 MiB are asked for`,
      plain: 'node plain: it shares no GPU (no annotation cotenant.io/gpus on node plain)',
    },
  });
});

test('of many nodes the three nearest are told with their numbers, the others by kind, so that they can be counted', (t) => {
  const nodes = Array.from({ length: 5000 }, (_, index) => `n${String(index).padStart(4, '0')}`);
  const { ledger, decider } = clusterOf(Object.fromEntries(nodes.map((name) => [name, 1000])));
  for (const [index, name] of nodes.entries())
    ledger.book(booked(`p${index}`, name, index, index === 4321 ? 500 : 900));
  const { failed } = decider.filter(shapeOf(decider, 600), nodes);
  const texts = new Map<string, number>();
  for (const text of Object.values(failed)) texts.set(text, (texts.get(text) ?? 0) + 1);
  const missing = (node: string, gpu: number, left: number) =>
    `node ${node}: ${uuid(gpu)} has ${left} MiB of cotenant.io/gpu-memory left, 600 MiB are asked for`;
  t.deepEqual(
    [...texts].sort(([a], [b]) => (a < b ? -1 : 1)),
    [
      [missing('n0000', 0, 100), 1],
      [missing('n0001', 1, 100), 1],
      [missing('n4321', 4321, 500), 1],
      ['node(s) where no GPU has enough cotenant.io/gpu-memory left', 4997],
    ],
  );
});

test('a decision follows what is booked and released, and books nothing itself', (t) => {
  const { ledger, decider } = clusterOf({ a: 1000 });
  const shape = shapeOf(decider, 600);
  const feasible = () => decider.filter(shape, ['a']).feasible;
  t.deepEqual([feasible(), feasible()], [['a'], ['a']]);
  ledger.book(booked('p', 'a', 0, 500));
  t.deepEqual(feasible(), []);
  ledger.release('p');
  t.deepEqual(feasible(), ['a']);
});

test('what is remembered of a request is what would be decided anew, whatever happens in between', (t) => {
  const names = Array.from({ length: 40 }, (_, index) => `n${index}`);
  const node = fc.constantFrom(...names);
  const step = fc.oneof(
    fc.record({ kind: fc.constant('book' as const), pod: fc.nat(60), node, mib: fc.integer({ min: 1, max: 900 }) }),
    fc.record({ kind: fc.constant('release' as const), pod: fc.nat(60) }),
    fc.record({ kind: fc.constant('ask' as const), nodes: fc.shuffledSubarray(names, { minLength: 1 }) }),
    fc.record({ kind: fc.constant('remove' as const), node }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.constantFrom('binpack', 'spread'), (steps, placement) => {
      const { ledger, decider } = clusterOf(Object.fromEntries(names.map((name) => [name, 1000])));
      const shape = shapeOf(decider, 300, { placement });
      for (const one of steps) {
        if (one.kind === 'book') ledger.book(booked(`p${one.pod}`, one.node, names.indexOf(one.node), one.mib));
        else if (one.kind === 'release') ledger.release(`p${one.pod}`);
        else if (one.kind === 'remove') ledger.removeNode(one.node);
        else {
          const fresh = createDecider(ledger, 'binpack');
          const other = shapeOf(fresh, 300, { placement });
          t.deepEqual(decider.filter(shape, one.nodes), fresh.filter(other, one.nodes));
          const best = (scores: readonly { Host: string; Score: number }[]) =>
            scores.filter(({ Score }) => Score === 10);
          const scores = decider.prioritize(shape, one.nodes);
          t.deepEqual(best(scores), best(fresh.prioritize(other, one.nodes)));
          t.true(best(scores).length <= 1);
        }
      }
    }),
    { numRuns: 150 },
  );
});

/** One container of that name, asking for so much of one GPU. */
const named = (name: string, mib: number): PodRequest['containers'] => [
  {
    ...{
      name,
      kind: 'app',
      dialect: 'cotenant',
      asked: { 'cotenant.io/gpu-memory': `${mib}Mi` },
      memoryIsolation: 'on',
    },
    gpus: [{ memory: { kind: 'bytes', bytes: mib * MIB } }],
  },
];

test('pods that differ only in names share one set of cached decisions', (t) => {
  const nodes = Array.from({ length: 100 }, (_, index) => `n${index}`);
  const { decider } = clusterOf(Object.fromEntries(nodes.map((name) => [name, 1000])));
  for (let pod = 0; pod < 65; pod += 1) {
    const shape = shapeOf(decider, 0, { containers: named(`c${pod}`, 2000) });
    t.is(Object.keys(decider.filter(shape, [...nodes, 'plain']).unresolvable).length, 101);
  }
  t.deepEqual(decider.cached, { requests: 1, decisions: 100 });
  const placed = decider.on(shapeOf(decider, 0, { containers: named('other', 500) }), 'n0');
  t.is(placed.ok && placed.containers[0]?.name, 'other');
  decider.filter(shapeOf(decider, 0, { containers: named('c0', 2001) }), nodes);
  decider.filter(shapeOf(decider, 2000, { placement: 'spread' }), nodes);
  decider.filter(shapeOf(decider, 2000, { gpuModels: ['x'] }), nodes);
  t.deepEqual(decider.cached, { requests: 4, decisions: 400 });
});

test('400 requests that fit nowhere on 1,000 nodes of 8 GPUs leave a small heap', async (t) => {
  const program = join(import.meta.dirname, 'many-requests.ts');
  const { stdout } = await promisify(execFile)(process.execPath, ['--max-old-space-size=128', program]);
  const { cached, fits } = JSON.parse(stdout) as { cached: Decider['cached']; fits: number };
  t.is(fits, 0);
  t.deepEqual(cached, { requests: 250, decisions: 250_000 });
});

test('the best node is alone with the highest score, in an order that names alone never change', (t) => {
  const { ledger, decider } = clusterOf({ c: 1000, a: 1000, b: 1000, d: 100 });
  ledger.book(booked('p', 'b', 2, 300));
  const scores = (nodes: readonly string[], placement: 'binpack' | 'spread') =>
    Object.fromEntries(
      decider.prioritize(shapeOf(decider, 200, { placement }), nodes).map(({ Host, Score }) => [Host, Score]),
    );
  t.deepEqual(scores(['a', 'b', 'c', 'd'], 'binpack'), { b: 10, a: 6, c: 3, d: 0 });
  t.deepEqual(scores(['d', 'c', 'b', 'a'], 'binpack'), { b: 10, a: 6, c: 3, d: 0 });
  t.deepEqual(scores(['a', 'b', 'c'], 'spread'), { a: 10, c: 6, b: 3 });
});

test('a pod without a request of the webhook is refused with a text that says so', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  t.deepEqual(decider.read(undefined), {
    wrong: "the pod has no annotation cotenant.io/request: it did not pass through Cotenant's webhook",
  });
  t.deepEqual(decider.read(`${recordOf(5)} `), {
    wrong: "the pod's annotation cotenant.io/request is not what the webhook writes",
  });
});

test('what is asked about nodes is read by name or as whole Nodes, and answered in the same form', (t) => {
  const Pod = { metadata: { uid: 'u', annotations: { 'cotenant.io/request': 'r' } } };
  const named = readNodesAsked({ Pod, NodeNames: ['a', 'b'], Nodes: null });
  const whole = readNodesAsked({ Pod, Nodes: { items: [{ metadata: { name: 'a' } }, { metadata: { name: 'b' } }] } });
  t.like(named, { podUid: 'u', request: 'r', names: ['a', 'b'] });
  t.like(whole, { podUid: 'u', request: 'r', names: ['a', 'b'] });
  if ('wrong' in named || 'wrong' in whole) return t.fail();
  const filtered = { feasible: ['b'], failed: { a: 'why' }, unresolvable: {} };
  const reasons = { FailedNodes: { a: 'why' }, FailedAndUnresolvableNodes: {} };
  t.deepEqual(filterResult(filtered, named), { NodeNames: ['b'], ...reasons });
  t.deepEqual(filterResult(filtered, whole), { Nodes: { items: [{ metadata: { name: 'b' } }] }, ...reasons });
  for (const value of [
    undefined,
    null,
    [],
    'x',
    { Pod },
    { Pod, NodeNames: [1] },
    { Pod, Nodes: { items: [{}] } },
    { NodeNames: [] },
  ]) {
    t.true('wrong' in readNodesAsked(value), JSON.stringify(value));
  }
  const binding = { PodName: 'p', PodNamespace: 'n', PodUID: 'u', Node: 'a' };
  t.deepEqual(readBindingRequest(binding), { podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' });
  for (const key of Object.keys(binding)) t.true('wrong' in readBindingRequest({ ...binding, [key]: '' }), key);
});

test('the binding carries node and grant together, for exactly this pod, and is read back as what it takes', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  const placed = decider.on(shapeOf(decider, 600), 'a');
  if (!placed.ok) return t.fail();
  const request = { podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' };
  const { metadata, target } = bindingOf(request, 7, placed.containers);
  t.like(metadata, { name: 'p', namespace: 'n', uid: 'u' });
  t.deepEqual(target, { apiVersion: 'v1', kind: 'Node', name: 'a' });
  t.is(metadata?.annotations?.['gpu-uuids.cotenant.io/main'], uuid(0));
  const annotations = metadata?.annotations ?? {};
  t.deepEqual(readBoundPod({ metadata: { uid: 'u', annotations }, spec: { nodeName: 'a', containers: [] } }), {
    kind: 'booking',
    booking: booked('u', 'a', 0, 600),
    facts: {
      ...{ namespace: '', name: '', resourceVersion: '', epoch: 7, createdMs: 0 },
      ...{ state: 'waits', isMadeAgain: false },
    },
  });
});

test('pods that are not bound, done, or without a grant take nothing; a grant that cannot be read closes what it names', (t) => {
  const spec = { nodeName: 'a', containers: [] };
  const pod = (grant: string | undefined, more: object = {}) => ({
    metadata: {
      uid: 'u',
      namespace: 'team',
      name: 'x',
      annotations: {
        ...(grant !== undefined && { 'cotenant.io/grant': grant }),
        'gpu-uuids.cotenant.io/main': uuid(5),
      },
    },
    spec,
    ...more,
  });
  t.deepEqual(readBoundPod(pod(undefined)), { kind: 'nothing' });
  t.deepEqual(readBoundPod(pod('x', { spec: { containers: [] } })), { kind: 'nothing' });
  t.deepEqual(readBoundPod(pod('x', { status: { phase: 'Failed' } })), { kind: 'nothing' });
  t.deepEqual(readBoundPod(pod(`{"a":"${uuid(1)}","b":"${uuid(1)}`)), {
    kind: 'unreadable',
    pod: 'team/x',
    why: 'it is not JSON',
    booking: {
      podUid: 'u',
      nodeName: 'a',
      need: new Map(),
      closes: { gpuUuids: [uuid(1), uuid(5)], because: 'the grant of pod team/x on it cannot be read' },
    },
  });
});

test('a bound pod is known by whether anything of it has started, whether it is going, and whether it would be made again', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  const placed = decider.on(shapeOf(decider, 600), 'a');
  if (!placed.ok) return t.fail();
  const request = { podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' };
  const { annotations } = bindingOf(request, 7, placed.containers).metadata ?? {};
  const created = '2026-11-21T10:00:00Z';
  const facts = (metadata: object, status: object) => {
    const own = { uid: 'u', namespace: 'n', name: 'p', resourceVersion: '5', creationTimestamp: created, ...metadata };
    const pod = { metadata: { annotations, ...own }, spec: { nodeName: 'a', containers: [] }, status };
    const read = readBoundPod(pod as unknown as V1Pod);
    return read.kind === 'booking' ? read.facts : t.fail();
  };
  const owner = (apiVersion: string, kind: string, controller = true) => ({
    ownerReferences: [{ apiVersion, kind, name: 'x', uid: 'x', controller }],
  });
  const leaves = { deletionTimestamp: created };
  const waiting = { state: { waiting: {} } };
  t.deepEqual(facts(owner('apps/v1', 'ReplicaSet'), {}), {
    ...{ namespace: 'n', name: 'p', resourceVersion: '5', epoch: 7, createdMs: Date.parse(created) },
    ...{ state: 'waits', isMadeAgain: true },
  });
  const owners: [owner: object, isMadeAgain: boolean][] = [
    [{}, false],
    [owner('apps/v1', 'ReplicaSet', false), false],
    [owner('apps/v1', 'StatefulSet'), true],
    [owner('apps/v1', 'DaemonSet'), true],
    [owner('v1', 'ReplicationController'), true],
    [owner('batch/v1', 'Job'), false],
    [owner('apps.kruise.io/v1beta1', 'StatefulSet'), false],
    [owner('example.com/v1', 'Notebook'), false],
  ];
  for (const [own, isMadeAgain] of owners) t.like(facts(own, {}), { isMadeAgain }, JSON.stringify(own));
  const cases: [status: object, metadata: object, state: 'waits' | 'leaves' | 'started'][] = [
    [{ phase: 'Pending', containerStatuses: [waiting] }, {}, 'waits'],
    [{ phase: 'Pending', containerStatuses: [waiting] }, leaves, 'leaves'],
    [{ phase: 'Pending', initContainerStatuses: [{ state: { running: {} } }] }, {}, 'started'],
    [{ phase: 'Pending', initContainerStatuses: [{ state: { terminated: {} } }] }, leaves, 'started'],
    [{ phase: 'Pending', containerStatuses: [{ ...waiting, lastState: { terminated: {} } }] }, {}, 'started'],
    [{ phase: 'Running' }, {}, 'started'],
  ];
  for (const [status, metadata, state] of cases) t.is(facts(metadata, status)?.state, state, JSON.stringify(status));
});
