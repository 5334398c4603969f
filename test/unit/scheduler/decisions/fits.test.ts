// What would fit a cluster, and how many more: compared with the allocations that a scheduler would make, one by one.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../../src/common/quantity.ts';
import { createDecider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { fitPods } from '../../../../src/scheduler/decisions/fits.ts';
import { clusterOf, parsedRequest, uuid } from '../cluster.ts';

const held = (podUid: string, nodeName: string, gpu: number, mib: number) => ({
  podUid,
  nodeName,
  demand: new Map([[uuid(gpu), { memoryBytes: mib * MIB, coresPercent: 0, tenants: 1 }]]),
});

test('pods are placed one after the other, and the rest is counted by node', (t) => {
  const { allocations, decider } = clusterOf({ a: 1000, b: 3000, c: 500 });
  allocations.allocate(held('p', 'a', 0, 300));
  const wanted = [
    { request: parsedRequest(decider, 600), replicas: 2 },
    { request: parsedRequest(decider, 1200), replicas: 1 },
    { request: parsedRequest(decider, 1300), replicas: 0 },
  ];
  t.deepEqual(fitPods(wanted, allocations, 'binpack'), [
    {
      placed: [
        { node: 'a', gpus: [uuid(0)] },
        { node: 'b', gpus: [uuid(1)] },
      ],
      more: 2,
      moreOn: [{ node: 'b', count: 2 }],
    },
    {
      placed: [{ node: 'b', gpus: [uuid(1)] }],
      more: 1,
      moreOn: [{ node: 'b', count: 1 }],
    },
    {
      placed: [],
      more: 0,
      moreOn: [],
      nearest: `node b: ${uuid(1)} has 1200 MiB of cotenant.io/gpu-memory free, but 1300 MiB are requested (it lacks 100 MiB)`,
    },
  ]);
  t.is(allocations.pods, 1, 'the allocations are as they were');
});

test('pods that do not all fit say why the first of the others does not', (t) => {
  const { allocations, decider } = clusterOf({ a: 1000, b: 900 });
  const request = parsedRequest(decider, 600);
  const [all, one, none] = [
    ...fitPods([{ request, replicas: 3 }], allocations, 'binpack'),
    ...fitPods([{ request, replicas: 1, nodes: ['b'] }], allocations, 'binpack'),
    ...fitPods([{ request, replicas: 1, nodes: [] }], allocations, 'binpack'),
  ];
  t.like(all, { placed: { length: 2 }, more: 0, moreOn: [] });
  t.regex(
    all?.nearest ?? '',
    /^node a: .* has 400 MiB of cotenant.io\/gpu-memory free, but 600 MiB are requested \(it lacks 200 MiB\)/,
  );
  t.like(one, { placed: [{ node: 'b' }], more: 0 });
  t.deepEqual(none, { placed: [], more: 0, moreOn: [], nearest: 'no node that may take it shares GPUs' });
});

test('as many fit as can be allocated one by one, each where the extender puts it', (t) => {
  const sizes = fc.array(fc.integer({ min: 1, max: 8 }), { minLength: 1, maxLength: 4 });
  const holders = fc.array(fc.record({ gpu: fc.nat(3), quarter: fc.integer({ min: 1, max: 12 }) }), { maxLength: 6 });
  const placement = fc.constantFrom('binpack' as const, 'spread' as const, 'fragmentation' as const);
  fc.assert(
    fc.property(
      fc.record({ sizes, holders, placement, mib: fc.integer({ min: 100, max: 3000 }), replicas: fc.nat(6) }),
      ({ sizes, holders, placement, mib, replicas }) => {
        const names = sizes.map((_, index) => `n${index}`);
        const { allocations } = clusterOf(Object.fromEntries(sizes.map((size, index) => [`n${index}`, size * 500])));
        for (const [index, { gpu, quarter }] of holders.entries())
          if (gpu < sizes.length) allocations.allocate(held(`h${index}`, `n${gpu}`, gpu, quarter * 125));
        const decider = createDecider(allocations, placement);
        const request = parsedRequest(decider, mib);
        const [fit] = fitPods([{ request, replicas }], allocations, placement);
        // The oracle: each GPU takes as many as go into what is left of it, and no more than its containers.
        const room = names.map((name, index) => {
          const gpu = allocations.placeableNode(name)?.gpus[0];
          const left = (sizes[index] ?? 0) * 500 * MIB - (gpu?.grantedBytes ?? 0);
          return Math.max(0, Math.min(10 - (gpu?.tenants ?? 0), Math.floor(left / (mib * MIB))));
        });
        const all = room.reduce((sum, one) => sum + one, 0);
        t.is((fit?.placed.length ?? 0) + (fit?.more ?? 0), Math.max(all, 0));
        t.is(fit?.placed.length, Math.min(replicas, all));
        for (const { node, count } of fit?.moreOn ?? []) t.true(count <= (room[names.indexOf(node)] ?? 0));
        for (const { node, gpus } of fit?.placed ?? []) {
          const { feasible } = decider.filter(request, names);
          const [best] = decider.prioritize(request, feasible).toSorted((a, b) => b.Score - a.Score);
          t.is(best?.Host, node);
          const placed = decider.on(request, node);
          t.true(placed.ok);
          allocations.allocate(held(`new${allocations.pods}`, node, names.indexOf(node), mib));
          t.deepEqual(gpus, [uuid(names.indexOf(node))]);
        }
      },
    ),
    { numRuns: 300 },
  );
});
