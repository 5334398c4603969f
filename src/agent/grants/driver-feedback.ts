// Corrections of a container's usage ledger by the driver's figures: pure, from two readings of the ledger with a
// sample in between. A row that did not change between the readings had the same value when the driver was sampled, so
// the difference is real: memory that no call shows (code, local memory), or memory that a pool released.
import type { Feedback, LedgerReading, LedgerRow, LedgerSlot } from '../os/addon.ts';
import { possibleStarts } from '../os/start-times.ts';
import type { SampledProcess } from '../sampling/sample.ts';

/** One reading, and the stamps of slots with a process that had certainly ended before it. */
export type Round = { readonly ledger: LedgerReading; readonly dead: ReadonlySet<bigint> };

export type FeedbackInput = {
  readonly before: Round | undefined;
  readonly after: Round;
  /** CLOCK_BOOTTIME at which the sample began. A sample older than the first reading gives no feedback. */
  readonly sampledNs: number;
  /** The processes of this container in that sample. */
  readonly processes: readonly SampledProcess[];
  /** Sampled GPU of each GPU of the grant; undefined: not in the sample. */
  readonly gpuIndex: readonly (number | undefined)[];
  /** Every process list of that GPU was answered. */
  readonly listsComplete: boolean;
  /** For each GPU of the grant. Absent: no memory is counted twice. */
  readonly doubleCounted?: readonly DoubleCounted[];
  /** The residual that this agent wrote to the limits page for a slot's row. Absent, or its result undefined: none. */
  readonly writtenResidualBytes?: (entry: Pick<Feedback, 'slot' | 'gpu' | 'stamp'>) => number | undefined;
};

/** By how much the driver's sum over processes exceeds the GPU's use: now, and the minimum over some time, which may
 * not have passed. */
export type DoubleCounted = { readonly bytes: number; readonly steadyBytes: number; readonly isSteady: boolean };
export const NOT_DOUBLE_COUNTED: DoubleCounted = { bytes: 0, steadyBytes: 0, isSteady: true };

/**
 * Drivers may count memory that processes share for each of them, though only its owner is charged for it. So memory
 * that may be counted twice raises no residual. It lowers one only where it is steady, because readings of a moment may
 * not match; and a row without feedback of this agent gets none before that is known. `othersBytes`: of the container's
 * other processes there, whose memory this one may have open.
 */
function withoutDoubleCounting(
  residualBytes: number,
  writtenBytes: number | undefined,
  { bytes, steadyBytes, isSteady }: DoubleCounted,
  othersBytes: number,
): number | undefined {
  const [now, steady] = [Math.min(bytes, othersBytes), Math.min(steadyBytes, othersBytes)];
  if (now === 0 || residualBytes <= 0) return residualBytes;
  if (writtenBytes === undefined && !isSteady) return undefined;
  return Math.max(0, residualBytes - now, Math.min(writtenBytes ?? 0, residualBytes - steady));
}

export type LivenessChecks = {
  readonly ownPidNamespace: number;
  /** Does a process with this PID and start time exist (in the agent's own PID namespace)? */
  readonly isAlive: (pid: number, startTicks: number) => boolean;
  /**
   * Does a process with this PID and start time exist in that PID namespace? Absent if the agent cannot see other
   * namespaces: then the end of a process in another namespace is not certain.
   */
  readonly isAliveInside?: (pidNamespace: number, pid: number, startTicks: number) => boolean;
};

const NO_SIGNATURE = 0n;

/** Announced bytes are a multiple of it; the remainder counts requests that are charged already, while their calls
 * last. */
const PENDING_GRAIN = 4096;

/** Unlocked slots of one ledger that are looked up in /proc per sample: a tenant may have forged all 1024. */
const MAX_LOOKUPS = 64;
/** Rows with feedback per sample; the other rows get theirs with the next sample. */
const MAX_FEEDBACK_ROWS = 256;

/** Finds the sampled process of a slot. Without a readable PID in its namespace it is identified by its other
 * fields. */
export function processFinder(
  processes: readonly SampledProcess[],
): (slot: Pick<LedgerSlot, 'pidNamespace' | 'pid' | 'startTicks'>) => SampledProcess | undefined {
  const byStart = Map.groupBy(processes, ({ startTicks }) => startTicks);
  return ({ pidNamespace, pid, startTicks }) => {
    let unreadable: SampledProcess | undefined;
    for (const ticks of possibleStarts(startTicks)) {
      for (const process of byStart.get(ticks) ?? []) {
        if (process.pidNamespace !== pidNamespace) continue;
        if (process.namespacePid === pid) return process;
        if (process.namespacePid === undefined) unreadable ??= process;
      }
    }
    return unreadable;
  };
}

export function roundOf(ledger: LedgerReading, living: LivenessChecks): Round {
  const dead = ledger.slots
    .filter((slot) => !slot.locked && slot.pid !== 0)
    .slice(0, MAX_LOOKUPS)
    .filter((slot) => isGone(slot, living));
  return { ledger, dead: new Set(dead.map((slot) => slot.stamp)) };
}

/** `isNews`: an entry that the page has already is not written again. */
export function feedbackOf(input: FeedbackInput, isNews: (entry: Feedback) => boolean = () => true): Feedback[] {
  const { before } = input;
  if (!input.listsComplete || !before || input.sampledNs <= before.ledger.readNs) return [];
  const processOf = processFinder(input.processes);
  const earlier = new Map<number, LedgerSlot>();
  for (const slot of before.ledger.slots) earlier.set(slot.index, slot);
  const entries: Feedback[] = [];
  for (const slot of input.after.ledger.slots) {
    const was = earlier.get(slot.index);
    const shown = { slot, earlier: was?.stamp === slot.stamp ? was : undefined, process: processOf(slot) };
    for (let gpu = 0; gpu < slot.gpus.length; gpu += 1) {
      const entry = rowFeedback(shown, gpu, input);
      if (entry && isNews(entry)) entries.push(entry);
      if (entries.length >= MAX_FEEDBACK_ROWS) return entries;
    }
  }
  return entries;
}

const heldOn = (gpu: number, processes: readonly SampledProcess[]): number =>
  processes
    .flatMap(({ gpus }) => gpus)
    .reduce((sum, use) => sum + (use.gpu === gpu && use.listed ? (use.bytes ?? 0) : 0), 0);

/** One slot of the ledger, as it was before if it is of the same process, and that process in the sample. */
type ShownSlot = {
  readonly slot: LedgerSlot;
  readonly earlier: LedgerSlot | undefined;
  readonly process: SampledProcess | undefined;
};

function rowFeedback({ slot, earlier, process }: ShownSlot, gpu: number, input: FeedbackInput): Feedback | undefined {
  const { stamp } = slot;
  const row = slot.gpus[gpu] as LedgerRow;
  const of = { slot: slot.index, gpu, stamp };
  // It had ended before the sample: the driver would have listed what it still held.
  const dead = !process && input.before?.dead.has(stamp) === true && input.after.dead.has(stamp);
  if (dead) return { ...of, residualBytes: 0, releasedBytes: 0, signature: NO_SIGNATURE, deadStamp: stamp };
  const sampled = input.gpuIndex[gpu];
  const stable = earlier?.gpus[gpu]?.signature === row.signature;
  // A process that was not recognized may hold memory all the same.
  if (!stable || sampled === undefined || !process) return undefined;
  // The driver may not have allocated yet what such a call is charged for.
  if (row.pendingBytes % PENDING_GRAIN > 0) return undefined;
  const use = process.gpus.find((entry) => entry.gpu === sampled);
  if (use?.listed && use.bytes === undefined) return undefined; // the driver does not report it
  const truth = use?.bytes ?? 0;
  const charged = Math.max(0, row.heldBytes - row.managedBytes);
  const doubleCounted = input.doubleCounted?.[gpu] ?? NOT_DOUBLE_COUNTED;
  const others = doubleCounted.bytes === 0 ? 0 : heldOn(sampled, input.processes) - truth;
  const written = input.writtenResidualBytes?.(of);
  const residualBytes = withoutDoubleCounting(truth - charged, written, doubleCounted, others);
  if (residualBytes === undefined) return undefined;
  // Nothing changed for a whole round: memory freed before it has left the GPU, or is part of the residual.
  return { ...of, residualBytes, releasedBytes: row.freedBytes, signature: row.signature, deadStamp: 0n };
}

/** Has the process of an unlocked slot certainly ended? A lock for life ends with the process; else /proc has to be
 * read. */
function isGone(slot: LedgerSlot, { ownPidNamespace, isAlive, isAliveInside }: LivenessChecks): boolean {
  if (slot.lockedForLife) return true;
  if (slot.pidNamespace === ownPidNamespace)
    return !possibleStarts(slot.startTicks).some((ticks) => isAlive(slot.pid, ticks));
  return isAliveInside !== undefined && !isAliveInside(slot.pidNamespace, slot.pid, slot.startTicks);
}
