// Which isolation mechanism ("fence") holds a container's memory to its grant, and how a driver limit is updated. Pure.

/** From the strongest: the driver's limits, the interposer in the process, the agent from outside, nothing. */
export type Fence = 'driver' | 'interposer' | 'agent' | 'none';

export type FenceFacts = {
  readonly isolateMemory: boolean;
  /** The driver's limits were read back as set on each of its GPUs. */
  readonly driverHolds: boolean;
  /** On one of its GPUs the canary exceeded a grant. */
  readonly interposerFails: boolean;
  /** On any GPU, by the driver's figures. */
  readonly holdsMemory: boolean;
  /** A process that holds memory has a slot in its usage ledger. */
  readonly inLedger: boolean;
};

/** A container that holds no memory counts as held by the interposer, which it got when it was created. */
export function fenceOf({ isolateMemory, driverHolds, interposerFails, holdsMemory, inLedger }: FenceFacts): Fence {
  if (!isolateMemory) return 'none';
  if (driverHolds) return 'driver';
  return interposerFails || (holdsMemory && !inLedger) ? 'agent' : 'interposer';
}

/** The driver's limit for a cgroup as it is read; `hardBytes` null: not set. */
export type DriverLimit = { readonly softBytes: number; readonly hardBytes: number | null };

/** A driver may round amounts to its pages. */
const LARGEST_PAGE = 2 * 1024 * 1024;
/** Is this the limit that was set, as the driver may have rounded it? */
export const isAsSet = (hardBytes: number | null | undefined, setBytes: number): hardBytes is number =>
  typeof hardBytes === 'number' && Math.abs(hardBytes - setBytes) < LARGEST_PAGE;

export type LimitStep = 'set' | 'keep' | 'clear' | 'leave';

/**
 * What to do about a limit that was read. `ours`: amounts that this agent or an earlier one set or may have set, which
 * the driver may have rounded; `wanted` undefined: our limit is to be removed. A limit that another program set stays.
 */
export function limitStep(found: DriverLimit, ours: readonly number[], wanted: number | undefined): LimitStep {
  const isNone = found.softBytes === 0 && found.hardBytes === null;
  const isOurs =
    found.softBytes === 0 && found.hardBytes !== null && ours.some((bytes) => isAsSet(found.hardBytes, bytes));
  if (wanted === undefined) return isOurs ? 'clear' : 'leave';
  if (isOurs && found.hardBytes === wanted) return 'keep';
  return isNone || isOurs ? 'set' : 'leave';
}
