// Is the driver's data on a container's memory strong enough to stop the container? Drivers count memory that processes
// share once for each of them, and readings may not be of one moment: then processes appear to hold more than the GPU
// has in use. Pure.
import { MIB } from '../common/quantity.ts';
import { judge, type MemoryVerdict, type Tolerance } from './memory-verdict.ts';

/** Of one GPU, from one sample. */
export type MemoryEvidence = {
  /** The container's processes. */
  readonly own: readonly { readonly bytes: number; readonly inLedger: boolean }[];
  /** Sum over all processes on the GPU. */
  readonly allBytes: number;
  /** In use on the GPU. */
  readonly usedBytes: number;
  /** In use and in no process list (managed memory of other containers). */
  readonly unlistedBytes: number;
};

/**
 * `sure`: over by as much as the step requires, whichever processes share memory. `likely`: the container's largest
 * process past the interposer is over by itself, which memory shared among other processes cannot change, but a wrong
 * reading can look the same. `doubtful`: neither; memory of a process with a ledger slot may also be counted for
 * another process, which paid for it.
 */
export type EvidenceStrength = 'sure' | 'likely' | 'doubtful';

export function evidenceStrength(
  verdict: Exclude<MemoryVerdict, { readonly severity: 'within' }>,
  { own, allBytes, usedBytes, unlistedBytes }: MemoryEvidence,
  tolerance: Tolerance,
): EvidenceStrength {
  const largestOf = (processes: MemoryEvidence['own']) => Math.max(0, ...processes.map(({ bytes }) => bytes));
  const doubleCounted = Math.max(0, allBytes - usedBytes);
  // Unlisted memory can hide more double counting, but only among the container's own processes.
  const hiddenDouble = Math.max(0, allBytes - Math.max(0, usedBytes - unlistedBytes)) - doubleCounted;
  const ownShareable = own.reduce((sum, { bytes }) => sum + bytes, 0) - largestOf(own);
  const uncertainBytes = doubleCounted + Math.min(hiddenDouble, ownShareable);
  if (uncertainBytes === 0) return 'sure';
  // Readings a moment apart differ; no process holds more than the GPU has in use.
  if (largestOf(own) > usedBytes * 1.05 + 64 * MIB) return 'doubtful';
  const { worst, severity, reason } = verdict;
  const isOver = (bytes: number): boolean => {
    const found = judge([{ ...worst, usedBytes: bytes, bypassBytes: Math.min(worst.bypassBytes, bytes) }], tolerance);
    return found.severity === 'hard' || (found.severity === 'soft' && (severity === 'soft' || reason === 'no-room'));
  };
  // Ledgers of other containers protect no process past the interposer.
  if (isOver(worst.usedBytes - uncertainBytes) || isOver(worst.bypassBytes - doubleCounted)) return 'sure';
  return isOver(largestOf(own.filter(({ inLedger }) => !inLedger))) ? 'likely' : 'doubtful';
}
