// What failed for single grants and is tried again later. Each problem is reported once until its text changes.

export type Retries = {
  readonly ids: () => IterableIterator<string>;
  readonly size: () => number;
  has(id: string): boolean;
  /** Runs `work`; where it throws, the grant stays in the list and `what` is reported with the reason. */
  run(id: string, what: string, work: () => void): void;
  /** Without a report: the caller reports. */
  add(id: string): void;
  forget(id: string): void;
};

export function createRetries(onProblem: (text: string) => void): Retries {
  const reported = new Map<string, string>();
  return {
    ids: () => reported.keys(),
    size: () => reported.size,
    has: (id) => reported.has(id),
    run(id, what, work) {
      try {
        work();
        reported.delete(id);
      } catch (error) {
        const text = `${what}, and it is tried again: ${(error as Error).message}`;
        if (reported.get(id) !== text) onProblem(text);
        reported.set(id, text);
      }
    },
    add: (id) => void reported.set(id, ''),
    forget: (id) => void reported.delete(id),
  };
}
