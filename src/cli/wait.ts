// Waiting in the foreground until somebody wants an end.

/** Resolves at SIGINT, SIGTERM or SIGHUP. A second one ends the process at once. */
export async function untilSignal(): Promise<void> {
  await new Promise<void>((resolve) => {
    let asked = false;
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      process.on(signal, () => {
        if (asked) process.exit(1);
        asked = true;
        resolve();
      });
    }
  });
}
