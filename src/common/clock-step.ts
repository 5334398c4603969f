// By how much the wall clock was set between two samples, measured against the time since boot, which is never set. Times that
// are kept for minutes are wall-clock times, which people read: each step is added to them, so that it makes nothing older.

/** Wall-clock time and the time since boot, read together. */
export type SampledAt = { readonly atMs: number; readonly bootNs: number };

/** Less than that is NTP slewing the clock, not a step. */
const LEAST_STEP_MS = 500;

/** In milliseconds; 0: the clock was not set, or there was no sample before. */
export function clockStepMs(before: SampledAt, now: SampledAt): number {
  if (before.bootNs === 0 || now.bootNs <= before.bootNs) return 0;
  const stepMs = now.atMs - before.atMs - (now.bootNs - before.bootNs) / 1e6;
  return Math.abs(stepMs) < LEAST_STEP_MS ? 0 : stepMs;
}
