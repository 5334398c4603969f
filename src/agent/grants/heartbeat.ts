// When a limits page is told again that the agent is there. Pure.

/** What a page was last told, and when, by a clock that nobody sets. */
export type Beat = { readonly atMs: number; readonly gateClosed: boolean; readonly leased: boolean };

/** Whoever waits at a closed gate looks at the heartbeat, and it is old after 30 s (native/interposer/table.c); nobody else does. */
const OF_OPEN_GATES_MS = 10_000;

/** The gate is told at once where it is another one, and with each sample while it is closed. */
export const isDue = (last: Beat | undefined, now: Beat): boolean =>
  last === undefined ||
  last.leased !== now.leased ||
  last.gateClosed ||
  now.gateClosed ||
  now.atMs - last.atMs >= OF_OPEN_GATES_MS;
