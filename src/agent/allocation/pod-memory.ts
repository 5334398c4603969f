// Applies changes of a running pod's memory: the scheduler writes another grant for the annotation `cotenant.io/memory`,
// and the grants of the pod follow it. What this node has no room for is refused, reported once, and tried again.

import { parsePodGrant } from '../../api/grant-annotation.ts';
import { parseMemorySizes } from '../../api/memory-annotation.ts';
import { GRANT_ANNOTATION, MEMORY_ANNOTATION } from '../../api/names.ts';
import { field } from '../../common/json.ts';
import type { Result } from '../../common/result.ts';
import type { RefusedChange } from '../compute/node-policy.ts';
import { podUidOf } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import type { Refusal } from '../grants/refusal.ts';
import type { Registry } from '../grants/registry.ts';

type PodMemory = {
  /** Called with the present annotations of a pod of this node. */
  onPod(podUid: string, annotations: unknown): void;
  /** Tries refused changes again, because other grants may have ended. */
  retryRefused(): void;
};

type PodMemoryOptions = {
  readonly registry: Pick<Registry, 'list'>;
  /** Changes a grant's memory on each of its GPUs. */
  readonly resize: (grantId: string, bytesPerGpu: number) => Result<LiveGrant, Refusal>;
  readonly onRefused: (change: RefusedChange) => void;
};

export function createPodMemory({ registry, resize, onRefused }: PodMemoryOptions): PodMemory {
  /** By the pod's UID: a refused grant is reported once, however often the pod changes otherwise. */
  const refused = new Map<string, { readonly annotations: unknown; readonly reportedText: string }>();

  const onPod: PodMemory['onPod'] = (podUid, annotations) => {
    const [text, grantText] = [field(annotations, MEMORY_ANNOTATION), field(annotations, GRANT_ANNOTATION)];
    if (typeof text !== 'string' || typeof grantText !== 'string') return void refused.delete(podUid);
    const [sizes, granted] = [parseMemorySizes(text), parsePodGrant(grantText)];
    // The webhook admits no other text, and the scheduler writes no other grant.
    if (!sizes.ok || !granted.ok) return;
    const reasons: string[] = [];
    const own = registry.list().filter(({ grant }) => podUidOf(grant) === podUid);
    for (const { grant } of own) {
      const container = granted.value.containers.find(({ name }) => name === grant.container);
      const bytes = sizes.value.has(grant.container) ? container?.gpus[0]?.memoryBytes : undefined;
      if (bytes === undefined || grant.gpus.every(({ memoryBytes }) => memoryBytes === bytes)) continue;
      const result = resize(grant.id, bytes);
      if (!result.ok) reasons.push(`container ${grant.container}: ${result.error.refused}`);
    }
    const [first] = own;
    if (!first || reasons.length === 0) return void refused.delete(podUid);
    const reportedText = refused.get(podUid)?.reportedText;
    refused.set(podUid, { annotations, reportedText: grantText });
    if (reportedText === grantText) return;
    const { namespace, pod } = first.grant;
    const message = `the grant is not applied yet: ${reasons.join('; ')}`;
    onRefused({ namespace, pod, podUid, reason: 'GPUMemoryChangeRefused', message });
  };

  return {
    onPod,
    retryRefused() {
      for (const [podUid, { annotations }] of refused) onPod(podUid, annotations);
    },
  };
}
