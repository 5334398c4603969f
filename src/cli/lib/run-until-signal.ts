// Waiting in the foreground until somebody wants an end.

type Running = { readonly close: () => Promise<void> };

/** For a start that is under way when somebody wants an end. */
const PATIENCE_MS = 2000;
let asked: Promise<void> | undefined;

/**
 * Resolves at SIGINT, SIGTERM or SIGHUP; a second one ends the process at once. They are heard from the first call on: before,
 * one would end the process, or do nothing at all to one that is the first of its container.
 */
export function untilSignal(): Promise<void> {
  asked ??= new Promise((resolve) => {
    let heard = false;
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      process.on(signal, () => {
        if (heard) process.exit(1);
        heard = true;
        resolve();
      });
    }
  });
  return asked;
}

/**
 * Starts, tells of it, and closes when somebody wants an end, even while it starts. A start that then takes long (it may wait
 * for an API server that does not answer) is left as if the process had been killed.
 */
export async function runUntilSignal<T extends Running>(
  start: () => Promise<T>,
  tell: (running: T) => void,
): Promise<number> {
  const signal = untilSignal();
  const starting = start();
  const before = await Promise.race([starting, signal]);
  if (before) {
    tell(before);
    await signal;
    await before.close();
    return 0;
  }
  const patience = setTimeout(() => process.exit(0), PATIENCE_MS);
  const late = await starting;
  clearTimeout(patience);
  await late.close();
  return 0;
}
