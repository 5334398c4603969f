// Creates pods in dry runs again and again, to see whether one is refused while the cluster is changed. None of them is
// stored.
import { setTimeout as delay } from 'node:timers/promises';
import type { Bed } from '../bed/bed.ts';

/** More at once than the 25 idle connections that an API server keeps, so that it also opens new ones all the time. */
const AT_ONCE = 40;
const PAUSE_MS = 50;

export type Stream = {
  /** Number of answers so far. */
  count(): number;
  /** Stops; returns the message of each refusal. */
  end(): Promise<readonly string[]>;
};

/** Sends bursts of requests that create `pod`, each of which has to pass admission. */
export function createWithoutPause(bed: Bed, pod: object, namespace = 'default'): Stream {
  const refusals: string[] = [];
  let answered = 0;
  let ended = false;
  const path = `/api/v1/namespaces/${namespace}/pods?dryRun=All`;
  const ask = async () => {
    const refusal = await bed.api
      .ask('POST', path, pod)
      .then(
        ({ status, body }) => (status === 201 ? undefined : ((body as { message?: string }).message ?? String(status))),
        String,
      );
    answered += 1;
    if (refusal !== undefined) refusals.push(`${new Date().toISOString()} ${refusal}`);
  };
  const asking = (async () => {
    while (!ended) {
      await Promise.all(Array.from({ length: AT_ONCE }, ask));
      await delay(PAUSE_MS);
    }
  })();
  return {
    count: () => answered,
    end: async () => {
      ended = true;
      await asking;
      return refusals;
    },
  };
}
