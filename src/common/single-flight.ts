// One piece of work that many may ask for: never twice at a time, and once more when it was asked for meanwhile.

export type InTurn = {
  ask(): void;
  /** Begins nothing any more; resolves when what runs has ended. */
  close(): Promise<void>;
};

/** `work` must not throw. */
export function inTurn(work: () => Promise<void>): InTurn {
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
