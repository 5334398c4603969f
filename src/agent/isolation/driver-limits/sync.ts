// The driver's own limits of memory, which drivers from 615 on have for cgroups: set for what is granted, read back, looked at
// again, and taken back with the grant. Owns the calls, by a program of ours, and a file of what was set, so that nothing of it
// is left behind when this agent is ended at any moment. What to do about what is found there is src/policy/isolation.ts.
import { join } from 'node:path';
import { decodeAll, field, isObject, isWithin } from '../../../common/json.ts';
import { openStateFile, type StateFormat } from '../../../common/state-file.ts';
import { isAsSet, type LimitStep, limitStep } from '../../../policy/isolation.ts';
import type { Grant } from '../../grants/grant.ts';
import type { HelperRunner } from '../../os/helper-process.ts';
import {
  askDriverLimits,
  FUNCTION_NOT_FOUND,
  getLine,
  type LimitAnswer,
  type LimitPlace,
  NOT_FOUND,
  setLine,
} from './client.ts';

export type DriverLimitsOptions = {
  readonly tools: HelperRunner;
  readonly stateFolder: string;
  readonly nvmlLibrary: string;
  /** Were limits seen to hold nobody on that GPU? Then none is set there. */
  readonly failsOn?: (gpuUuid: string) => boolean;
  readonly onProblem: (text: string) => void;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

export type DriverLimits = {
  /** False: this driver has none. */
  mayBeOf(driverVersion: string): boolean;
  /** Brings the driver's limits to what is granted; `folders`: groups by grant. Never throws, and does one round at a time. */
  follow(grants: readonly Grant[], folders: ReadonlyMap<string, string>, driverVersion: string): Promise<void>;
  /** In force on each of its GPUs for the group that it has now, as was last read. */
  hold(grant: Grant, folder: string | undefined): boolean;
};

type Place = LimitPlace & { readonly grantId: string };
type Entry = Place & {
  /** What we set, or may have set. */
  ours: readonly number[];
  wanted: number | undefined;
  /** What the driver made of it, which may keep amounts in pages of its own. */
  readAs: number | undefined;
  isHeld: boolean;
  lookedMs: number | undefined;
};

/** What driver-limits.json holds of an entry. */
type StoredLimit = Place & Pick<Entry, 'ours'>;

function decodeLimit(value: unknown): StoredLimit | undefined {
  if (!isObject(value) || !Array.isArray(value.ours)) return undefined;
  const { grantId, gpuUuid, folder } = value;
  if (typeof grantId !== 'string' || typeof gpuUuid !== 'string' || typeof folder !== 'string') return undefined;
  const ours = value.ours.filter((bytes): bytes is number => isWithin(bytes, 0, Number.MAX_SAFE_INTEGER));
  return { grantId, gpuUuid, folder, ours };
}

const DRIVER_LIMITS_FORMAT: StateFormat<{ readonly limits: readonly StoredLimit[] }> = {
  version: 1,
  read(value) {
    const given = field(value, 'limits');
    if (!Array.isArray(given)) return { wrong: 'field "limits" is missing or not a list' };
    const limits = decodeAll(given, decodeLimit);
    return 'badIndex' in limits ? { wrong: `limits[${limits.badIndex}] is malformed` } : { limits };
  },
};

/** Of a limit that is in force, and of one that could not be set. */
const LOOK_AGAIN_MS = 15_000;

const NOT_SET = { ours: [], readAs: undefined, isHeld: false, lookedMs: undefined } as const;

const keyOf = ({ gpuUuid, folder }: Pick<Place, 'gpuUuid' | 'folder'>): string => `${gpuUuid} ${folder}`;

export function openDriverLimits(options: DriverLimitsOptions): DriverLimits {
  const { tools, stateFolder, nvmlLibrary, failsOn = () => false, onProblem, clock } = options;
  const lost = 'driver limits that were set before stay with their cgroups';
  const path = join(stateFolder, 'driver-limits.json');
  const file = openStateFile(path, DRIVER_LIMITS_FORMAT, { lost, onProblem, sync: false });
  const entries = new Map<string, Entry>();
  const said = new Map<string, string>();
  /** Of the driver that has none. */
  let without: string | undefined;
  let busy = false;
  for (const limit of file.found?.limits ?? []) entries.set(keyOf(limit), { ...NOT_SET, ...limit, wanted: undefined });

  const keep = (): void => {
    const limits = [...entries.values()].map(({ grantId, gpuUuid, folder, ours }) => ({
      grantId,
      gpuUuid,
      folder,
      ours,
    }));
    file.write({ limits });
  };

  const say = (entry: Place, text: string): void => {
    const key = keyOf(entry);
    if (said.get(key) !== text) onProblem(`the driver's limit of ${entry.gpuUuid} for ${entry.folder}: ${text}`);
    said.set(key, text);
  };

  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);

  /** Brings the entries to what is wanted, and tells which of them are to be looked at. */
  const due = (grants: readonly Grant[], folders: ReadonlyMap<string, string>): readonly Entry[] => {
    if (folders.size === 0 && entries.size === 0) return [];
    const live = new Map(grants.flatMap((grant) => (grant.isolateMemory ? [[grant.id, grant]] : [])));
    // A path with a line feed would be two commands.
    const usable = (folder: string | undefined): folder is string => folder !== undefined && !folder.includes('\n');
    for (const entry of entries.values()) {
      const folder = folders.get(entry.grantId);
      // Where its group is not known now, the limit stays with the one that it has.
      const isOver =
        !live.has(entry.grantId) || (folder !== undefined && folder !== entry.folder) || failsOn(entry.gpuUuid);
      if (isOver && entry.wanted !== undefined)
        Object.assign(entry, { wanted: undefined, readAs: undefined, lookedMs: undefined });
    }
    for (const grant of live.values()) {
      const folder = folders.get(grant.id);
      if (!usable(folder)) continue;
      for (const { gpuUuid, limitBytes } of grant.gpus) {
        if (failsOn(gpuUuid)) continue;
        const place = { grantId: grant.id, gpuUuid, folder };
        const entry = entries.get(keyOf(place));
        if (!entry) entries.set(keyOf(place), { ...place, ...NOT_SET, wanted: limitBytes });
        else if (entry.wanted !== limitBytes)
          Object.assign(entry, { wanted: limitBytes, readAs: undefined, lookedMs: undefined });
      }
    }
    const now = clock();
    // Of a grant that goes on somewhere that is not known yet, as after a restart, nothing is taken back.
    const isWaiting = ({ grantId, wanted }: Entry) =>
      wanted === undefined && live.has(grantId) && folders.get(grantId) === undefined;
    const isDue = ({ lookedMs }: Entry) => lookedMs === undefined || now - lookedMs > LOOK_AGAIN_MS;
    return [...entries.values()].filter((entry) => isDue(entry) && !isWaiting(entry));
  };

  const forget = (entry: Entry): void => {
    entries.delete(keyOf(entry));
    said.delete(keyOf(entry));
  };

  const round = async (looked: readonly Entry[], driverVersion: string): Promise<void> => {
    for (const entry of looked) entry.lookedMs = clock();
    const found = await ask(looked.map(getLine)).catch((error: unknown) => {
      // What cannot be read is not known to hold.
      for (const entry of looked) entry.isHeld = false;
      throw error;
    });
    if (!found) return;
    if (found.some(({ result }) => result === FUNCTION_NOT_FOUND)) {
      without = driverVersion;
      // None is in force any more, those that were not asked about included. What was set may be there again with a later driver.
      for (const entry of [...entries.values()]) {
        if (entry.ours.length === 0) forget(entry);
        else Object.assign(entry, { isHeld: false, lookedMs: undefined });
      }
      keep();
      return;
    }
    const steps = looked.map((entry, at): [Entry, LimitStep] => [entry, stepFor(entry, found[at] as LimitAnswer)]);
    const changing = steps.filter(([, step]) => step === 'set' || step === 'clear');
    // Known before it is done: whoever comes after us takes it back.
    for (const [entry, step] of changing)
      if (step === 'set' && entry.wanted !== undefined) entry.ours = [...entry.ours, entry.wanted];
    if (changing.length > 0) keep();
    const after = await ask(changing.flatMap(([entry]) => [setLine(entry, entry.wanted), getLine(entry)]));
    if (!after) return;
    for (const [at, [entry, step]] of changing.entries()) {
      const [set, read] = [after[2 * at] as LimitAnswer, after[2 * at + 1] as LimitAnswer];
      settle(entry, step, set, read);
    }
    if (looked.length > 0) keep();
  };

  const stepFor = (entry: Entry, answer: LimitAnswer): LimitStep => {
    const { result, softBytes, hardBytes } = answer;
    if (result !== 0 || softBytes === undefined || hardBytes === undefined) {
      entry.isHeld = false;
      if (result === NOT_FOUND && entry.wanted === undefined) forget(entry);
      else say(entry, `the driver does not tell it (NVML code ${result}); the interposer holds the container`);
      return 'leave';
    }
    const step = limitStep({ softBytes, hardBytes }, entry.ours, entry.readAs ?? entry.wanted);
    entry.isHeld = step === 'keep';
    if (step === 'leave' && entry.wanted === undefined) forget(entry);
    else if (step === 'leave')
      say(
        entry,
        `somebody else has set another one (${hardBytes ?? 'no'} bytes at most, ${softBytes} kept), and it stays`,
      );
    return step;
  };

  const settle = (entry: Entry, step: LimitStep, set: LimitAnswer, read: LimitAnswer): void => {
    if (step === 'clear') {
      if (set.result === 0 || set.result === NOT_FOUND) forget(entry);
      else say(entry, `it could not be taken back (NVML code ${set.result})`);
      return;
    }
    const { wanted } = entry;
    const { hardBytes: asRead } = read;
    const isHeld =
      set.result === 0 && read.result === 0 && read.softBytes === 0 && wanted !== undefined && isAsSet(asRead, wanted);
    entry.isHeld = isHeld;
    if (isHeld) {
      entry.readAs = asRead;
      entry.ours = asRead === wanted ? [wanted] : [wanted, asRead];
      said.delete(keyOf(entry));
    } else
      say(
        entry,
        `it could not be set (NVML codes ${set.result} and ${read.result}); the interposer holds the container`,
      );
  };

  const mayBeOf = (driverVersion: string): boolean => without !== driverVersion;

  return {
    mayBeOf,
    async follow(grants, folders, driverVersion) {
      if (busy || !mayBeOf(driverVersion)) return;
      busy = true;
      try {
        await round(due(grants, folders), driverVersion);
      } catch (error) {
        const text = `the driver's limits cannot be followed, and it is tried again: ${(error as Error).message}`;
        if (said.get('') !== text) onProblem(text);
        said.set('', text);
      } finally {
        busy = false;
      }
    },
    hold: (grant, folder) =>
      folder !== undefined &&
      grant.gpus.every(({ gpuUuid, limitBytes }) => {
        const entry = entries.get(keyOf({ gpuUuid, folder }));
        return entry?.isHeld === true && entry.wanted === limitBytes && !failsOn(gpuUuid);
      }),
  };
}
