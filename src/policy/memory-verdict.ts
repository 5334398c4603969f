// When a container is over its quota of memory, and by how much it may be. Pure: figures in, verdict out; what happens then is the
// ladder's, and shares of compute are judged in share.ts. Source of the defaults: kubelet's eviction thresholds, and what peers'
// users complained about.
import type { ShareVerdict } from './compute-verdict.ts';

const MIB = 1024 * 1024;

/** How far above a grant is still within it, and what is far over. */
export type Tolerance = {
  /** Soft: above `limit * ratio + bytes`. Absorbs what no interposer can see at once: code, local memory, rounding. */
  readonly ratio: number;
  readonly bytes: number;
  /** Hard: above `limit * hardRatio + bytes`, so that a small grant is not far over before it is over. */
  readonly hardRatio: number;
  /** Where a GPU has less left than this, others feel it whenever somebody is over; 0: that makes no difference. */
  readonly reserveBytes: number;
};

export const DEFAULT_TOLERANCE: Tolerance = { ratio: 1.02, bytes: 64 * MIB, hardRatio: 1.25, reserveBytes: 64 * MIB };

/** One container on one GPU, all from one sample. `bypassBytes`: held by processes that its ledger does not know. */
export type GpuUse = {
  readonly gpuUuid: string;
  readonly limitBytes: number;
  readonly usedBytes: number;
  readonly bypassBytes: number;
};

export type Severity = 'within' | 'soft' | 'hard';
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

/** Of memory and of compute: the harder one, and of two that are as hard that of memory, which others lack for good. */
export const harder = (memory: MemoryVerdict, share: ShareVerdict): Verdict =>
  memory.severity === 'within' || (memory.severity === 'soft' && share.severity === 'hard') ? share : memory;

/** What a GPU has left, and how much of it others there were granted and have not taken. */
export type Room = { readonly freeBytes: number; readonly owedBytes: number };

/**
 * Who is over softly on a GPU with less left than the reserve, and less than others there may still have, keeps from them what is
 * theirs: that is hard. `roomOn`: undefined where the driver does not tell.
 */
export function judgeRoom(
  verdict: MemoryVerdict,
  uses: readonly GpuUse[],
  tolerance: Tolerance,
  roomOn: (gpuUuid: string) => Room | undefined,
): MemoryVerdict {
  if (verdict.severity !== 'soft') return verdict;
  const crowded = uses.filter(({ gpuUuid }) => {
    const room = roomOn(gpuUuid);
    return room !== undefined && room.freeBytes < Math.min(tolerance.reserveBytes, room.owedBytes);
  });
  const found = judge(crowded, tolerance);
  return found.severity === 'within' ? verdict : { ...found, severity: 'hard', reason: 'no-room' };
}

/**
 * The worst GPU decides. Memory held past the interposer gets no tolerance: whoever goes around the limit has nothing to
 * round. A bypass within the grant is within (a static program may well be honest); it is reported elsewhere.
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
