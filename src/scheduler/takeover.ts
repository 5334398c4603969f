// When all bound pods are listed again: at the start of a term, and for pods that were bound and are shown nowhere.
import type { Logger } from '../common/logger.ts';
import type { InFlightBindings } from './in-flight.ts';

/** A new leader first lists what the leader before it bound; all bindings of its term wait for that one list. */
export function createTakeover(relist: () => Promise<void>, logger: Logger) {
  let listing: { readonly term: string; readonly done: Promise<void> } | undefined;
  return async (term: string, epoch: number): Promise<void> => {
    if (listing?.term !== term) {
      const done = relist().then(() => logger.info(`this replica leads with epoch ${epoch}; bound pods were listed`));
      listing = { term, done };
      done.catch(() => {
        if (listing?.done === done) listing = undefined;
      });
    }
    await listing.done;
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
