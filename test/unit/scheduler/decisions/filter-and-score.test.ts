// What the extender answers, in few sentences however many nodes there are, and what it writes and reads of bound pods.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { V1Pod } from '@kubernetes/client-node';
import test from 'ava';
import fc from 'fast-check';
import type { PodRequest } from '../../../../src/api/request.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { err, ok } from '../../../../src/common/result.ts';
import { buildBinding } from '../../../../src/scheduler/allocations/binding-writer.ts';
import { readBoundPod } from '../../../../src/scheduler/allocations/bound-pod.ts';
import { createDecider, type Decider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { bestNode } from '../../../../src/scheduler/decisions/fits.ts';
import { filterResult, readBindingRequest, readNodesAsked } from '../../../../src/scheduler/extender-api.ts';
import { clusterOf, parsedRequest, recordOf, uuid } from '../cluster.ts';

const allocationOf = (podUid: string, nodeName: string, gpu: number, mib: number) => ({
  podUid,
  nodeName,
  demand: new Map([[uuid(gpu), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
});

/** Of node and grant. */
const digestOf = (text: string) => createHash('sha256').update(text).digest('base64').slice(0, 16);

test('nodes that fit pass; the others get a reason, apart by whether waiting can help', (t) => {
  const { allocations, decider } = clusterOf({ a: 1000, b: 3000, c: 4000 });
  allocations.allocate(allocationOf('p', 'b', 1, 1500));
  t.deepEqual(decider.filter(parsedRequest(decider, 2000), ['a', 'b', 'c', 'plain']), {
    feasible: ['c'],
    failed: {
      b: `node b: ${uuid(1)} has 1500 MiB of cotenant.io/gpu-memory free, but 2000 MiB are requested (it lacks 500 MiB)`,
    },
    unresolvable: {
      a: `node a: ${uuid(0)} has 1000 MiB of cotenant.io/gpu-memory, but 2000 MiB are requested (it lacks 1000 MiB)`,
      plain: 'node plain: the node shares no GPU (it has no annotation cotenant.io/gpus)',
    },
  });
});

test('only the three nearest nodes get numbers, the others a summary to be counted', (t) => {
  const nodes = Array.from({ length: 5000 }, (_, index) => `n${String(index).padStart(4, '0')}`);
  const { allocations, decider } = clusterOf(Object.fromEntries(nodes.map((name) => [name, 1000])));
  for (const [index, name] of nodes.entries())
    allocations.allocate(allocationOf(`p${index}`, name, index, index === 4321 ? 500 : 900));
  const { failed } = decider.filter(parsedRequest(decider, 600), nodes);
  const texts = new Map<string, number>();
  for (const text of Object.values(failed)) texts.set(text, (texts.get(text) ?? 0) + 1);
  const missing = (node: string, gpu: number, left: number) =>
    `node ${node}: ${uuid(gpu)} has ${left} MiB of cotenant.io/gpu-memory free, but 600 MiB are requested (it lacks ${600 - left} MiB)`;
  t.deepEqual(
    [...texts].sort(([a], [b]) => (a < b ? -1 : 1)),
    [
      [missing('n0000', 0, 100), 1],
      [missing('n0001', 1, 100), 1],
      [missing('n4321', 4321, 500), 1],
      ['node(s) where no GPU has enough cotenant.io/gpu-memory free', 4997],
    ],
  );
});

test('a decision follows what is allocated and released, and allocates nothing', (t) => {
  const { allocations, decider } = clusterOf({ a: 1000 });
  const request = parsedRequest(decider, 600);
  const feasible = () => decider.filter(request, ['a']).feasible;
  t.deepEqual([feasible(), feasible()], [['a'], ['a']]);
  allocations.allocate(allocationOf('p', 'a', 0, 500));
  t.deepEqual(feasible(), []);
  allocations.release('p');
  t.deepEqual(feasible(), ['a']);
});

test('cached decisions equal those of a new decider, whatever happens in between', (t) => {
  const names = Array.from({ length: 40 }, (_, index) => `n${index}`);
  const node = fc.constantFrom(...names);
  const step = fc.oneof(
    fc.record({ kind: fc.constant('allocate' as const), pod: fc.nat(60), node, mib: fc.integer({ min: 1, max: 900 }) }),
    fc.record({ kind: fc.constant('release' as const), pod: fc.nat(60) }),
    fc.record({ kind: fc.constant('ask' as const), nodes: fc.shuffledSubarray(names, { minLength: 1 }) }),
    fc.record({ kind: fc.constant('remove' as const), node }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.constantFrom('binpack', 'spread'), (steps, placement) => {
      const { allocations, decider } = clusterOf(Object.fromEntries(names.map((name) => [name, 1000])));
      const request = parsedRequest(decider, 300, { placement });
      for (const one of steps) {
        if (one.kind === 'allocate')
          allocations.allocate(allocationOf(`p${one.pod}`, one.node, names.indexOf(one.node), one.mib));
        else if (one.kind === 'release') allocations.release(`p${one.pod}`);
        else if (one.kind === 'remove') allocations.removeNode(one.node);
        else {
          const fresh = createDecider(allocations, 'binpack');
          const other = parsedRequest(fresh, 300, { placement });
          t.deepEqual(decider.filter(request, one.nodes, 1).feasible, fresh.filter(other, one.nodes, 1).feasible);
          t.deepEqual(decider.filter(request, one.nodes), fresh.filter(other, one.nodes));
          const best = (scores: readonly { Host: string; Score: number }[]) =>
            scores.filter(({ Score }) => Score === 10);
          const scores = decider.prioritize(request, one.nodes);
          t.deepEqual(best(scores), best(fresh.prioritize(other, one.nodes)));
          t.true(best(scores).length <= 1);
        }
      }
    }),
    { numRuns: 150 },
  );
});

test('where more nodes fit than are wanted, the best of those given are kept', (t) => {
  const names = Array.from({ length: 12 }, (_, index) => `n${index}`);
  const used = fc.array(fc.constantFrom(0, 100, 100, 500, 900), { minLength: names.length, maxLength: names.length });
  const asked = fc.shuffledSubarray(names);
  const placements = fc.constantFrom('binpack', 'spread');
  let cut = 0;
  fc.assert(
    fc.property(used, asked, fc.integer({ min: 1, max: 6 }), placements, (mibs, nodes, most, placement) => {
      const { allocations, decider } = clusterOf(Object.fromEntries(names.map((name) => [name, 1000])));
      for (const [index, mib] of mibs.entries())
        if (mib > 0) allocations.allocate(allocationOf(`p${index}`, names[index] ?? '', index, mib));
      const request = parsedRequest(decider, 300, { placement });
      const all = decider.filter(request, nodes);
      const kept = decider.filter(request, nodes, most);
      if (all.feasible.length < most) {
        t.deepEqual(kept, all);
        return;
      }
      cut += 1;
      // One after the other, the node that kube-scheduler would choose among the rest.
      const best: string[] = [];
      while (best.length < most) {
        const rest = all.feasible.filter((name) => !best.includes(name));
        best.push(decider.prioritize(request, rest).find(({ Score }) => Score === 10)?.Host ?? '');
      }
      t.deepEqual(kept, { feasible: best, failed: {}, unresolvable: {} });
    }),
    { numRuns: 200 },
  );
  t.true(cut > 20);
});

test('the best node after changes equals that of a decision about all nodes', (t) => {
  const names = Array.from({ length: 40 }, (_, index) => `n${index}`);
  const node = fc.constantFrom(...names);
  const mib = fc.constantFrom(300, 450, 700);
  const step = fc.oneof(
    fc.record({ kind: fc.constant('allocate' as const), pod: fc.nat(60), node, mib: fc.integer({ min: 1, max: 900 }) }),
    fc.record({ kind: fc.constant('release' as const), pod: fc.nat(60) }),
    fc.record({ kind: fc.constant('remove' as const), node }),
    // More pods than `fragmentation` learns its worth anew after, which voids the cache.
    fc.record({ kind: fc.constant('fill' as const), node }),
    fc.record({ kind: fc.constant('ask elsewhere' as const), mib, nodes: fc.subarray(names) }),
    { weight: 4, arbitrary: fc.record({ kind: fc.constant('ask' as const), mib }) },
  );
  const placements = fc.constantFrom('binpack', 'spread', 'fragmentation');
  let found = 0;
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.subarray(names), placements, (steps, among, placement) => {
      const { allocations, decider } = clusterOf(Object.fromEntries(names.map((name) => [name, 1000])));
      const best = decider.bestOf(among);
      for (const one of steps) {
        if (one.kind === 'allocate')
          allocations.allocate(allocationOf(`p${one.pod}`, one.node, names.indexOf(one.node), one.mib));
        else if (one.kind === 'release') allocations.release(`p${one.pod}`);
        else if (one.kind === 'remove') allocations.removeNode(one.node);
        else if (one.kind === 'fill')
          for (let pod = 0; pod < 30; pod += 1)
            allocations.allocate(allocationOf(`f${pod}`, one.node, names.indexOf(one.node), 1));
        else {
          const request = parsedRequest(decider, one.mib, { placement });
          if (one.kind === 'ask elsewhere') decider.filter(request, one.nodes);
          else {
            // Learns anew where that is due, which `best` does not.
            decider.filter(request, []);
            const answer = best(request);
            t.is(answer, bestNode(request, among, decider));
            if (answer !== undefined) found += 1;
          }
        }
      }
    }),
    { numRuns: 500 },
  );
  t.true(found > 500);
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
    const request = parsedRequest(decider, 0, { containers: named(`c${pod}`, 2000) });
    t.is(Object.keys(decider.filter(request, [...nodes, 'plain']).unresolvable).length, 101);
  }
  t.deepEqual(decider.cached, { requests: 1, decisions: 100 });
  const placed = decider.on(parsedRequest(decider, 0, { containers: named('other', 500) }), 'n0');
  t.is(placed.ok && placed.containers[0]?.name, 'other');
  decider.filter(parsedRequest(decider, 0, { containers: named('c0', 2001) }), nodes);
  decider.filter(parsedRequest(decider, 2000, { placement: 'spread' }), nodes);
  decider.filter(parsedRequest(decider, 2000, { gpuModels: ['x'] }), nodes);
  t.deepEqual(decider.cached, { requests: 4, decisions: 400 });
});

test('800 requests that fit none of 1,000 nodes with 8 GPUs each leave little memory', async (t) => {
  const program = join(import.meta.dirname, 'many-requests.ts');
  const { stdout } = await promisify(execFile)(process.execPath, ['--max-old-space-size=128', program]);
  const { cached, fits, arrayBytes } = JSON.parse(stdout) as {
    cached: Decider['cached'];
    fits: number;
    arrayBytes: number;
  };
  t.is(fits, 0);
  t.deepEqual(cached, { requests: 750, decisions: 750_000 });
  t.true(arrayBytes < 20 * MIB, String(arrayBytes));
});

test('only the best node has the highest score, in an order independent of names', (t) => {
  const { allocations, decider } = clusterOf({ c: 1000, a: 1000, b: 1000, d: 100 });
  allocations.allocate(allocationOf('p', 'b', 2, 300));
  const scores = (nodes: readonly string[], placement: 'binpack' | 'spread') =>
    Object.fromEntries(
      decider.prioritize(parsedRequest(decider, 200, { placement }), nodes).map(({ Host, Score }) => [Host, Score]),
    );
  t.deepEqual(scores(['a', 'b', 'c', 'd'], 'binpack'), { b: 10, a: 6, c: 3, d: 0 });
  t.deepEqual(scores(['d', 'c', 'b', 'a'], 'binpack'), { b: 10, a: 6, c: 3, d: 0 });
  t.deepEqual(scores(['a', 'b', 'c'], 'spread'), { a: 10, c: 6, b: 3 });
});

test('a pod without a request of the webhook is refused with the reason', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  t.deepEqual(
    decider.read(undefined),
    err(
      "the pod has no annotation cotenant.io/request: Cotenant's webhook did not admit it; delete it and create it again",
    ),
  );
  t.deepEqual(
    decider.read(`${recordOf(5)} `),
    err("Cotenant's webhook did not write the pod's annotation cotenant.io/request; create the pod without it"),
  );
});

test('nodes are read by name or as whole Nodes, and answered in the same form', (t) => {
  const Pod = { metadata: { uid: 'u', annotations: { 'cotenant.io/request': 'r' } } };
  const named = readNodesAsked({ Pod, NodeNames: ['a', 'b'], Nodes: null });
  const whole = readNodesAsked({ Pod, Nodes: { items: [{ metadata: { name: 'a' } }, { metadata: { name: 'b' } }] } });
  if (!named.ok || !whole.ok) return t.fail();
  t.like(named.value, { podUid: 'u', request: 'r', names: ['a', 'b'] });
  t.like(whole.value, { podUid: 'u', request: 'r', names: ['a', 'b'] });
  const filtered = { feasible: ['b'], failed: { a: 'why' }, unresolvable: {} };
  const reasons = { FailedNodes: { a: 'why' }, FailedAndUnresolvableNodes: {} };
  t.deepEqual(filterResult(filtered, named.value), { NodeNames: ['b'], ...reasons });
  t.deepEqual(filterResult(filtered, whole.value), { Nodes: { items: [{ metadata: { name: 'b' } }] }, ...reasons });
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
    t.false(readNodesAsked(value).ok, JSON.stringify(value));
  }
  const binding = { PodName: 'p', PodNamespace: 'n', PodUID: 'u', Node: 'a' };
  t.deepEqual(readBindingRequest(binding), ok({ podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' }));
  for (const key of Object.keys(binding)) t.false(readBindingRequest({ ...binding, [key]: '' }).ok, key);
});

test('a Binding carries node and grant for one pod UID, and reads back as allocation', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  const placed = decider.on(parsedRequest(decider, 600), 'a');
  if (!placed.ok) return t.fail();
  const request = { podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' };
  const { metadata, target } = buildBinding(request, 7, placed.containers);
  t.like(metadata, { name: 'p', namespace: 'n', uid: 'u' });
  t.deepEqual(target, { apiVersion: 'v1', kind: 'Node', name: 'a' });
  t.is(metadata?.annotations?.['gpu-uuids.cotenant.io/main'], uuid(0));
  t.is(metadata?.annotations?.['gpu-memory.cotenant.io/main'], undefined);
  const sized = buildBinding(request, 7, placed.containers, ['main', 'other']);
  t.deepEqual(sized.metadata?.annotations, { ...metadata?.annotations, 'gpu-memory.cotenant.io/main': '600' });
  const annotations = metadata?.annotations ?? {};
  t.deepEqual(readBoundPod({ metadata: { uid: 'u', annotations }, spec: { nodeName: 'a', containers: [] } }), {
    kind: 'granted',
    allocation: {
      ...{ ...allocationOf('u', 'a', 0, 600), cores: 0, gpuModels: [] },
      digest: digestOf(`a ${annotations['cotenant.io/grant']}`),
    },
    facts: {
      ...{ namespace: '', name: '', resourceVersion: '', epoch: 7, createdMs: 0 },
      ...{ state: 'waiting', isRecreated: false, priority: 0, isTerminating: false, labels: {} },
    },
  });
});

test('an invalid grant blocks the GPUs that it names; pods without one hold nothing', (t) => {
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
  t.deepEqual(readBoundPod(pod(undefined)), { kind: 'no-grant' });
  t.deepEqual(readBoundPod(pod('x', { spec: { containers: [] } })), { kind: 'no-grant' });
  t.deepEqual(readBoundPod(pod('x', { status: { phase: 'Failed' } })), { kind: 'no-grant' });
  t.deepEqual(readBoundPod(pod(`{"a":"${uuid(1)}","b":"${uuid(1)}`)), {
    kind: 'invalid',
    pod: 'team/x',
    why: 'it is not JSON',
    allocation: {
      podUid: 'u',
      nodeName: 'a',
      digest: digestOf(`a {"a":"${uuid(1)}","b":"${uuid(1)}`),
      demand: new Map(),
      blocks: { gpuUuids: [uuid(1), uuid(5)], reason: 'the grant of pod team/x on it cannot be read' },
    },
  });
});

test('a bound pod has a state, and its owner says whether it is recreated', (t) => {
  const { decider } = clusterOf({ a: 1000 });
  const placed = decider.on(parsedRequest(decider, 600), 'a');
  if (!placed.ok) return t.fail();
  const request = { podName: 'p', podNamespace: 'n', podUid: 'u', node: 'a' };
  const { annotations } = buildBinding(request, 7, placed.containers).metadata ?? {};
  const created = '2026-11-21T10:00:00Z';
  const facts = (metadata: object, status: object) => {
    const own = { uid: 'u', namespace: 'n', name: 'p', resourceVersion: '5', creationTimestamp: created, ...metadata };
    const pod = { metadata: { annotations, ...own }, spec: { nodeName: 'a', containers: [] }, status };
    const read = readBoundPod(pod as unknown as V1Pod);
    return read.kind === 'granted' ? read.facts : t.fail();
  };
  const owner = (apiVersion: string, kind: string, controller = true) => ({
    ownerReferences: [{ apiVersion, kind, name: 'x', uid: 'x', controller }],
  });
  const terminating = { deletionTimestamp: created };
  const waiting = { state: { waiting: {} } };
  t.deepEqual(facts(owner('apps/v1', 'ReplicaSet'), {}), {
    ...{ namespace: 'n', name: 'p', resourceVersion: '5', epoch: 7, createdMs: Date.parse(created) },
    ...{ state: 'waiting', isRecreated: true, priority: 0, isTerminating: false, labels: {} },
  });
  const owners: [owner: object, isRecreated: boolean][] = [
    [{}, false],
    [owner('apps/v1', 'ReplicaSet', false), false],
    [owner('apps/v1', 'StatefulSet'), true],
    [owner('apps/v1', 'DaemonSet'), true],
    [owner('v1', 'ReplicationController'), true],
    [owner('batch/v1', 'Job'), false],
    [owner('apps.kruise.io/v1beta1', 'StatefulSet'), false],
    [owner('example.com/v1', 'Notebook'), false],
  ];
  for (const [own, isRecreated] of owners) t.like(facts(own, {}), { isRecreated }, JSON.stringify(own));
  const cases: [status: object, metadata: object, state: 'waiting' | 'terminating' | 'started'][] = [
    [{ phase: 'Pending', containerStatuses: [waiting] }, {}, 'waiting'],
    [{ phase: 'Pending', containerStatuses: [waiting] }, terminating, 'terminating'],
    [{ phase: 'Pending', initContainerStatuses: [{ state: { running: {} } }] }, {}, 'started'],
    [{ phase: 'Pending', initContainerStatuses: [{ state: { terminated: {} } }] }, terminating, 'started'],
    [{ phase: 'Pending', containerStatuses: [{ ...waiting, lastState: { terminated: {} } }] }, {}, 'started'],
    [{ phase: 'Running' }, {}, 'started'],
  ];
  for (const [status, metadata, state] of cases) t.is(facts(metadata, status)?.state, state, JSON.stringify(status));
});
