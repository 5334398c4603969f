// What the driver's truth teaches a container's own books: pure, from two readings of its ledger with a sample between.
// A row that did not change from one reading to the next was the same when the driver was asked in between, so the
// difference is real: memory that no call of the process shows (code, local memory), or memory that a pool has given back.
import type { Feedback, LedgerReading, LedgerSlot } from './native.ts';
import type { SampledProcess } from './sample.ts';

export type FeedbackInput = {
  readonly before: LedgerReading | undefined;
  readonly after: LedgerReading;
  /** The processes of this container in the sample that was taken between the two readings. */
  readonly processes: readonly SampledProcess[];
  /** Sampled card of each card of the grant; undefined: not in the sample. */
  readonly cardIndex: readonly (number | undefined)[];
  /** Every process list of that card was answered. */
  readonly listsComplete: boolean;
  readonly ownPidNamespace: number;
  /** Is there a process with this pid and start time (in the agent's own PID namespace)? */
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

const NO_SIGNATURE = 0n;

/** The process behind a slot, as the sample knows it. */
export function processOfSlot(slot: LedgerSlot, processes: readonly SampledProcess[]): SampledProcess | undefined {
  return processes.find(
    (process) =>
      process.pidNamespace === slot.pidNamespace &&
      process.namespacePid === slot.pid &&
      process.startTicks === slot.startTicks,
  );
}

export function feedbackOf(input: FeedbackInput): Feedback[] {
  if (!input.listsComplete) return [];
  return input.after.slots.flatMap((slot) => slotFeedback(slot, input));
}

function slotFeedback(slot: LedgerSlot, input: FeedbackInput): Feedback[] {
  const process = processOfSlot(slot, input.processes);
  const earlier = input.before?.slots.find((other) => other.index === slot.index && other.stamp === slot.stamp);
  const dead = !process && earlier !== undefined && isDead(slot, input);
  return slot.cards.flatMap((row, card) => {
    const sampled = input.cardIndex[card];
    const empty = {
      slot: slot.index,
      card,
      stamp: slot.stamp,
      residualBytes: 0,
      releasedBytes: 0,
      signature: NO_SIGNATURE,
    };
    if (dead) return [{ ...empty, deadStamp: slot.stamp }];
    const stable = earlier?.cards[card]?.signature === row.signature;
    if (!stable || sampled === undefined) return [];
    const use = process?.cards.find((entry) => entry.card === sampled);
    if (use?.listed && use.bytes === undefined) return []; // the driver does not tell
    const truth = use?.bytes ?? 0;
    const charged = Math.max(0, row.heldBytes - row.managedBytes);
    return [
      {
        ...empty,
        residualBytes: truth - charged,
        // Nothing moved for a whole round: what was freed before it has left the card, or it is part of the residual.
        releasedBytes: row.freedBytes,
        signature: row.signature,
        deadStamp: 0n,
      },
    ];
  });
}

/** Gone for certain: the lock is free, the driver lists it nowhere, and where the agent can look, it is not there. */
function isDead(slot: LedgerSlot, input: FeedbackInput): boolean {
  if (slot.locked || slot.pid === 0) return false;
  if (slot.pidNamespace !== input.ownPidNamespace) return false;
  return !input.isAlive(slot.pid, slot.startTicks);
}
