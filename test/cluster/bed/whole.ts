// A test cluster with all of Cotenant installed: images, simulated GPUs, and the chart with all components, ready to
// take pods.

import { type Helm, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { type Bed, type BedTools, bedTools, startBed } from './bed.ts';
import { eventually, WAIT_MS } from './eventually.ts';
import { INSIDE } from './gpus.ts';
import { NODE_NAME } from './node.ts';
import {
  addClientImage,
  addCotenantImage,
  addKubeSchedulerImage,
  addSimulatedNode,
  installChart,
  KUBE_SCHEDULER_IMAGE,
} from './product.ts';

export type WholeTools =
  | {
      readonly ok: true;
      readonly tools: Extract<BedTools, { ok: true }>;
      readonly helm: Exclude<Helm, { kind: 'missing' }>;
    }
  | { readonly ok: false; readonly reason: string };

/** What the whole needs, without building any of it; or the reason why it is not available here. */
export function wholeTools(say: (line: string) => void): WholeTools {
  const tools = bedTools(say, false);
  if (!tools.ok) return tools;
  const helm = lookForHelm();
  return helm.kind === 'missing' ? { ok: false, reason: helm.reason } : { ok: true, tools, helm };
}

export type Whole = {
  readonly bed: Bed;
  /** UUIDs of the node's GPUs, in the driver's order. */
  readonly uuids: readonly string[];
};

/** Chart values for a test cluster: every component is on, as by default, with one replica. */
export const WHOLE_VALUES = {
  agent: {
    configuration: {
      nvmlLibrary: `${INSIDE}/lib/libnvidia-ml.so.1`,
      cudaLibrary: `${INSIDE}/lib/libcuda.so.1`,
    },
  },
  webhook: {
    replicas: 1,
    configuration: { schedulerName: 'cotenant-scheduler', rules: { dialects: ['ack', 'metagpu'], allowGpuUuid: true } },
  },
  scheduler: { replicas: 1, kubeScheduler: { image: KUBE_SCHEDULER_IMAGE } },
};

/** `gpus`: models of the simulated GPUs; `driver`: another version than the simulator's own. The caller closes the
 * bed. */
export async function startWhole(
  { tools, helm }: Extract<WholeTools, { ok: true }>,
  gpus: readonly string[],
  say: (line: string) => void,
  values: object = WHOLE_VALUES,
  driver?: string,
): Promise<Whole> {
  const path = await readyHelm(helm);
  const started = performance.now();
  const bed = await startBed(tools, say);
  try {
    addCotenantImage(bed);
    addKubeSchedulerImage(bed, tools.bin);
    addClientImage(bed);
    const uuids = await addSimulatedNode(bed, gpus, driver);
    installChart(bed, path, values);
    await untilOffered(bed);
    say(
      `the chart is installed and the node offers its GPUs after ${Math.round((performance.now() - started) / 1000)} s`,
    );
    return { bed, uuids };
  } catch (error) {
    await bed.close();
    throw error;
  }
}

type Node = { status?: { allocatable?: Readonly<Record<string, string>> } };

/** Waits until the node has published its resources; resolves to all that it offers. */
export async function untilOffered(
  bed: Bed,
  node = NODE_NAME,
  ms = WAIT_MS,
): Promise<Readonly<Record<string, string>>> {
  const offered = async () => {
    const { allocatable = {} } = (await bed.api.get<Node>(`/api/v1/nodes/${node}`))?.status ?? {};
    const names = ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'];
    return names.every((name) => Number(allocatable[name] ?? 0) > 0) && allocatable;
  };
  return await eventually(offered, 'the node offers slots, memory and compute', ms);
}
