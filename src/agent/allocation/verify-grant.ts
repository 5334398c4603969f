// Verifies the grant in a pod's annotations against this node's GPUs and other grants. Pure. The scheduler placed the
// pod, but two schedulers may have acted at once, another program may have bound the pod, or a GPU may be gone: no GPU
// is granted twice.

import type { GpuDemand } from '../../api/gpu.ts';
import { type ContainerGrant, type PodGrant, parsePodGrant } from '../../api/grant-annotation.ts';
import { parseMemorySizes } from '../../api/memory-annotation.ts';
import { GRANT_ANNOTATION, MEMORY_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import { type ContainerRequest, type PodRequest, resolveLimit, resolveShare } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { field } from '../../common/json.ts';
import { MIB } from '../../common/quantity.ts';
import { demandOf } from '../../placement/demand.ts';
import type { Grant } from '../grants/grant.ts';
import { grantedOn } from '../grants/sums.ts';
import { isShareable, usableBytes } from '../sampling/sample.ts';
import type { NodeState } from '../usage/node-usage.ts';

export type NodeGpu = {
  readonly gpuUuid: string;
  readonly usableBytes: number;
  readonly healthy: boolean;
  /** Sum of other grants on this GPU. */
  readonly granted: GpuDemand;
};

type Verification =
  | { readonly ok: true; readonly grant: PodGrant }
  /** `later`: the same pod may be accepted later. */
  | { readonly ok: false; readonly why: string; readonly later: boolean };

const refuse = (why: string, later = false): Verification => ({ ok: false, why, later });

/** This node's GPUs with the sums of `others` on them. */
export const nodeGpus = ({ devices }: NodeState, others: readonly Grant[]): NodeGpu[] =>
  devices.map(({ gpu }) => ({
    gpuUuid: gpu.uuid,
    usableBytes: usableBytes(gpu),
    healthy: gpu.healthy && isShareable(gpu),
    granted: grantedOn(others, gpu.uuid),
  }));

/** `annotations`: of the pod at the API server. `gpus`: of this node. The reason appears in the pod's Events. */
export function verifyGrant(annotations: unknown, gpus: readonly NodeGpu[]): Verification {
  const [record, text] = [field(annotations, REQUEST_ANNOTATION), field(annotations, GRANT_ANNOTATION)];
  if (record === undefined)
    return refuse(`the pod has no annotation ${REQUEST_ANNOTATION}: it did not pass the webhook`);
  const request = parsePodRequest(record);
  if (!request.ok) return refuse(`annotation ${REQUEST_ANNOTATION} is not what the webhook writes`);
  if (typeof text !== 'string')
    return refuse(
      `the pod has no GPU grant (annotation ${GRANT_ANNOTATION}): it was not bound by a scheduler that grants shares of GPUs`,
    );
  const read = parsePodGrant(text);
  if (!read.ok) return refuse(`annotation ${GRANT_ANNOTATION} cannot be read: ${read.error}`);
  const grant = read.value;
  const mismatch = mismatchOf(request.value, grant, gpus, resizedContainers(annotations));
  if (mismatch !== undefined) return refuse(mismatch);
  for (const [gpuUuid, need] of demandOf(grant.containers)) {
    const gpu = gpus.find((one) => one.gpuUuid === gpuUuid);
    if (!gpu) return refuse(`${gpuUuid}, which was granted, is not on this node`);
    if (!gpu.healthy) return refuse(`${gpuUuid}, which was granted, is not healthy`, true);
    const left = gpu.usableBytes - gpu.granted.memoryBytes;
    if (need.memoryBytes > left)
      return refuse(overcommitText(gpuUuid, 'cotenant.io/gpu-memory', mib(need.memoryBytes), mib(left)), true);
    const cores = 100 - gpu.granted.coresPercent;
    if (need.coresPercent > cores)
      return refuse(overcommitText(gpuUuid, 'cotenant.io/gpu-cores', `${need.coresPercent} %`, `${cores} %`), true);
  }
  return { ok: true, grant };
}

const mib = (bytes: number): string => `${Math.floor(bytes / MIB)} MiB`;

const overcommitText = (gpuUuid: string, resource: string, granted: string, left: string): string =>
  `${gpuUuid} would be overcommitted: ${granted} of ${resource} were granted, ${left} are left`;

/** Containers whose memory an operator changed: their amounts are not those of the request. */
function resizedContainers(annotations: unknown): ReadonlySet<string> {
  const text = field(annotations, MEMORY_ANNOTATION);
  const sizes = typeof text === 'string' ? parseMemorySizes(text) : undefined;
  return new Set(sizes?.ok ? sizes.value.keys() : []);
}

/** The first difference between grant and request, as a clause; undefined: none. */
function mismatchOf(
  request: PodRequest,
  grant: PodGrant,
  gpus: readonly NodeGpu[],
  resized: ReadonlySet<string>,
): string | undefined {
  const asked = new Map(request.containers.map((container) => [container.name, container]));
  const granted = new Map(grant.containers.map((container) => [container.name, container]));
  for (const name of asked.keys()) if (!granted.has(name)) return `the grant leaves out container ${name}`;
  for (const [name, container] of granted) {
    const want = asked.get(name);
    if (!want) return `the grant names container ${name}, which asked for no share`;
    const wrong = containerMismatchOf(want, container, gpus, resized.has(name));
    if (wrong !== undefined) return `the grant of container ${name} is not what it asked for: ${wrong}`;
  }
  return undefined;
}

function containerMismatchOf(
  want: ContainerRequest,
  got: ContainerGrant,
  gpus: readonly NodeGpu[],
  isResized: boolean,
): string | undefined {
  if (want.kind !== got.kind) return `it is of kind ${want.kind}, not ${got.kind}`;
  if (want.initIndex !== got.initIndex) return 'its place among the init containers differs';
  if (want.memoryIsolation !== got.memoryIsolation) return 'memory isolation differs';
  if (want.gpus.length !== got.gpus.length)
    return `${want.gpus.length} GPUs were asked for, ${got.gpus.length} granted`;
  for (const [index, share] of want.gpus.entries()) {
    const gpu = got.gpus[index];
    const own = gpus.find(({ gpuUuid }) => gpuUuid === gpu?.gpuUuid);
    if (!gpu || !own) continue; // verifyGrant reports a GPU that is not on this node
    const bytes = resolveShare(share, own.usableBytes);
    // A fraction of a GPU was computed from its usable memory at that time, which a new driver may have changed.
    const slack = share.memory.kind === 'bytes' ? 0 : own.usableBytes / 20;
    const limit = resolveLimit(share, own.usableBytes);
    const isOther = Math.abs(gpu.memoryBytes - bytes) > slack || Math.abs(gpu.limitBytes - limit) > slack;
    if (isOther && !isResized) return `${mib(bytes)} of ${gpu.gpuUuid} were asked for, ${mib(gpu.memoryBytes)} granted`;
    if (gpu.coresPercent !== (share.coresPercent ?? 0)) return `compute of ${gpu.gpuUuid} differs`;
  }
  return undefined;
}
