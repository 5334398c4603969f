// By how much the time of day was set between two samples, by the clock that nobody sets. What is kept for minutes is measured in
// the time of day, which people read: it is moved with each jump, so that none makes anything older or younger. Pure.

/** Wall-clock time and the time since boot, read together. */
export type SampledAt = { readonly atMs: number; readonly bootNs: number };

/** A clock that is kept right runs a little faster or slower for a while: that is no jump. */
const SET_MS = 500;

/** In milliseconds; 0: it was not set, or there was no sample before. */
export function clockJumpMs(before: SampledAt, now: SampledAt): number {
  if (before.bootNs === 0 || now.bootNs <= before.bootNs) return 0;
  const jumpMs = now.atMs - before.atMs - (now.bootNs - before.bootNs) / 1e6;
  return Math.abs(jumpMs) < SET_MS ? 0 : jumpMs;
}
