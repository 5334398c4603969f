// Does something again and again, with a pause between the rounds, until it is closed.
import { setTimeout as delay } from 'node:timers/promises';

export type Rounds = {
  /** Aborted by `close`. */
  readonly signal: AbortSignal;
  start(): void;
  /** Resolves when the round that runs has ended. */
  close(): Promise<void>;
};

/** `round` must not throw, and resolves with how long the next one has to wait at least, in milliseconds. */
export function createRounds(round: () => Promise<number>, everyMs: number): Rounds {
  const closing = new AbortController();
  const { signal } = closing;
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      await delay(Math.max(everyMs, await round()), undefined, { signal }).catch(() => undefined);
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
