// Which fence holds a container's memory to its grant, and what is to be done about a limit of the driver's. Pure.

/** From the strongest: the driver itself, the interposer inside, the agent from outside, nothing. */
export type Fence = 'driver' | 'interposer' | 'agent' | 'none';

export type FenceFacts = {
  readonly isolateMemory: boolean;
  /** The driver's own limits are in force on each of its GPUs, as was read back. */
  readonly driverHolds: boolean;
  /** On one of its GPUs a canary got past the interposer. */
  readonly interposerFails: boolean;
  /** Of any GPU, by the driver's word. */
  readonly holdsMemory: boolean;
  /** One of those that hold it is known to its ledger. */
  readonly inLedger: boolean;
};

/** Who holds nothing is taken to have the interposer, which it got when it was made. */
export function fenceOf({ isolateMemory, driverHolds, interposerFails, holdsMemory, inLedger }: FenceFacts): Fence {
  if (!isolateMemory) return 'none';
  if (driverHolds) return 'driver';
  return interposerFails || (holdsMemory && !inLedger) ? 'agent' : 'interposer';
}

/** A limit of the driver's for a group, as it is read; `hardBytes` null: none. */
export type DriverLimit = { readonly softBytes: number; readonly hardBytes: number | null };

/** A driver may keep amounts in pages of its own. */
const LARGEST_PAGE = 2 * 1024 * 1024;
/** May a limit that is read be what the driver made of the one that was set? */
export const isAsSet = (hardBytes: number | null | undefined, setBytes: number): hardBytes is number =>
  typeof hardBytes === 'number' && Math.abs(hardBytes - setBytes) < LARGEST_PAGE;

export type LimitStep = 'set' | 'keep' | 'clear' | 'leave';

/**
 * What to do about a limit that was found. `ours`: amounts that we set there, or may have set when we were ended, which the
 * driver may have rounded; `wanted` undefined: ours is to be taken back. What somebody else set is left as it is.
 */
export function limitStep(found: DriverLimit, ours: readonly number[], wanted: number | undefined): LimitStep {
  const isNone = found.softBytes === 0 && found.hardBytes === null;
  const isOurs =
    found.softBytes === 0 && found.hardBytes !== null && ours.some((bytes) => isAsSet(found.hardBytes, bytes));
  if (wanted === undefined) return isOurs ? 'clear' : 'leave';
  if (isOurs && found.hardBytes === wanted) return 'keep';
  return isNone || isOurs ? 'set' : 'leave';
}
