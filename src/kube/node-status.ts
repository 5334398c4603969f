// What a node offers in our names, kept right on its own Node: the annotation with its GPUs, the amounts of memory and
// compute in its status, and the conditions that say whether limits hold and whether GPUs are healthy. One write carries all. The kubelet sets amounts that are not its own to zero whenever it registers,
// so what counts is what the Node shows, not what was written.
import { CoreV1Api, type KubeConfig, PatchStrategy, setHeaderOptions, type V1Node } from '@kubernetes/client-node';
import { nodeGpusText } from '../api/earlier-names.ts';
import { GPU, GPU_CORES, GPU_MEMORY, GPUS_ANNOTATION } from '../api/names.ts';
import { formatNodeGpus, type NodeGpus, parseNodeGpus } from '../api/node-annotation.ts';
import { parseQuantity, wholeUnits } from '../common/quantity.ts';
import { describeApiError } from './api-error.ts';
import { createApiClient } from './client.ts';
import { listAndWatch } from './list-watch.ts';
import { type GpusReading, gpusToAdvertise } from './node-gpus.ts';

export type AdvertisingOptions = {
  readonly config: KubeConfig;
  readonly nodeName: string;
  /** undefined: not known yet, and the Node is left as it is. */
  readonly gpus: () => GpusReading | undefined;
  /** The annotation with the grant of a pod on this node, where it is known. */
  readonly grantTextOf: (podUid: string) => string | undefined;
  /** The Node's labels, whenever they may be others. */
  readonly onLabels?: (labels: Readonly<Record<string, string>>) => void;
  /** Also how many tenants the node takes. */
  readonly withSlots: boolean;
  readonly onProblem: (text: string) => void;
  /** From one write to the next, however often somebody else undoes it. */
  readonly leastBetweenWritesMs?: number;
};

export type Advertising = {
  /** To be called when `gpus` may answer something else. */
  changed(): void;
  close(): Promise<void>;
};

/** One of a Node's conditions as it is written; the server merges it into the list by its type. */
export type ConditionState = { readonly status: string; readonly reason: string; readonly message: string };
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
const SHORTEST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 60_000;

/**
 * What the Node is to show, as the patch that makes it so; `withSlots`: where no device plugin counts them. GPUs that are not
 * healthy count, for pods that run were admitted by them; new ones are kept off by what the annotation says of each GPU.
 */
export function buildNodePatch(
  offered: NodeGpus,
  withSlots: boolean,
  ...conditions: readonly (NodeCondition | undefined)[]
): NodePatch {
  const { gpus } = offered;
  const amounts = {
    [GPU_MEMORY]: String(gpus.reduce((sum, gpu) => sum + gpu.usableBytes, 0)),
    [GPU_CORES]: String(100 * gpus.length),
    ...(withSlots && { [GPU]: String(offered.mostTenantsPerGpu * gpus.length) }),
  };
  const told = conditions.filter((condition) => condition !== undefined);
  return {
    metadata: { annotations: { [GPUS_ANNOTATION]: formatNodeGpus(offered) } },
    status: { capacity: amounts, allocatable: amounts, ...(told.length > 0 && { conditions: told }) },
  };
}

/** What the Node is to say under that type; its time is that of the last change, as far as the Node tells it. */
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

/** Whether a Node shows already what the patch would make of it; the server writes amounts in other words. */
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
  const { config, nodeName, gpus, grantTextOf, withSlots, onProblem } = options;
  const { leastBetweenWritesMs = LEAST_BETWEEN_WRITES_MS } = options;
  const api = createApiClient(config, CoreV1Api);
  const fieldSelector = `metadata.name=${nodeName}`;
  let seen: V1Node | undefined;
  let next: NodeJS.Timeout | undefined;
  let writing = false;
  let closing = false;
  let retryMs = SHORTEST_RETRY_MS;

  const settle = async () => {
    if (writing || closing || next) return;
    const reading = gpus();
    if (!seen || !reading) return;
    const now = new Date();
    const patch = buildNodePatch(
      gpusToAdvertise(reading, shownGpus(seen), grantTextOf),
      withSlots,
      buildCondition(FENCES_HOLD, reading.fences, seen, now),
      buildCondition(GPUS_HEALTHY, reading.health, seen, now),
    );
    if (shows(seen, patch)) return;
    writing = true;
    let waitMs = leastBetweenWritesMs;
    try {
      // By keys: the list of conditions is the kubelet's, too.
      const asMerge = setHeaderOptions('Content-Type', PatchStrategy.StrategicMergePatch);
      see(await api.patchNodeStatus({ name: nodeName, body: patch }, asMerge));
      retryMs = SHORTEST_RETRY_MS;
    } catch (error) {
      if (closing) return;
      onProblem(
        `the amounts of node ${nodeName} could not be written, and it is tried again: ${describeApiError(error)}`,
      );
      waitMs = retryMs;
      retryMs = Math.min(2 * retryMs, LONGEST_RETRY_MS);
    } finally {
      writing = false;
    }
    if (closing) return;
    next = setTimeout(() => {
      next = undefined;
      void settle();
    }, waitMs);
  };

  /** A watch can lag behind the answer to a write. */
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
    list: () => api.listNode({ fieldSelector }),
    keep: (node: V1Node) => node,
    onList([node]) {
      if (node) onNode(node);
      else gone();
    },
    onChange: onNode,
    onGone: gone,
    onProblem: (text) => onProblem(`node ${nodeName} cannot be followed, and is asked for again: ${text}`),
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
  const shown = parseNodeGpus(nodeGpusText(metadata?.annotations) ?? '');
  return shown.ok ? shown.value : undefined;
}

/** By the versions of one object, which the server counts up. */
function isOlder(node: V1Node, than: V1Node | undefined): boolean {
  const [one, other] = [node.metadata?.resourceVersion, than?.metadata?.resourceVersion].map((text) =>
    /^\d+$/.test(text ?? '') ? BigInt(text ?? '') : undefined,
  );
  return node.metadata?.uid === than?.metadata?.uid && one !== undefined && other !== undefined && one < other;
}
