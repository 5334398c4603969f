// What is said of the compute of this node and of its pods while they run: by `cotenant set`, the Node's labels, a pod's
// annotations. Owns the answers; what is kept is the shares' and the registry's.
import { COMPUTE_ANNOTATION } from '../../request/names.ts';
import type { Refusal } from '../grants/plain.ts';
import type { Registry } from '../grants/registry.ts';
import type { SampledCard } from '../sample.ts';
import { overridden } from './pods.ts';
import type { CardPolicy } from './policy.ts';
import type { NodeComputeChange, Shares } from './shares.ts';

export type NodeComputeState = {
  readonly highCapPercent: number;
  readonly cards: readonly (CardPolicy & {
    readonly gpuUuid: string;
    readonly index: number;
    readonly model: string;
  })[];
};

export type NodeCompute = {
  /** The policies of this node's cards. */
  state(): NodeComputeState;
  set(change: NodeComputeChange): NodeComputeState | Refusal;
  /** The Node's labels are these now. */
  onLabels(labels: Readonly<Record<string, string>>): void;
  /** A pod of this node has these annotations now. */
  onPod(podUid: string, annotations: unknown): void;
};

export function createNodeCompute(options: {
  readonly shares: Shares;
  readonly registry: Registry;
  readonly cards: () => readonly SampledCard[];
  readonly onProblem: (text: string) => void;
}): NodeCompute {
  const { shares, registry, cards, onProblem } = options;
  const state = (): NodeComputeState => ({
    highCapPercent: shares.highCapPercent(),
    cards: cards().map(({ uuid, index, name }) => ({ gpuUuid: uuid, index, model: name, ...shares.ofCard(uuid) })),
  });
  return {
    state,
    set(change) {
      const { gpuUuid } = change;
      const known = cards().map(({ uuid }) => uuid);
      if (gpuUuid !== undefined && !known.includes(gpuUuid))
        return { refused: `no card ${gpuUuid} on this node; there are ${known.join(', ') || 'none'}` };
      shares.set(change, registry);
      return state();
    },
    onLabels: (labels) => shares.label(labels, registry),
    onPod(podUid, annotations) {
      const grants = registry.list().map(({ grant }) => grant);
      for (const change of overridden(podUid, annotations, grants)) {
        if ('wrong' in change) {
          onProblem(`annotation ${COMPUTE_ANNOTATION} of pod ${podUid} is passed over: ${change.wrong}`);
          continue;
        }
        const { id, ...parts } = change;
        try {
          registry.change(id, parts);
        } catch (error) {
          onProblem(`the compute of grant ${id} is not changed: ${(error as Error).message}`);
        }
      }
    },
  };
}
