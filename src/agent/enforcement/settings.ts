// Settings of enforcement: mode, tolerance, times of the ladder, limits of stops, and eviction.
import * as v from 'valibot';
import { MODES } from '../../api/request.ts';
import { numberFrom, oneOf, whole } from '../../common/schema.ts';
import { DEFAULT_SHARE_SECONDS } from '../../policy/compute-verdict.ts';
import { DEFAULT_EVICTION } from '../../policy/eviction.ts';
import { DEFAULT_LADDER } from '../../policy/ladder.ts';
import { DEFAULT_TOLERANCE } from '../../policy/memory-verdict.ts';
import { ENFORCER_LIMITS } from './enforcer.ts';

const MAX_BYTES = 2 ** 40;

export const EnforcementSettings = v.object({
  mode: v.optional(oneOf(MODES), DEFAULT_LADDER.mode),
  softSeconds: v.optional(numberFrom(0, 3600), DEFAULT_LADDER.softSeconds),
  softSamples: v.optional(whole(1, 1000), DEFAULT_LADDER.softSamples),
  /** From 2: one sample is never enough to stop a container. */
  hardSamples: v.optional(whole(2, 1000), DEFAULT_LADDER.hardSamples),
  graceSeconds: v.optional(numberFrom(0, 3600), DEFAULT_LADDER.graceSeconds),
  coolDownSeconds: v.optional(numberFrom(0, 3600), DEFAULT_LADDER.coolDownSeconds),
  releaseSeconds: v.optional(numberFrom(1, 3600), DEFAULT_LADDER.releaseSeconds),
  ratio: v.optional(numberFrom(1, 10), DEFAULT_TOLERANCE.ratio),
  bytes: v.optional(whole(0, MAX_BYTES), DEFAULT_TOLERANCE.bytes),
  hardRatio: v.optional(numberFrom(1, 100), DEFAULT_TOLERANCE.hardRatio),
  reserveBytes: v.optional(whole(0, MAX_BYTES), DEFAULT_TOLERANCE.reserveBytes),
  /** How long the compute use of a container is measured before it is judged. */
  shareSeconds: v.optional(numberFrom(10, 600), DEFAULT_SHARE_SECONDS),
  staleMs: v.optional(whole(100, 60_000), ENFORCER_LIMITS.staleMs),
  mostStopsPerMinute: v.optional(whole(1, 1000), ENFORCER_LIMITS.mostStopsPerMinute),
  evictAfterStops: v.optional(whole(0, 100), DEFAULT_EVICTION.evictAfterStops),
  evictWindowSeconds: v.optional(whole(10, 86_400), DEFAULT_EVICTION.evictWindowSeconds),
});
export type EnforcementSettings = Readonly<v.InferOutput<typeof EnforcementSettings>>;
