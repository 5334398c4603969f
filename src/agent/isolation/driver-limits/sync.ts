// Sets the driver's memory limits for cgroups (drivers from 615 on) to the grants, reads them back, and removes them
// with the grant. Records what was set in driver-limits.json, so that the next agent can remove it when this one is
// killed at any moment. src/policy/isolation.ts decides what to do about a limit that was read.
import { join } from 'node:path';
import * as v from 'valibot';
import type { Logger } from '../../../common/logger.ts';
import { whole } from '../../../common/schema.ts';
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
  /** Were limits seen not to hold on that GPU? Then none is set there. */
  readonly failsOn?: (gpuUuid: string) => boolean;
  readonly log: Pick<Logger, 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
};

export type DriverLimits = {
  /** False: this driver has no such limits. */
  mayBeOf(driverVersion: string): boolean;
  /** Updates the driver's limits to the grants; `folders`: cgroups by grant. Never throws; one round at a time. */
  follow(grants: readonly Grant[], folders: ReadonlyMap<string, string>, driverVersion: string): Promise<void>;
  /** Are the limits set on each of its GPUs for its present cgroup, as last read? */
  hold(grant: Grant, folder: string | undefined): boolean;
};

type Place = LimitPlace & { readonly grantId: string };
type Entry = Place & {
  /** Amounts that we set, or may have set. */
  ours: readonly number[];
  wanted: number | undefined;
  /** What the driver reports for it, which it may have rounded. */
  readAs: number | undefined;
  isHeld: boolean;
  lookedMs: number | undefined;
};

const storedLimit = v.object({
  grantId: v.string(),
  gpuUuid: v.string(),
  folder: v.string(),
  ours: v.pipe(v.array(whole(0, Number.MAX_SAFE_INTEGER)), v.readonly()),
});
const DRIVER_LIMITS = v.object({ limits: v.array(storedLimit) });
const DRIVER_LIMITS_FORMAT: StateFormat<v.InferOutput<typeof DRIVER_LIMITS>> = { version: 1, schema: DRIVER_LIMITS };

/** How often a set limit is read again, and one that failed is tried again. */
const LOOK_AGAIN_MS = 15_000;

const NOT_SET = { ours: [], readAs: undefined, isHeld: false, lookedMs: undefined } as const;

const keyOf = ({ gpuUuid, folder }: Pick<Place, 'gpuUuid' | 'folder'>): string => `${gpuUuid} ${folder}`;

export function openDriverLimits(options: DriverLimitsOptions): DriverLimits {
  const { tools, stateFolder, nvmlLibrary, failsOn = () => false, log, clock } = options;
  const lost = 'driver limits that were set before stay with their cgroups';
  const path = join(stateFolder, 'driver-limits.json');
  const file = openStateFile(path, DRIVER_LIMITS_FORMAT, { lost, log, sync: false });
  const entries = new Map<string, Entry>();
  /** The version of a driver without limits. */
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

  const say = ({ gpuUuid: gpu, folder, grantId: grant }: Place, text: string): void =>
    log.warn(`the driver's limit of ${gpu} for ${folder}: ${text}`, { gpu, grant });

  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);

  /** Updates the entries to the grants; returns those to read or set now. */
  const due = (grants: readonly Grant[], folders: ReadonlyMap<string, string>): readonly Entry[] => {
    if (folders.size === 0 && entries.size === 0) return [];
    const live = new Map(grants.flatMap((grant) => (grant.isolateMemory ? [[grant.id, grant]] : [])));
    // A path with a line feed would be two commands.
    const usable = (folder: string | undefined): folder is string => folder !== undefined && !folder.includes('\n');
    for (const entry of entries.values()) {
      const folder = folders.get(entry.grantId);
      // While its cgroup is unknown, the limit stays with the former one.
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
    // Nothing is removed for a grant whose cgroup is not known yet, as after a restart.
    const isWaiting = ({ grantId, wanted }: Entry) =>
      wanted === undefined && live.has(grantId) && folders.get(grantId) === undefined;
    const isDue = ({ lookedMs }: Entry) => lookedMs === undefined || now - lookedMs > LOOK_AGAIN_MS;
    return [...entries.values()].filter((entry) => isDue(entry) && !isWaiting(entry));
  };

  const forget = (entry: Entry): void => void entries.delete(keyOf(entry));

  const round = async (looked: readonly Entry[], driverVersion: string): Promise<void> => {
    for (const entry of looked) entry.lookedMs = clock();
    const found = await ask(looked.map(getLine)).catch((error: unknown) => {
      // A limit that cannot be read does not count as set.
      for (const entry of looked) entry.isHeld = false;
      throw error;
    });
    if (!found) return;
    if (found.some(({ result }) => result === FUNCTION_NOT_FOUND)) {
      without = driverVersion;
      // No limit is set any more, including those that were not read. A later driver may show them again.
      for (const entry of [...entries.values()]) {
        if (entry.ours.length === 0) forget(entry);
        else Object.assign(entry, { isHeld: false, lookedMs: undefined });
      }
      keep();
      return;
    }
    const steps = looked.map((entry, at): [Entry, LimitStep] => [entry, stepFor(entry, found[at] as LimitAnswer)]);
    const changing = steps.filter(([, step]) => step === 'set' || step === 'clear');
    // Recorded first: the next agent can remove it.
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
      else say(entry, `the driver does not report it (NVML code ${result}); the interposer limits the container`);
      return 'leave';
    }
    const step = limitStep({ softBytes, hardBytes }, entry.ours, entry.readAs ?? entry.wanted);
    entry.isHeld = step === 'keep';
    if (step === 'leave' && entry.wanted === undefined) forget(entry);
    else if (step === 'leave')
      say(entry, `another program has set it (hard ${hardBytes ?? 'none'}, soft ${softBytes} bytes): it is left alone`);
    return step;
  };

  const settle = (entry: Entry, step: LimitStep, set: LimitAnswer, read: LimitAnswer): void => {
    if (step === 'clear') {
      if (set.result === 0 || set.result === NOT_FOUND) forget(entry);
      else say(entry, `it could not be removed (NVML code ${set.result})`);
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
    } else
      say(
        entry,
        `it could not be set (NVML codes ${set.result} and ${read.result}); the interposer limits the container`,
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
        log.warn(`cannot update the driver's limits, and it is tried again: ${(error as Error).message}`);
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
