// What is known of the pods that hold grants on this node. A pod deleted by force while the kubelet or a container hangs
// is gone from the API server, and holds its GPUs until the kubelet unpublishes its volume. The informer alone does not
// say so, since it may be late: a pod is read before it counts as gone.
import { GRANT_ANNOTATION } from '../api/names.ts';
import { EVENT_QUOTA, remember } from '../common/quota.ts';
import type { HolderStateOf } from './node-gpus.ts';
import type { NodePods } from './pod-informer.ts';

export type HoldingPod = { readonly uid: string; readonly namespace: string; readonly name: string };

export type HolderOptions = {
  readonly pods: Pick<NodePods, 'cached' | 'read' | 'ready' | 'listenGone'>;
  /** The states may be others now. */
  readonly onChange: () => void;
  readonly onGone: (pod: HoldingPod) => void;
  /** For tests. */
  readonly retryMs?: number;
};

const RETRY_MS = 30_000;

export type HolderStates = {
  readonly stateOf: HolderStateOf;
  /** Since when the pod is known to be gone (`Date.now()`); undefined: it is not. */
  goneSinceMs(podUid: string): number | undefined;
};

export function createHolderStates({ pods, onChange, onGone, retryMs = RETRY_MS }: HolderOptions): HolderStates {
  const gone = new Map<string, number>();
  const asking = new Set<string>();
  let isListed = false;
  pods.listenGone(onChange);
  void pods.ready.then(() => {
    isListed = true;
    onChange();
  });
  const ask = async (pod: HoldingPod): Promise<void> => {
    asking.add(pod.uid);
    try {
      const found = await pods.read(pod.namespace, pod.name);
      if (found?.metadata?.uid === pod.uid) return;
      remember(gone, pod.uid, Date.now(), EVENT_QUOTA.mostKeys);
      onGone(pod);
      onChange();
    } catch {
      // The API server does not answer; other calls report that.
      setTimeout(onChange, retryMs).unref();
    } finally {
      asking.delete(pod.uid);
    }
  };
  const stateOf: HolderStateOf = ({ podUid: uid, pod }) => {
    const cached = pods.cached(uid);
    if (cached) return { kind: 'present', grantText: cached.metadata?.annotations?.[GRANT_ANNOTATION] };
    if (gone.has(uid)) return { kind: 'gone' };
    if (isListed && pod && !asking.has(uid)) void ask({ uid, ...pod });
    return { kind: 'unknown' };
  };
  return { stateOf, goneSinceMs: (podUid) => gone.get(podUid) };
}
