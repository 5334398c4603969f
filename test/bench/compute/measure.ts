// From windows to figures: shares, their errors, fairness, how long a change takes. Pure.

/** Windows of the laboratory, and how many make a second. */
export const WINDOW_MS = 100;
const PER_SECOND = 1000 / WINDOW_MS;
const WINDOW_US = WINDOW_MS * 1000;

export type Windows = readonly number[];

export const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

/** Percent of the time, over all windows. */
export const percentOf = (windows: Windows): number => (100 * mean(windows)) / WINDOW_US;

/** Percent of the time, in each full stretch of so many seconds. */
export function stretches(windows: Windows, seconds: number): number[] {
  const size = seconds * PER_SECOND;
  const count = Math.floor(windows.length / size);
  return Array.from({ length: count }, (_, index) => percentOf(windows.slice(index * size, (index + 1) * size)));
}

export const after = (windows: Windows, seconds: number): Windows => windows.slice(seconds * PER_SECOND);
export const between = (windows: Windows, fromSeconds: number, toSeconds: number): Windows =>
  windows.slice(fromSeconds * PER_SECOND, toSeconds * PER_SECOND);

/** Jain's index: 1 where all have the same, 1/n where one has all. */
export function jain(values: readonly number[]): number {
  const sum = values.reduce((total, value) => total + value, 0);
  const squares = values.reduce((total, value) => total + value * value, 0);
  return squares === 0 ? 0 : (sum * sum) / (values.length * squares);
}

/** How long after a change until every half second from then on is within `tolerance` points of the new share; null if
 * that never comes. */
export function settledAfterMs(windows: Windows, changeMs: number, percent: number, tolerance: number): number | null {
  const size = 500 / WINDOW_MS;
  const from = changeMs / WINDOW_MS;
  let settled: number | null = null;
  for (let start = windows.length - size; start >= from; start -= 1) {
    if (Math.abs(percentOf(windows.slice(start, start + size)) - percent) > tolerance) return settled;
    settled = (start - from) * WINDOW_MS;
  }
  return settled;
}
