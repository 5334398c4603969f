// The trace replayed through the whole extender, as kube-scheduler calls it: nodes whose CPU and memory suffice are
// filtered by us, the one that we score best is bound. What `fragmentation` knows of the workload it learns on the way
// from the pods that hold shares, where the other replays give it the statistics of the whole list. Owns
// kube-scheduler's part.
import { REQUEST_ANNOTATION } from '../../../src/api/names.ts';
import type { Placement } from '../../../src/api/request.ts';
import { formatPodRequest } from '../../../src/api/request-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createAllocations } from '../../../src/placement/allocations.ts';
import { createFreeCores } from '../../../src/scheduler/allocations/free-cores.ts';
import type { Teardown } from '../../support/native/node.ts';
import { callerOf, extenderOn, serve } from '../extender/server.ts';
import {
  arrivals,
  demandOf,
  fits,
  type Machine,
  type PodList,
  randomOf,
  shuffled,
  type Task,
  type Trace,
} from './openb.ts';

/** A thousandth of a GPU is one MiB of memory here, whatever the model: the trace has no memory. */
const GPU_MIB = 1000;

type Named = Machine & { readonly name: string };

function podOf(uid: string, { gpus, milli, cpu, models }: Task) {
  const share = { memory: { kind: 'bytes', bytes: milli * MIB } } as const;
  const container = {
    ...({ name: 'main', kind: 'app', dialect: 'cotenant', asked: {}, memoryIsolation: 'on' } as const),
    gpus: Array.from({ length: gpus }, () => share),
  };
  const request = { priority: 'normal', gpuModels: models, gpuUuids: [], containers: [container] } as const;
  return {
    metadata: { name: uid, namespace: 'team', uid, annotations: { [REQUEST_ANNOTATION]: formatPodRequest(request) } },
    spec: { containers: [{ name: 'main', resources: { requests: { cpu: `${cpu}m` } } }] },
  };
}

/**
 * What kube-scheduler's default plugins make of a pod that is not ours: NodeResourcesFit with LeastAllocated, and
 * NodeResourcesBalancedAllocation, both over CPU and memory and of weight 1, where 0.5 × |cpu − memory| is the standard
 * deviation of two fractions. Source: the pages "Scheduler Configuration" and "Resource Bin Packing" of Kubernetes'
 * documentation; pkg/scheduler/framework/plugins/noderesources.
 */
function defaultScore({ cpu, memory }: Task, { cpus, memory: all, freeCpu, freeMemory }: Machine): number {
  const [ofCpu, ofMemory] = [1 - (freeCpu - cpu) / cpus, 1 - (freeMemory - memory) / all];
  const least = Math.floor((Math.floor(100 * (1 - ofCpu)) + Math.floor(100 * (1 - ofMemory))) / 2);
  return least + Math.floor(100 * (1 - Math.abs(ofCpu - ofMemory) / 2));
}

/** Cores for each GPU, below which a node is tainted. */
const MANY_CORES = 24;
/** As `defaultScore`, with the taint of effect PreferNoSchedule that docs/operate/scheduler.md recommends on nodes with few
 * cores for each GPU: 100 points of TaintToleration, whose weight is 3 (pkg/scheduler/apis/config/v1). */
const taintedScore = (task: Task, machine: Machine): number =>
  defaultScore(task, machine) + (machine.cpus / 1000 >= MANY_CORES * machine.free.length ? 300 : 0);

/** What becomes of pods without GPUs, about which the extender is not asked. */
export const OTHER_PODS = { anywhere: defaultScore, prefer_no_schedule: taintedScore } as const;

const bestOf = <T>(items: readonly T[], scoreOf: (item: T) => number): T | undefined => {
  const scored = items.map((item) => [scoreOf(item), item] as const);
  return scored.reduce<(typeof scored)[number] | undefined>(
    (best, one) => (best && best[0] >= one[0] ? best : one),
    undefined,
  )?.[1];
};

type HttpReplay = {
  readonly trace: Trace;
  readonly list: PodList;
  readonly placement: Placement;
  readonly seed: number;
  readonly otherPods: keyof typeof OTHER_PODS;
};

/** Percent of all GPUs that are allocated when as much as there is has been requested, as `replay` of openb.ts has it. */
export async function replayOverHttp(
  scope: Teardown,
  { trace, list, placement, seed, otherPods }: HttpReplay,
): Promise<number> {
  const machines = shuffled(trace.machines, randomOf(seed)).map(
    (one, index): Named => ({ ...one, free: [...one.free], name: `node-${index}` }),
  );
  const byName = new Map(machines.map((machine) => [machine.name, machine]));
  const allocations = createAllocations();
  const freeCores = createFreeCores(allocations.setFreeCores);
  for (const { name, model, cpus, free } of machines) {
    const gpus = free.map((_, index) => ({
      ...{ gpuUuid: `${name}-${index}`, index, model, usableBytes: GPU_MIB * MIB, healthy: true },
    }));
    if (gpus.length > 0) allocations.setNode(name, { mostTenantsPerGpu: 100, gpus });
    freeCores.setNode(name, cpus / 1000);
  }
  const { call, close } = callerOf(await serve(scope, await extenderOn(scope, allocations, placement)));

  const schedule = async (uid: string, task: Task): Promise<Named | undefined> => {
    const roomy = machines.filter(({ freeCpu, freeMemory }) => task.cpu <= freeCpu && task.memory <= freeMemory);
    if (task.gpus === 0) return bestOf(roomy, (machine) => OTHER_PODS[otherPods](task, machine));
    const Pod = podOf(uid, task);
    const filtered = (await call('filter', { Pod, Nodes: null, NodeNames: roomy.map(({ name }) => name) })) as {
      readonly NodeNames: readonly string[] | null;
    };
    const feasible = filtered.NodeNames ?? [];
    if (feasible.length === 0) return undefined;
    const scores = (await call('prioritize', { Pod, Nodes: null, NodeNames: feasible })) as {
      readonly Host: string;
      readonly Score: number;
    }[];
    const node = bestOf(scores, ({ Score }) => Score)?.Host ?? '';
    const binding = { PodName: uid, PodNamespace: 'team', PodUID: uid, Node: node };
    const { Error: why } = (await call('bind', binding)) as { readonly Error?: string };
    if (why) throw new Error(`${uid} on ${node}: ${why}`);
    const machine = byName.get(node) as Named;
    if (!fits(task, machine)) throw new Error(`${uid} does not fit on ${node}`);
    for (const [gpu, { grantedBytes }] of allocations.placeableNode(node)?.gpus.entries() ?? [])
      machine.free[gpu] = GPU_MIB - grantedBytes / MIB;
    return machine;
  };

  const total = GPU_MIB * machines.reduce((sum, { free }) => sum + free.length, 0);
  const tasks = arrivals(list.tasks, 1.005 * total, randomOf(seed * 31 + 7));
  let [requested, allocated] = [0, 0];
  for (const [index, task] of tasks.entries()) {
    requested += demandOf(task);
    if (requested >= 1.005 * total) break;
    const uid = `pod-${index}`;
    const machine = await schedule(uid, task);
    if (!machine) continue;
    allocated += demandOf(task);
    machine.freeCpu -= task.cpu;
    machine.freeMemory -= task.memory;
    freeCores.setPod(uid, machine.name, task.cpu / 1000);
  }
  close();
  return (100 * allocated) / total;
}
