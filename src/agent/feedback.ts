// What the driver's truth teaches a container's own books: pure, from two readings of its ledger with a sample between.
// A row that did not change from one reading to the next was the same when the driver was asked in between, so the
// difference is real: memory that no call of the process shows (code, local memory), or memory that a pool has given back.
import type { Feedback, LedgerReading, LedgerSlot } from './native.ts';
import type { SampledProcess } from './sample.ts';

/** One reading, and the stamps of slots whose processes were gone for certain when it was made. */
export type Round = { readonly ledger: LedgerReading; readonly dead: ReadonlySet<bigint> };

export type FeedbackInput = {
  readonly before: Round | undefined;
  readonly after: Round;
  /** CLOCK_BOOTTIME at which the sample began. A sample from before the first reading teaches nothing. */
  readonly sampledNs: number;
  /** The processes of this container in that sample. */
  readonly processes: readonly SampledProcess[];
  /** Sampled card of each card of the grant; undefined: not in the sample. */
  readonly cardIndex: readonly (number | undefined)[];
  /** Every process list of that card was answered. */
  readonly listsComplete: boolean;
};

export type Living = {
  readonly ownPidNamespace: number;
  /** Is there a process with this pid and start time (in the agent's own PID namespace)? */
  readonly isAlive: (pid: number, startTicks: number) => boolean;
  /**
   * Is there one that sees itself so in its own PID namespace? Absent where the agent would not see it: then the end of a
   * process in another namespace is not certain.
   */
  readonly isAliveInside?: (pidNamespace: number, pid: number, startTicks: number) => boolean;
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

export function roundOf(ledger: LedgerReading, living: Living): Round {
  return { ledger, dead: new Set(ledger.slots.filter((slot) => isDead(slot, living)).map((slot) => slot.stamp)) };
}

export function feedbackOf(input: FeedbackInput): Feedback[] {
  const { before } = input;
  if (!input.listsComplete || !before || input.sampledNs <= before.ledger.readNs) return [];
  return input.after.ledger.slots.flatMap((slot) => slotFeedback(slot, before, input));
}

function slotFeedback(slot: LedgerSlot, before: Round, input: FeedbackInput): Feedback[] {
  const process = processOfSlot(slot, input.processes);
  const earlier = before.ledger.slots.find((other) => other.index === slot.index && other.stamp === slot.stamp);
  // Dead already when the driver was asked: what it still held for the process, it would have listed.
  const dead = !process && before.dead.has(slot.stamp) && input.after.dead.has(slot.stamp);
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
    // Nobody may conclude from a process that was not recognised that it holds nothing.
    if (!stable || sampled === undefined || !process) return [];
    const use = process.cards.find((entry) => entry.card === sampled);
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

/** Gone for certain: the lock is free, and where the agent can look, it is not there. */
function isDead(slot: LedgerSlot, { ownPidNamespace, isAlive, isAliveInside }: Living): boolean {
  if (slot.locked || slot.pid === 0) return false;
  if (slot.pidNamespace === ownPidNamespace) return !isAlive(slot.pid, slot.startTicks);
  return isAliveInside !== undefined && !isAliveInside(slot.pidNamespace, slot.pid, slot.startTicks);
}
