// What is said of the compute of this node and of its pods while they run: by `cotenant set`, the Node's labels, a pod's
// annotations. Owns the answers; what is kept is the shares' and the registry's.

import { COMPUTE_ANNOTATION } from '../../api/names.ts';
import { field } from '../../common/json.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Refusal } from '../grants/refusal.ts';
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
  set(change: NodeComputeChange): NodeComputeState | Refusal;
  /** The Node's labels are these now. */
  onLabels(labels: Readonly<Record<string, string>>): void;
  /** A pod of this node has these annotations now. */
  onPod(podUid: string, annotations: unknown): void;
  /** What was refused may have room now. */
  again(): void;
};

/** What an annotation of a pod says of its compute, and that is not done. */
export type RefusedChange = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly message: string;
};

export function createNodeCompute(options: {
  readonly shares: Shares;
  readonly registry: Registry;
  readonly gpus: () => readonly SampledGpu[];
  readonly onProblem: (text: string) => void;
  readonly onRefused: (change: RefusedChange) => void;
}): NodeCompute {
  const { shares, registry, gpus, onProblem, onRefused } = options;
  const state = (): NodeComputeState => ({
    highCapPercent: shares.highCapPercent(),
    gpus: gpus().map(({ uuid, index, name }) => ({ gpuUuid: uuid, index, model: name, ...shares.ofGpu(uuid) })),
  });
  /** By the pod's UID. Pods are told of a text once, however often they change in other ways and whatever is wrong with it then. */
  const refused = new Map<string, { readonly annotations: unknown; readonly told: string }>();

  const onPod: NodeCompute['onPod'] = (podUid, annotations) => {
    const grants = registry.list().map(({ grant }) => grant);
    const own = grants.find((grant) => podUidOf(grant) === podUid);
    const changes = readOverrides(podUid, annotations, grants);
    if (!own || !('wrong' in changes)) refused.delete(podUid);
    if (own && 'wrong' in changes) {
      const text = String(field(annotations, COMPUTE_ANNOTATION) ?? '');
      const told = refused.get(podUid)?.told;
      refused.set(podUid, { annotations, told: text });
      const { namespace, pod } = own;
      const message = `annotation ${COMPUTE_ANNOTATION} changes nothing: ${changes.wrong}`;
      if (told !== text) onRefused({ namespace, pod, podUid, message });
      return;
    }
    for (const { id, ...parts } of 'wrong' in changes ? [] : changes) {
      try {
        registry.change(id, parts);
      } catch (error) {
        onProblem(`the compute of grant ${id} is not changed: ${(error as Error).message}`);
      }
    }
  };

  return {
    state,
    set(change) {
      const { gpuUuid } = change;
      const known = gpus().map(({ uuid }) => uuid);
      if (gpuUuid !== undefined && !known.includes(gpuUuid))
        return { refused: `no GPU ${gpuUuid} on this node; there are ${known.join(', ') || 'none'}` };
      shares.set(change);
      registry.updateLeases();
      return state();
    },
    onLabels(labels) {
      if (shares.label(labels)) registry.updateLeases();
    },
    onPod,
    again() {
      for (const [podUid, { annotations }] of refused) onPod(podUid, annotations);
    },
  };
}
