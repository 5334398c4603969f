// Pods that are asked for again and again, to see whether any is refused while something is done to the cluster. Nothing of
// them is stored.
import { setTimeout as delay } from 'node:timers/promises';
import type { Bed } from '../bed/bed.ts';

/** More at once than the 25 idle connections that an API server keeps, so that it also makes new ones all the time. */
const AT_ONCE = 40;
const PAUSE_MS = 50;

export type Stream = {
  /** How many were answered so far. */
  count(): number;
  /** Stops, and gives what was said about each that was refused. */
  end(): Promise<readonly string[]>;
};

/** Asks the API server in bursts to create `pod`, which has to pass admission each time. */
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
