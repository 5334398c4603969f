// Keeps this node's GPUs on its Node object: the annotation with its GPUs, the amounts of memory and compute in its
// status, and the conditions about enforcement and health, all in one write. The kubelet sets amounts that it does not
// manage to zero when it registers, so the Node as it is now decides whether to write, not the last write.
import type { V1Node } from '@kubernetes/client-node';
import { GPU, GPU_CORES, GPU_MEMORY, GPUS_ANNOTATION } from '../api/names.ts';
import { formatNodeGpus, type NodeGpus, parseNodeGpus } from '../api/node-annotation.ts';
import { createBackoff } from '../common/backoff.ts';
import { parseQuantity, wholeUnits } from '../common/quantity.ts';
import { describeApiError, retryAfterMsOf } from './api-error.ts';
import { callApi } from './call.ts';
import type { ApiConfig } from './config.ts';
import { listAndWatch } from './list-watch.ts';
import { type GpusReading, gpusToAdvertise, type HolderStateOf, heldSlots } from './node-gpus.ts';

export type AdvertisingOptions = {
  readonly config: ApiConfig;
  readonly nodeName: string;
  /** Undefined: not known yet; the Node is left unchanged. */
  readonly gpus: () => GpusReading | undefined;
  readonly stateOf: HolderStateOf;
  /** Called with the Node's labels whenever they may have changed. */
  readonly onLabels?: (labels: Readonly<Record<string, string>>) => void;
  /** Also advertises how many containers the node takes; false: a device plugin does. */
  readonly withSlots: boolean;
  readonly onProblem: (text: string) => void;
  /** Least time between two writes, however often another writer undoes them. */
  readonly leastBetweenWritesMs?: number;
  /** Within which the watches of all nodes come back after the API server was away. */
  readonly spreadMs?: number;
};

export type Advertising = {
  /** Call it when `gpus` may return other values. */
  changed(): void;
  close(): Promise<void>;
};

export type ConditionState = { readonly status: string; readonly reason: string; readonly message: string };
/** As it is written; the API server merges it into the list of conditions by its type. */
export type NodeCondition = ConditionState & {
  readonly type: string;
  readonly lastTransitionTime: string;
  readonly lastHeartbeatTime: string;
};

export type NodePatch = {
  readonly metadata: { readonly annotations: Readonly<Record<string, string>> };
  readonly status: Readonly<Record<'capacity' | 'allocatable', Readonly<Record<string, string>>>> & {
    readonly conditions?: readonly NodeCondition[];
  };
};

export const FENCES_HOLD = 'CotenantFencesHold';
export const GPUS_HEALTHY = 'CotenantGpusHealthy';

const LEAST_BETWEEN_WRITES_MS = 1000;
const RETRY_MS = { firstMs: 1000, mostMs: 60_000 };

/**
 * `held`: containers that hold a grant, below which the number of containers is not lowered; undefined: a device plugin
 * counts them. GPUs that are not healthy still count in the amounts, because the kubelet admitted running pods by them;
 * the annotation of each GPU keeps new pods off.
 */
export function buildNodePatch(
  offered: NodeGpus,
  held: number | undefined,
  ...conditions: readonly (NodeCondition | undefined)[]
): NodePatch {
  const { gpus } = offered;
  const amounts = {
    [GPU_MEMORY]: String(gpus.reduce((sum, gpu) => sum + gpu.usableBytes, 0)),
    [GPU_CORES]: String(100 * gpus.length),
    ...(held !== undefined && { [GPU]: String(Math.max(offered.mostTenantsPerGpu * gpus.length, held)) }),
  };
  const known = conditions.filter((condition) => condition !== undefined);
  return {
    metadata: { annotations: { [GPUS_ANNOTATION]: formatNodeGpus(offered) } },
    status: { capacity: amounts, allocatable: amounts, ...(known.length > 0 && { conditions: known }) },
  };
}

/** The condition of that type; keeps the Node's transition time while the status stays. */
export function buildCondition(
  type: string,
  state: ConditionState | undefined,
  node: V1Node,
  now: Date,
): NodeCondition | undefined {
  if (!state) return undefined;
  const before = node.status?.conditions?.find((shown) => shown.type === type);
  const since = before?.status === state.status ? before.lastTransitionTime : undefined;
  const lastTransitionTime = new Date(since ?? now).toISOString();
  return { type, ...state, lastTransitionTime, lastHeartbeatTime: now.toISOString() };
}

/** Whether the Node already is as the patch would make it. Amounts are compared by value: the server rewrites them. */
export function shows(node: V1Node, { metadata, status }: NodePatch): boolean {
  const sameAmounts = (shown: Readonly<Record<string, string>> = {}, wanted: Readonly<Record<string, string>>) =>
    Object.entries(wanted).every(([name, amount]) => amountOf(shown[name]) === BigInt(amount));
  return (
    Object.entries(metadata.annotations).every(([key, text]) => node.metadata?.annotations?.[key] === text) &&
    sameAmounts(node.status?.capacity, status.capacity) &&
    sameAmounts(node.status?.allocatable, status.allocatable) &&
    (status.conditions ?? []).every(({ type, status: is, reason, message }) =>
      node.status?.conditions?.some(
        (shown) => shown.type === type && shown.status === is && shown.reason === reason && shown.message === message,
      ),
    )
  );
}

function amountOf(text: string | undefined): bigint | undefined {
  const parsed = parseQuantity(text);
  return parsed.ok ? wholeUnits(parsed.value, 1n) : undefined;
}

export function startAdvertising(options: AdvertisingOptions): Advertising {
  const { config, nodeName, gpus, stateOf, withSlots, onProblem } = options;
  const { leastBetweenWritesMs = LEAST_BETWEEN_WRITES_MS, spreadMs = 0 } = options;
  const fieldSelector = `metadata.name=${nodeName}`;
  let seen: V1Node | undefined;
  let next: NodeJS.Timeout | undefined;
  let writing = false;
  let closing = false;
  const backoff = createBackoff(RETRY_MS);

  const settle = async () => {
    if (writing || closing || next) return;
    const reading = gpus();
    if (!seen || !reading) return;
    const now = new Date();
    const patch = buildNodePatch(
      gpusToAdvertise(reading, shownGpus(seen), stateOf),
      withSlots ? heldSlots(reading.grants) : undefined,
      buildCondition(FENCES_HOLD, reading.fences, seen, now),
      buildCondition(GPUS_HEALTHY, reading.health, seen, now),
    );
    if (shows(seen, patch)) return;
    writing = true;
    let waitMs = leastBetweenWritesMs;
    try {
      // A merge by keys: the kubelet writes other conditions into the same list.
      const path = `/api/v1/nodes/${encodeURIComponent(nodeName)}/status`;
      see(await callApi<V1Node>(config, { method: 'PATCH', path, patch: 'strategic', body: patch }));
      backoff.reset();
    } catch (error) {
      if (closing) return;
      onProblem(`cannot write the status of node ${nodeName}, which is retried: ${describeApiError(error)}`);
      waitMs = backoff.nextMs(retryAfterMsOf(error));
    } finally {
      writing = false;
    }
    if (closing) return;
    next = setTimeout(() => {
      next = undefined;
      void settle();
    }, waitMs);
  };

  /** The watch can lag behind the answer to a write. */
  const see = (node: V1Node) => {
    if (isOlder(node, seen)) return;
    seen = node;
  };
  const onNode = (node: V1Node) => {
    see(node);
    options.onLabels?.(seen?.metadata?.labels ?? {});
    void settle();
  };
  const gone = () => {
    seen = undefined;
  };
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    query: { fieldSelector },
    keep: (node: V1Node) => node,
    onList([node]) {
      if (node) onNode(node);
      else gone();
    },
    onChange: onNode,
    onGone: gone,
    onProblem: (text) => onProblem(`the watch of node ${nodeName} failed and is retried: ${text}`),
    spreadMs,
  });

  return {
    changed: () => void settle(),
    async close() {
      closing = true;
      clearTimeout(next);
      await following.close();
    },
  };
}

function shownGpus({ metadata }: V1Node): NodeGpus | undefined {
  const shown = parseNodeGpus(metadata?.annotations?.[GPUS_ANNOTATION] ?? '');
  return shown.ok ? shown.value : undefined;
}

/** By the resource versions of one object, which the server counts up. */
function isOlder(node: V1Node, than: V1Node | undefined): boolean {
  const [one, other] = [node.metadata?.resourceVersion, than?.metadata?.resourceVersion].map((text) =>
    /^\d+$/.test(text ?? '') ? BigInt(text ?? '') : undefined,
  );
  return node.metadata?.uid === than?.metadata?.uid && one !== undefined && other !== undefined && one < other;
}
