// When the heartbeat of a limits page is due. Pure.

/** What a page was last written with, and by which reading of its ledger (CLOCK_BOOTTIME; undefined: before any). */
export type Beat = { readonly readNs: number | undefined; readonly gateClosed: boolean; readonly leased: boolean };
type Page = {
  readonly reading: { readonly readNs: number } | undefined;
  readonly gateClosed: boolean;
  readonly leased: boolean;
};

/** Only processes that wait at a closed gate read the heartbeat; it expires after 30 s
 * (native/interposer/entry/exports.c). */
const OF_OPEN_GATES_NS = 10e9;

/** A change of the gate is written at once, and a closed gate with each sample. */
export const isDue = (last: Beat | undefined, { reading, gateClosed, leased }: Page): boolean =>
  last === undefined ||
  last.leased !== leased ||
  last.gateClosed ||
  gateClosed ||
  last.readNs === undefined ||
  reading === undefined ||
  reading.readNs - last.readNs >= OF_OPEN_GATES_NS;
