// What containers hold in the tests of the ladder, and the verdict on it.
import { MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE, judge, type Verdict } from '../../../src/policy/memory-verdict.ts';

export const LIMIT = 1000 * MIB;

/** What a container of 1000 MiB holds: in MiB, and how many of them past the interposer. */
export type Held = readonly [usedMiB: number, bypassMiB?: number];

export const WITHIN: Held = [900];

export const SOFT: Held = [1100];

export const FAR: Held = [2000];

export const BYPASS: Held = [1001, 1];

export const HONEST_BYPASS: Held = [1000, 1000];

export const NOTHING: Held = [0];

export type Sample = readonly [atMs: number, held: Held];

export const verdictOf = ([usedMiB, bypassMiB = 0]: Held): Verdict =>
  judge(
    [{ gpuUuid: 'GPU-a', limitBytes: LIMIT, usedBytes: usedMiB * MIB, bypassBytes: bypassMiB * MIB }],
    DEFAULT_TOLERANCE,
  );
