// When a limits page is told again that the agent is there. Pure.

/** What a page was last told, and with which reading of its ledger that was (CLOCK_BOOTTIME; undefined: before any). */
export type Beat = { readonly readNs: number | undefined; readonly gateClosed: boolean; readonly leased: boolean };
export type Page = {
  readonly reading: { readonly readNs: number } | undefined;
  readonly gateClosed: boolean;
  readonly leased: boolean;
};

/** Whoever waits at a closed gate looks at the heartbeat, and it is old after 30 s (native/interposer/entry/exports.c); nobody else does. */
const OF_OPEN_GATES_NS = 10e9;

/** The gate is told at once where it is another one, and with each sample while it is closed. */
export const isDue = (last: Beat | undefined, { reading, gateClosed, leased }: Page): boolean =>
  last === undefined ||
  last.leased !== leased ||
  last.gateClosed ||
  gateClosed ||
  last.readNs === undefined ||
  reading === undefined ||
  reading.readNs - last.readNs >= OF_OPEN_GATES_NS;
