// Is a container over its GPU memory grant, and how severely? Pure: figures in, verdict out; ladder.ts decides what
// follows, and compute-verdict.ts judges compute shares. Source of the defaults: the kubelet's eviction thresholds, and
// complaints of users of similar systems.
import { MIB } from '../common/quantity.ts';
import type { ShareVerdict } from './compute-verdict.ts';

/** How much excess is tolerated, and how much is a hard excess. */
export type Tolerance = {
  /** Soft: above `limit * ratio + bytes`. Covers what an interposer cannot count at once: code, local memory,
   * rounding. */
  readonly ratio: number;
  readonly bytes: number;
  /** Hard: above `limit * hardRatio + bytes`; the same bytes, so that a small grant reaches soft before hard. */
  readonly hardRatio: number;
  /** On a GPU with less free memory than this any excess takes memory from other grants; 0: free memory is not
   * considered. */
  readonly reserveBytes: number;
};

export const DEFAULT_TOLERANCE: Tolerance = { ratio: 1.02, bytes: 64 * MIB, hardRatio: 1.25, reserveBytes: 64 * MIB };

/** One container on one GPU, from one sample. `bypassBytes`: held by processes without a slot in its usage ledger. */
export type GpuUse = {
  readonly gpuUuid: string;
  readonly limitBytes: number;
  readonly usedBytes: number;
  readonly bypassBytes: number;
};

export type MemoryReason = 'bypass' | 'far-over-limit' | 'no-room' | 'over-limit';
export type MemoryVerdict =
  | { readonly severity: 'within' }
  | {
      readonly severity: 'soft' | 'hard';
      readonly reason: MemoryReason;
      readonly worst: GpuUse;
      readonly overBytes: number;
    };
export type Verdict = MemoryVerdict | ShareVerdict;
export type OverReason = MemoryReason | 'over-share';

/** The harder of two verdicts; with equal severity memory, which other containers cannot get back by waiting. */
export const harder = (memory: MemoryVerdict, share: ShareVerdict): Verdict =>
  memory.severity === 'within' || (memory.severity === 'soft' && share.severity === 'hard') ? share : memory;

/** Free memory of a GPU, and how much of it other containers were granted and have not allocated. */
export type FreeMemory = { readonly freeBytes: number; readonly owedBytes: number };

/**
 * A soft excess on a GPU with less free memory than the reserve, and less than other containers may still allocate,
 * takes memory that they were granted: it becomes hard. `freeOn`: undefined where the driver does not report free
 * memory.
 */
export function judgeFreeMemory(
  verdict: MemoryVerdict,
  uses: readonly GpuUse[],
  tolerance: Tolerance,
  freeOn: (gpuUuid: string) => FreeMemory | undefined,
): MemoryVerdict {
  if (verdict.severity !== 'soft') return verdict;
  const crowded = uses.filter(({ gpuUuid }) => {
    const free = freeOn(gpuUuid);
    return free !== undefined && free.freeBytes < Math.min(tolerance.reserveBytes, free.owedBytes);
  });
  const found = judge(crowded, tolerance);
  return found.severity === 'within' ? verdict : { ...found, severity: 'hard', reason: 'no-room' };
}

/**
 * The worst GPU decides. Processes that bypass the interposer get no tolerance, which is for memory that the interposer
 * cannot count. A bypass within the grant is within (a statically linked program may be honest); a metric reports it.
 */
export function judge(uses: readonly GpuUse[], tolerance: Tolerance): MemoryVerdict {
  let verdict: MemoryVerdict = { severity: 'within' };
  for (const use of uses) {
    const found = judgeGpu(use, tolerance);
    if (found.severity === 'within') continue;
    const worse =
      verdict.severity === 'within' ||
      (found.severity === 'hard' && verdict.severity === 'soft') ||
      (found.severity === verdict.severity && found.overBytes > verdict.overBytes);
    if (worse) verdict = found;
  }
  return verdict;
}

function judgeGpu(use: GpuUse, tolerance: Tolerance): MemoryVerdict {
  const overBytes = use.usedBytes - use.limitBytes;
  if (overBytes <= 0) return { severity: 'within' };
  const over = (severity: 'soft' | 'hard', reason: MemoryReason): MemoryVerdict => ({
    severity,
    reason,
    worst: use,
    overBytes,
  });
  if (use.bypassBytes > 0) return over('hard', 'bypass');
  if (use.usedBytes > use.limitBytes * tolerance.hardRatio + tolerance.bytes) return over('hard', 'far-over-limit');
  if (use.usedBytes > use.limitBytes * tolerance.ratio + tolerance.bytes) return over('soft', 'over-limit');
  return { severity: 'within' };
}
