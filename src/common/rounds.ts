// Does something again and again, with a pause between the rounds, until it is closed.
import { setTimeout as delay } from 'node:timers/promises';

export type Rounds = {
  /** Aborted by `close`. */
  readonly signal: AbortSignal;
  start(): void;
  /** Resolves when the round that runs has ended. */
  close(): Promise<void>;
};

/** `round` must not throw. */
export function createRounds(round: () => Promise<void>, everyMs: number): Rounds {
  const closing = new AbortController();
  const { signal } = closing;
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      await round();
      await delay(everyMs, undefined, { signal }).catch(() => undefined);
    }
  };
  let running: Promise<void> | undefined;
  return {
    signal,
    start() {
      running ??= run();
    },
    async close() {
      closing.abort();
      await running;
    },
  };
}
