// Brings the watch of bound pods up to what the API server has, without listing them: writes a mark on this replica's own
// pod, which is one of them. A watch has changes in the order of their revisions and leaves none out
// (https://etcd.io/docs/v3.6/learning/api_guarantees/, "Watch APIs"), so once it shows the mark it has shown all that was
// written before it. A consistent read alone would not do: the version that it
// returns counts writes of all kinds, and a watch of pods reaches it only with the next change or bookmark of theirs.
import { randomUUID } from 'node:crypto';
import { WATCH_MARK_ANNOTATION } from '../../api/names.ts';
import type { Logger } from '../../common/logger.ts';
import { describeApiError } from '../../kube/api-error.ts';
import { callApi, pathOf } from '../../kube/call.ts';
import type { ApiConfig } from '../../kube/config.ts';

export type CatchUpOptions = {
  readonly config: ApiConfig;
  readonly ownPod: { readonly namespace: string; readonly name: string };
  /** Lists all bound pods, where the mark cannot be written or is not shown in time. */
  readonly relist: () => Promise<void>;
  readonly logger: Pick<Logger, 'info'>;
  readonly waitMs?: number;
};

type CatchUp = {
  /** Resolves when the watch has shown all that was written before the call. */
  catchUp(): Promise<void>;
  /** A change that the watch shows, by the mark on its pod. */
  shown(mark: string | undefined): void;
};

/** Watches lag behind writes by milliseconds; a list of 100,000 pods takes longer than this. */
const WAIT_MS = 5000;

export function createCatchUp({ config, ownPod, relist, logger, waitMs = WAIT_MS }: CatchUpOptions): CatchUp {
  const { namespace, name } = ownPod;
  const waiting = new Map<string, () => void>();

  const mark = async (): Promise<void> => {
    const text = randomUUID();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    waiting.set(text, resolve);
    const timer = setTimeout(() => reject(new Error(`the watch did not show it within ${waitMs / 1000} s`)), waitMs);
    const body = { metadata: { annotations: { [WATCH_MARK_ANNOTATION]: text } } };
    try {
      const path = pathOf(namespace, 'pods', name);
      // Both at once: the watch may be quicker than the answer.
      await Promise.all([callApi(config, { method: 'PATCH', path, patch: 'merge', body, withinMs: waitMs }), promise]);
    } finally {
      clearTimeout(timer);
      waiting.delete(text);
    }
  };
  return {
    async catchUp() {
      try {
        await mark();
      } catch (error) {
        const why = describeApiError(error);
        logger.info(`all bound pods are listed, as a mark on pod ${namespace}/${name} does not serve: ${why}`);
        await relist();
      }
    },
    shown: (text) => {
      if (text !== undefined) waiting.get(text)?.();
    },
  };
}
