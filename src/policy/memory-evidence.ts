// Is what the driver tells of a container's memory ground enough to stop it? Drivers count memory that processes share for each of
// them, and answers may not belong together: then more is told for processes than the GPU has in use. Pure.
import { judge, type MemoryVerdict, type Tolerance } from './memory-verdict.ts';

const MIB = 1024 * 1024;

/**
 * Of one GPU, from one sample: what each process of the container holds, what all processes do, what is in use at all, and how
 * much of that is known to be in no list (managed memory).
 */
export type Told = {
  readonly own: readonly { readonly bytes: number; readonly inLedger: boolean }[];
  readonly allBytes: number;
  readonly usedBytes: number;
  readonly unlistedBytes: number;
};

/**
 * `sure`: over, by as much as the step asks for, whoever's memory is counted twice. `likely`: so is its largest process that went
 * past the interposer, by itself, which no memory of others, counted twice to shield it, makes less; but a wrong answer would look
 * the same. `doubtful`: neither. What a process of the ledger has may be open in it and another one's, who paid for it.
 */
export type Ground = 'sure' | 'likely' | 'doubtful';

export function groundOf(
  verdict: Exclude<MemoryVerdict, { readonly severity: 'within' }>,
  { own, allBytes, usedBytes, unlistedBytes }: Told,
  tolerance: Tolerance,
): Ground {
  const largestOf = (processes: Told['own']) => Math.max(0, ...processes.map(({ bytes }) => bytes));
  const seenTwice = Math.max(0, allBytes - usedBytes);
  // What is in no list may hide more of it: of the container's own processes, each of which has its memory but once.
  const hiddenTwice = Math.max(0, allBytes - Math.max(0, usedBytes - unlistedBytes)) - seenTwice;
  const ownShared = own.reduce((sum, { bytes }) => sum + bytes, 0) - largestOf(own);
  const twice = seenTwice + Math.min(hiddenTwice, ownShared);
  if (twice === 0) return 'sure';
  // Readings a moment apart differ; a process that holds more than the GPU does not.
  if (largestOf(own) > usedBytes * 1.05 + 64 * MIB) return 'doubtful';
  const { worst, severity, reason } = verdict;
  const isOver = (bytes: number): boolean => {
    const found = judge([{ ...worst, usedBytes: bytes, bypassBytes: Math.min(worst.bypassBytes, bytes) }], tolerance);
    return found.severity === 'hard' || (found.severity === 'soft' && (severity === 'soft' || reason === 'no-room'));
  };
  // What others' ledgers say spares nobody who went past the interposer.
  if (isOver(worst.usedBytes - twice) || isOver(worst.bypassBytes - seenTwice)) return 'sure';
  return isOver(largestOf(own.filter(({ inLedger }) => !inLedger))) ? 'likely' : 'doubtful';
}
