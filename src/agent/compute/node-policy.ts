// Changes compute policies while containers run: from `cotenant set`, the Node's labels and pods' annotations. Answers
// the caller or reports the refusal; shares.ts and the registry store the result.

import { COMPUTE_ANNOTATION } from '../../api/names.ts';
import { field } from '../../common/json.ts';
import type { Logger } from '../../common/logger.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';
import type { SampledGpu } from '../sampling/sample.ts';
import type { GpuPolicy } from './gpu-policy.ts';
import { readOverrides } from './pod-annotations.ts';
import type { NodeComputeChange, Shares } from './shares.ts';

export type NodeComputeState = {
  readonly highCapPercent: number;
  readonly gpus: readonly (GpuPolicy & {
    readonly gpuUuid: string;
    readonly index: number;
    readonly model: string;
  })[];
};

export type NodeCompute = {
  /** The policies of this node's GPUs. */
  state(): NodeComputeState;
  set(change: NodeComputeChange): Result<NodeComputeState>;
  /** Called with the Node's present labels. */
  onLabels(labels: Readonly<Record<string, string>>): void;
  /** Called with the present annotations of a pod of this node. */
  onPod(podUid: string, annotations: unknown): void;
  /** Tries refused changes again, because other grants may have ended. */
  retryRefused(): void;
};

/** A change of a running pod's compute or memory that the agent refused. */
export type RefusedChange = {
  /** Of the Event. */
  readonly reason: 'GPUComputeChangeRefused' | 'GPUMemoryChangeRefused';
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly message: string;
};

export function createNodeCompute(options: {
  readonly shares: Shares;
  readonly registry: Registry;
  readonly gpus: () => readonly SampledGpu[];
  readonly log: Pick<Logger, 'warn'>;
  readonly onRefused: (change: RefusedChange) => void;
}): NodeCompute {
  const { shares, registry, gpus, log, onRefused } = options;
  const state = (): NodeComputeState => ({
    highCapPercent: shares.highCapPercent(),
    gpus: gpus().map(({ uuid, index, name }) => ({ gpuUuid: uuid, index, model: name, ...shares.ofGpu(uuid) })),
  });
  /** By the pod's UID. A refused annotation text is reported once, however often the pod changes otherwise. */
  const refused = new Map<string, { readonly annotations: unknown; readonly reportedText: string }>();

  const onPod: NodeCompute['onPod'] = (podUid, annotations) => {
    const grants = registry.list().map(({ grant }) => grant);
    const own = grants.find((grant) => podUidOf(grant) === podUid);
    const changes = readOverrides(podUid, annotations, grants);
    if (!own || changes.ok) refused.delete(podUid);
    if (own && !changes.ok) {
      const text = String(field(annotations, COMPUTE_ANNOTATION) ?? '');
      const reportedText = refused.get(podUid)?.reportedText;
      refused.set(podUid, { annotations, reportedText: text });
      const { namespace, pod } = own;
      const message = `annotation ${COMPUTE_ANNOTATION} is not applied: ${changes.error}`;
      if (reportedText !== text) onRefused({ namespace, pod, podUid, reason: 'GPUComputeChangeRefused', message });
      return;
    }
    for (const { id, ...parts } of changes.ok ? changes.value : []) {
      try {
        registry.change(id, parts);
      } catch (error) {
        log.warn(`cannot change the compute of grant ${id}: ${(error as Error).message}`);
      }
    }
  };

  return {
    state,
    set(change) {
      const { gpuUuid } = change;
      const known = gpus().map(({ uuid }) => uuid);
      if (gpuUuid !== undefined && !known.includes(gpuUuid))
        return err(`no GPU ${gpuUuid} on this node; its GPUs are ${known.join(', ') || 'unknown'}`);
      shares.set(change);
      registry.updateLeases();
      return ok(state());
    },
    onLabels(labels) {
      if (shares.label(labels)) registry.updateLeases();
    },
    onPod,
    retryRefused() {
      for (const [podUid, { annotations }] of refused) onPod(podUid, annotations);
    },
  };
}
