// Sets the driver's memory limits for cgroups (drivers from 615 on) to the grants, reads them back, and removes those
// that are over, also of canaries and of earlier agents (records.ts). src/policy/isolation.ts decides what to do about a
// limit that was read.
import type { Logger } from '../../../common/logger.ts';
import { isAsSet, type LimitStep, limitStep } from '../../../policy/isolation.ts';
import type { Grant } from '../../grants/grant.ts';
import type { HelperRunner } from '../../os/helper-process.ts';
import { askDriverLimits, FUNCTION_NOT_FOUND, getLine, type LimitAnswer, NOT_FOUND, setLine } from './client.ts';
import { CANARY, keyOf, type LimitRecord, type LimitRecords, NOT_SET, type Place } from './records.ts';

export type DriverLimitsOptions = {
  readonly tools: Pick<HelperRunner, 'run'>;
  readonly records: LimitRecords;
  readonly nvmlLibrary: string;
  /** Were limits seen not to hold on that GPU? Then none is set there. */
  readonly failsOn: (gpuUuid: string) => boolean;
  readonly log: Pick<Logger, 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
};

type DriverLimits = {
  /** False: this driver has no such limits. */
  mayBeOf(driverVersion: string): boolean;
  /** Updates the driver's limits to the grants; `folders`: cgroups by grant. Never throws; one round at a time. */
  follow(grants: readonly Grant[], folders: ReadonlyMap<string, string>, driverVersion: string): Promise<void>;
  /** Are the limits set on each of its GPUs for its present cgroup, as last read? */
  hold(grant: Grant, folder: string | undefined): boolean;
};

/** How often a set limit is read again, and one that failed is tried again. */
const LOOK_AGAIN_MS = 15_000;

export function openDriverLimits(options: DriverLimitsOptions): DriverLimits {
  const { tools, records, nvmlLibrary, failsOn, log, clock } = options;
  /** The version of a driver without limits. */
  let without: string | undefined;
  let busy = false;

  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);
  const say: Say = ({ gpuUuid: gpu, folder, grantId: grant }, text) =>
    log.warn(`the driver's limit of ${gpu} for ${folder}: ${text}`, { gpu, grant });

  const round = async (looked: readonly LimitRecord[], driverVersion: string): Promise<void> => {
    for (const record of looked) record.lookedMs = clock();
    const found = await ask(looked.map(getLine)).catch((error: unknown) => {
      // A limit that cannot be read does not count as set.
      for (const record of looked) record.isHeld = false;
      throw error;
    });
    if (!found) return;
    if (found.some(({ result }) => result === FUNCTION_NOT_FOUND)) {
      without = driverVersion;
      forgetUnset(records);
      return records.save();
    }
    const steps = looked.map((record, at): [LimitRecord, LimitStep] => [
      record,
      stepFor(record, found[at] as LimitAnswer, records, say),
    ]);
    const changing = steps.filter(([, step]) => step === 'set' || step === 'clear');
    // Recorded first: the next agent can remove it.
    for (const [record, step] of changing)
      if (step === 'set' && record.wanted !== undefined) record.ours = [...record.ours, record.wanted];
    if (changing.length > 0) records.save();
    const after = await ask(changing.flatMap(([record]) => [setLine(record, record.wanted), getLine(record)]));
    if (!after) return;
    for (const [at, [record, step]] of changing.entries()) {
      const [set, read] = [after[2 * at] as LimitAnswer, after[2 * at + 1] as LimitAnswer];
      if (step === 'set') applySet(record, set, read, say);
      else if (set.result === 0 || set.result === NOT_FOUND) records.forget(record);
      else say(record, `it could not be removed (NVML code ${set.result})`);
    }
    if (looked.length > 0) records.save();
  };

  const mayBeOf = (driverVersion: string): boolean => without !== driverVersion;

  return {
    mayBeOf,
    async follow(grants, folders, driverVersion) {
      if (busy || !mayBeOf(driverVersion)) return;
      busy = true;
      try {
        const live = new Map(grants.flatMap((grant) => (grant.isolateMemory ? [[grant.id, grant]] : [])));
        updateWanted(records, live, folders, failsOn);
        await round(dueRecords(records, live, folders, clock()), driverVersion);
      } catch (error) {
        log.warn(`cannot update the driver's limits, and it is tried again: ${(error as Error).message}`);
      } finally {
        busy = false;
      }
    },
    hold: (grant, folder) =>
      folder !== undefined &&
      grant.gpus.every(({ gpuUuid, limitBytes }) => {
        const record = records.all.get(keyOf({ gpuUuid, folder }));
        return record?.isHeld === true && record.wanted === limitBytes && !failsOn(gpuUuid);
      }),
  };
}

type Say = (place: Place, text: string) => void;
type Live = ReadonlyMap<string, Grant>;
type Folders = ReadonlyMap<string, string>;

/** Which limits are wanted by the grants as they are now. */
function updateWanted(
  { all }: LimitRecords,
  live: Live,
  folders: Folders,
  failsOn: (gpuUuid: string) => boolean,
): void {
  const change = (record: LimitRecord, wanted: number | undefined) => {
    if (record.wanted !== wanted) Object.assign(record, { wanted, readAs: undefined, lookedMs: undefined });
  };
  for (const record of all.values()) {
    const folder = folders.get(record.grantId);
    // While its cgroup is unknown, the limit stays with the former one.
    const hasMoved = folder !== undefined && folder !== record.folder;
    if (!live.has(record.grantId) || hasMoved || failsOn(record.gpuUuid)) change(record, undefined);
  }
  for (const grant of live.values()) {
    const folder = folders.get(grant.id);
    // A path with a line feed would be two commands.
    if (folder === undefined || folder.includes('\n')) continue;
    for (const { gpuUuid, limitBytes } of grant.gpus) {
      if (failsOn(gpuUuid)) continue;
      const place = { grantId: grant.id, gpuUuid, folder };
      const record = all.get(keyOf(place));
      if (record) change(record, limitBytes);
      else all.set(keyOf(place), { ...place, ...NOT_SET, wanted: limitBytes });
    }
  }
}

/** Those to read, and to set or remove, now. */
function dueRecords({ all }: LimitRecords, live: Live, folders: Folders, nowMs: number): readonly LimitRecord[] {
  return [...all.values()].filter(({ grantId, wanted, lookedMs }) => {
    // Nothing is removed for a grant whose cgroup is not known yet, as after a restart.
    const isWaiting = wanted === undefined && live.has(grantId) && folders.get(grantId) === undefined;
    return !isWaiting && (lookedMs === undefined || nowMs - lookedMs > LOOK_AGAIN_MS);
  });
}

/** With a driver without limits none is set any more, including those that were not read. A later driver may show them
 * again. */
function forgetUnset(records: LimitRecords): void {
  for (const record of [...records.all.values()]) {
    if (record.ours.length === 0 || record.grantId === CANARY) records.forget(record);
    else Object.assign(record, { isHeld: false, lookedMs: undefined });
  }
}

function stepFor(record: LimitRecord, answer: LimitAnswer, records: LimitRecords, say: Say): LimitStep {
  const { result, softBytes, hardBytes } = answer;
  if (result !== 0 || softBytes === undefined || hardBytes === undefined) {
    record.isHeld = false;
    if (result === NOT_FOUND && record.wanted === undefined) records.forget(record);
    else say(record, `the driver does not report it (NVML code ${result}); the interposer limits the container`);
    return 'leave';
  }
  const step = limitStep({ softBytes, hardBytes }, record.ours, record.readAs ?? record.wanted);
  record.isHeld = step === 'keep';
  if (step !== 'leave') return step;
  if (softBytes === 0 && hardBytes === null) records.forget(record);
  else {
    say(record, `another program has set it (hard ${hardBytes ?? 'none'}, soft ${softBytes} bytes): it is left alone`);
    if (record.wanted === undefined) records.all.delete(keyOf(record));
  }
  return step;
}

function applySet(record: LimitRecord, set: LimitAnswer, read: LimitAnswer, say: Say): void {
  const { wanted } = record;
  const { hardBytes } = read;
  record.isHeld = false;
  const isSet = set.result === 0 && read.result === 0 && read.softBytes === 0;
  if (isSet && wanted !== undefined && isAsSet(hardBytes, wanted)) {
    Object.assign(record, { isHeld: true, readAs: hardBytes, ours: [...new Set([wanted, hardBytes])] });
    return;
  }
  const codes = `NVML codes ${set.result} and ${read.result}`;
  say(record, `it could not be set (${codes}); the interposer limits the container`);
}
