// How long the extender takes for a pod, on clusters of several sizes that are mostly full: its decisions alone, and
// the calls of kube-scheduler over loopback HTTP. Client, extender and the stub that takes bindings are in this one
// process.
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import type { Placement } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { type Allocations, createAllocations } from '../../../src/placement/allocations.ts';
import { demandOf } from '../../../src/placement/demand.ts';
import { createDecider, type Decider } from '../../../src/scheduler/decisions/filter-and-score.ts';
import { budgetsOf } from '../../../src/scheduler/evictions/disruption-budgets.ts';
import { createNominations } from '../../../src/scheduler/evictions/nominations.ts';
import { createPreemptionPlanner } from '../../../src/scheduler/evictions/preemption.ts';
import type { Bench } from '../bench.ts';
import type { Row } from '../row.ts';
import { noDecisions } from '../scheduler/no-decisions.ts';
import { median, quantile } from '../statistics.ts';
import { callerOf, extenderOn, serve } from './server.ts';

const GPUS = 8;
const GPU_BYTES = 80 * GIB;
/** Part of each GPU that is granted before anything is measured; GPUs differ by up to half of it. */
const FULL = 0.7;
const SHAPES = 20;
/** 2,000 pods a second, and 20,000 decisions of ours alone. */
const POD_MS = 0.5;
const DECISION_US = 50;
const NEW_SHAPE_MS = 5;

const uuid = (gpu: number) => `GPU-00000000-0000-4000-8000-${String(gpu).padStart(12, '0')}`;

/** The same on every run. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function clusterOf(count: number): { allocations: Allocations; names: readonly string[] } {
  const random = randomOf(count);
  const allocations = createAllocations();
  const names = Array.from({ length: count }, (_, index) => `node-${index}.pool-a.example`);
  for (const [node, nodeName] of names.entries()) {
    const gpus = Array.from({ length: GPUS }, (_, index) => ({
      gpuUuid: uuid(node * GPUS + index),
      index,
      model: 'NVIDIA H100 80GB HBM3',
      usableBytes: GPU_BYTES,
      healthy: true,
    }));
    allocations.setNode(nodeName, { mostTenantsPerGpu: 50, gpus });
    for (const { gpuUuid } of gpus) {
      const memoryBytes = Math.floor((GPU_BYTES * FULL * (0.5 + random())) / MIB) * MIB;
      const demand = new Map([
        [gpuUuid, { memoryBytes: Math.min(memoryBytes, GPU_BYTES), coresPercent: 0, tenants: 3 }],
      ]);
      allocations.allocate({ podUid: `before-${gpuUuid}`, nodeName, demand });
    }
  }
  return { allocations, names };
}

/** A request of one container, of which there are SHAPES kinds: `which` picks one. */
function recordOf(which: number, salt = 0): string {
  const kind = which % SHAPES;
  const share = { memory: { kind: 'bytes', bytes: (256 + 128 * kind) * MIB } } as const;
  const gpus = Array.from({ length: kind % 5 === 4 ? 2 : 1 }, () => share);
  const asked = { 'cotenant.io/gpu-memory': `${salt}` };
  const container = { name: 'main', kind: 'app', dialect: 'cotenant', asked, memoryIsolation: 'on', gpus } as const;
  return formatPodRequest({ priority: 'normal', gpuModels: [], gpuUuids: [], containers: [container] });
}

/** What the extender decides for one pod, without HTTP: filter, which gives the best node alone, and the choice on it. */
function decide(
  decider: Decider,
  allocations: Allocations,
  names: readonly string[],
  podUid: string,
  record: string,
): void {
  const read = decider.read(record);
  if (!read.ok) throw new Error(read.error);
  const request = read.value;
  const [best = ''] = decider.filter(request, names, 1).feasible;
  const placed = decider.on(request, best);
  if (!placed.ok) throw new Error(placed.reason());
  allocations.allocate({ podUid, nodeName: best, demand: demandOf(placed.containers) });
}

/** The names as kube-scheduler sends them: new texts, from another node on in each call (nextStartNodeIndex). */
function askedInTurn(names: readonly string[], turn: number): readonly string[] {
  const from = (turn * 997) % names.length;
  return JSON.parse(JSON.stringify([...names.slice(from), ...names.slice(0, from)]));
}

/** Microseconds of each pod's decision, after one of each shape. */
function timeDecisions(
  { allocations, names }: ReturnType<typeof clusterOf>,
  placement: Placement,
  runs: number,
): number[] {
  const decider = createDecider(allocations, placement);
  const times: number[] = [];
  for (let run = -SHAPES; run < runs; run += 1) {
    const record = recordOf(run + SHAPES);
    const asked = askedInTurn(names, run + SHAPES);
    const started = performance.now();
    decide(decider, allocations, asked, `core-${run}`, record);
    if (run >= 0) times.push((performance.now() - started) * 1000);
  }
  return times;
}

const NOMINATED = 10_000;

/** Milliseconds of each filter of a pod of such a priority beside nominated pods of priority 10. */
function timeNominated({ allocations, names }: ReturnType<typeof clusterOf>, priority: number, runs: number): number[] {
  const decider = createDecider(allocations, 'binpack');
  const budgets = budgetsOf([]);
  const planner = createPreemptionPlanner({
    ...{ allocations, budgets, boundPods: new Map(), defaultPlacement: 'binpack' },
  });
  const roomMaker = { without: <T>(_: number, decide: () => T) => decide() };
  const nominations = createNominations({ allocations, decider, planner, roomMaker });
  const nominated = Array.from({ length: NOMINATED }, (_, index) => ({
    ...{ pod: { podUid: `nominated-${index}`, priority: 10, mayPreempt: true }, text: recordOf(0), aspects: {} },
    node: names[index % names.length] ?? '',
  }));
  nominations.setAll(nominated);
  const read = decider.read(recordOf(1));
  if (!read.ok) throw new Error(read.error);
  const times: number[] = [];
  for (let run = -1; run < runs; run += 1) {
    const started = performance.now();
    nominations.without({ podUid: 'other', priority }, () => decider.filter(read.value, names));
    if (run >= 0) times.push(performance.now() - started);
  }
  return times;
}

/** Milliseconds of each pod: filter, prioritize unless one node is left, and bind, in turn on one connection. */
async function timePods(port: number, names: readonly string[], runs: number, label: string): Promise<number[]> {
  const { call, close } = callerOf(port);
  const times: number[] = [];
  for (let run = -Math.ceil(runs / 10); run < runs; run += 1) {
    const uid = `${label}-${run}`;
    const annotations = { [REQUEST_ANNOTATION]: recordOf(run + runs) };
    const Pod = {
      metadata: { name: uid, namespace: 'team', uid, annotations },
      spec: { containers: [{ name: 'main' }] },
    };
    const started = performance.now();
    const asked = askedInTurn(names, run + runs);
    const filtered = (await call('filter', { Pod, Nodes: null, NodeNames: asked })) as { NodeNames: string[] };
    const [first = '', ...others] = filtered.NodeNames;
    // Of one node it asks for no score.
    const scores = (others.length === 0 ? [] : await call('prioritize', { Pod, Nodes: null, NodeNames: asked })) as {
      Host: string;
      Score: number;
    }[];
    const best = scores.reduce((a, b) => (b.Score > a.Score ? b : a), { Host: first, Score: 0 });
    const bound = (await call('bind', { PodName: uid, PodNamespace: 'team', PodUID: uid, Node: best.Host })) as {
      Error?: string;
    };
    if (bound.Error !== undefined) throw new Error(bound.Error);
    if (run >= 0) times.push(performance.now() - started);
  }
  close();
  return times;
}

const total = (times: readonly number[]): number => times.reduce((sum, one) => sum + one, 0);

export const extender: Bench = {
  name: 'extender',
  what: 'one pod on clusters of several sizes: the decision alone, and the three calls over HTTP',
  async run(scope, { quick, note }) {
    const rows: Row[] = [];
    const runs = quick ? 300 : 2000;
    const [higher, lower] = [20, 5].map((priority) => median(timeNominated(clusterOf(5000), priority, quick ? 3 : 20)));
    rows.push({
      name: `extender.core.nodes_5000.nominated_${NOMINATED}_p50_ms`,
      value: higher ?? 0,
      unit: 'ms',
      reference: { value: lower ?? 0, what: 'a pod of a lower priority' },
    });
    for (const count of [100, 1000, 5000]) {
      const { allocations, names } = clusterOf(count);
      const learned = timeDecisions(clusterOf(count), 'fragmentation', runs);
      const decider = createDecider(allocations, 'binpack');
      const fresh: number[] = [];
      for (let run = 0; run < (quick ? 5 : 20); run += 1) {
        const record = recordOf(run, run + 1);
        const started = performance.now();
        const read = decider.read(record);
        if (!read.ok) throw new Error(read.error);
        decider.filter(read.value, names);
        fresh.push(performance.now() - started);
      }
      const times = timeDecisions({ allocations, names }, 'binpack', runs);
      const own = await timePods(await serve(scope, await extenderOn(scope, allocations)), names, runs, 'http');
      const floor = await timePods(await serve(scope, noDecisions), names, runs, 'noop');
      const what = 'an extender that decides nothing';
      const goal = count === 5000;
      rows.push(
        {
          name: `extender.core.nodes_${count}.decision_p50_us`,
          value: median(times),
          unit: 'us',
          reference: null,
          ...(goal && { goal: { most: DECISION_US } }),
        },
        {
          name: `extender.core.nodes_${count}.fragmentation_p50_us`,
          value: median(learned),
          unit: 'us',
          reference: { value: median(times), what: 'binpack' },
          ...(goal && { goal: { most: DECISION_US } }),
        },
        {
          name: `extender.core.nodes_${count}.new_shape_p50_ms`,
          value: median(fresh),
          unit: 'ms',
          reference: null,
          ...(goal && { goal: { most: NEW_SHAPE_MS } }),
        },
        {
          name: `extender.http.nodes_${count}.pod_p50_ms`,
          value: median(own),
          unit: 'ms',
          reference: { value: median(floor), what },
          ...(goal && { goal: { most: POD_MS, floor: true } }),
        },
        {
          name: `extender.http.nodes_${count}.rate_ratio`,
          value: total(floor) / total(own),
          unit: 'ratio',
          reference: { value: 1, what },
        },
        {
          name: `extender.http.nodes_${count}.pod_p99_ms`,
          value: quantile(own, 0.99),
          unit: 'ms',
          reference: { value: quantile(floor, 0.99), what },
        },
      );
      note(
        `${count} nodes: ${Math.round(1e6 / median(times))} decisions/s, ${Math.round(1000 / median(own))} pods/s over HTTP`,
      );
    }
    return rows;
  },
};
