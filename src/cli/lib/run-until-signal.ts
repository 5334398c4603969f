// Runs a daemon in the foreground until a signal ends it.

type Running = { readonly close: () => Promise<void> };

/** For a start that is in progress when a signal comes. */
const EXIT_TIMEOUT_MS = 2000;
let asked: Promise<void> | undefined;

/**
 * Resolves at SIGINT, SIGTERM or SIGHUP; a second one ends the process at once. Signals are handled from the first call
 * on: before it a signal would end the process, or do nothing to the first process of a container.
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
 * Starts, calls `onStart`, and closes at a signal, also during the start. A start that then takes long (it may wait for
 * an API server that does not answer) is abandoned.
 */
export async function runUntilSignal<T extends Running>(
  start: () => Promise<T>,
  onStart: (running: T) => void,
): Promise<number> {
  const signal = untilSignal();
  const starting = start();
  const before = await Promise.race([starting, signal]);
  if (before) {
    onStart(before);
    await signal;
    await before.close();
    return 0;
  }
  const timer = setTimeout(() => process.exit(0), EXIT_TIMEOUT_MS);
  const late = await starting;
  clearTimeout(timer);
  await late.close();
  return 0;
}
