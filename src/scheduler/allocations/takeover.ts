// When all that was written on bound pods must be known: at the start of a term, and for pods that were bound and are shown
// nowhere.
import type { Logger } from '../../common/logger.ts';
import type { InFlightBindings } from './in-flight.ts';

/** A new leader first learns what the leader before it bound; all bindings of its term wait for that. */
export function createTakeover(catchUp: () => Promise<void>, logger: Logger) {
  let learning: { readonly term: string; readonly done: Promise<void> } | undefined;
  return async (term: string, epoch: number): Promise<void> => {
    if (learning?.term !== term) {
      const done = catchUp().then(() =>
        logger.info(`this replica leads with epoch ${epoch}; all bound pods are known`),
      );
      learning = { term, done };
      done.catch(() => {
        if (learning?.done === done) learning = undefined;
      });
    }
    await learning.done;
  };
}

/** A pod that ended as soon as it was bound is in no list, and no event shows it: only a new list ends its binding. */
export function relistForLostPods(
  inFlight: InFlightBindings,
  relist: () => Promise<void>,
  shownMs: number,
): NodeJS.Timeout {
  let listing = false;
  const relistOnce = async (): Promise<void> => {
    if (listing || !inFlight.hasWrittenBefore(performance.now() - shownMs)) return;
    listing = true;
    await relist();
    listing = false;
  };
  return setInterval(() => void relistOnce(), shownMs / 6).unref();
}
