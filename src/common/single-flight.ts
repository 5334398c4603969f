// Runs work that several callers request: never twice at a time, and once more when it was requested while it ran.

type SingleFlight = {
  ask(): void;
  /** Starts nothing more; resolves when the running work has ended. */
  close(): Promise<void>;
};

/** `work` must not throw. */
export function createSingleFlight(work: () => Promise<void>): SingleFlight {
  let asked = false;
  let closing = false;
  let running: Promise<void> | undefined;
  return {
    ask() {
      asked = true;
      if (closing || running) return;
      running = (async () => {
        while (asked && !closing) {
          asked = false;
          await work();
        }
      })().finally(() => {
        running = undefined;
      });
    },
    async close() {
      closing = true;
      await running;
    },
  };
}
