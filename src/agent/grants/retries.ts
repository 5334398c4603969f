// What failed for single grants and is tried again later.
import type { Logger } from '../../common/logger.ts';

type Retries = {
  readonly ids: () => IterableIterator<string>;
  readonly size: () => number;
  has(id: string): boolean;
  /** Runs `work`; where it throws, the grant stays in the list and `what` is reported with the reason. */
  run(id: string, what: string, work: () => void): void;
  /** Without a report: the caller reports. */
  add(id: string): void;
  forget(id: string): void;
};

export function createRetries(log: Pick<Logger, 'warn'>): Retries {
  const failed = new Set<string>();
  return {
    ids: () => failed.keys(),
    size: () => failed.size,
    has: (id) => failed.has(id),
    run(id, what, work) {
      try {
        work();
        failed.delete(id);
      } catch (error) {
        failed.add(id);
        log.warn(`${what}, and it is tried again: ${(error as Error).message}`);
      }
    },
    add: (id) => void failed.add(id),
    forget: (id) => void failed.delete(id),
  };
}
