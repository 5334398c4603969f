// What a canary of the driver's limits leaves where its agent is ended in the middle of it: its group, and the limit of that. Owns
// the file that tells of both before they are there, and taking them back. A limit that is not as it was written down is somebody
// else's, and stays.
import { existsSync, rmdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { decodeAll, field, isWithin } from '../../../common/json.ts';
import { openStateFile, type StateFormat } from '../../../common/state-file.ts';
import { isAsSet } from '../../../policy/isolation.ts';
import type { HelperRunner } from '../../os/helper-process.ts';
import {
  askDriverLimits,
  FUNCTION_NOT_FOUND,
  getLine,
  type LimitAnswer,
  type LimitPlace,
  NOT_SUPPORTED,
  setLine,
} from '../driver-limits/client.ts';

/** As the canary sets it; the soft limit is none. */
export type CanaryLimit = LimitPlace & { readonly hardBytes: number };

export type CanaryCleanup = {
  /** Before there is anything to take back. Throws where it cannot be kept: then nothing may be set. */
  begin(limit: CanaryLimit): void;
  /** Limit and group are gone. */
  end(place: LimitPlace): void;
  /** What is written down and not under way now; again after a while where it cannot be done. Never throws. */
  takeBack(): Promise<void>;
};

export type CanaryCleanupOptions = {
  readonly tools: Pick<HelperRunner, 'run'>;
  readonly stateFolder: string;
  readonly nvmlLibrary: string;
  readonly onProblem: (text: string) => void;
  readonly onChange: (text: string) => void;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

/** With the agent's pid behind it: there may be another agent beside this one. */
const GROUP = 'cotenant-canary-';
export const canaryGroup = (own: string): string => join(own, `${GROUP}${process.pid}`);
const isCanarys = (folder: string): boolean => /^cotenant-canary-\d+$/.test(basename(folder));

const RETRY_MS = 10_000;

function parseLimit(value: unknown): CanaryLimit | undefined {
  const [gpuUuid, folder, hardBytes] = [field(value, 'gpuUuid'), field(value, 'folder'), field(value, 'hardBytes')];
  if (typeof gpuUuid !== 'string' || !/^[\w/-]+$/.test(gpuUuid)) return undefined;
  // A path with a line feed would be two commands.
  if (typeof folder !== 'string' || !isCanarys(folder) || folder.includes('\n')) return undefined;
  return isWithin(hardBytes, 1, Number.MAX_SAFE_INTEGER) ? { gpuUuid, folder, hardBytes } : undefined;
}

export const CANARY_FORMAT: StateFormat<{ readonly limits: readonly CanaryLimit[] }> = {
  version: 1,
  read(value) {
    const given = field(value, 'limits');
    if (!Array.isArray(given)) return { wrong: 'its limits are no list of them' };
    const limits = decodeAll(given, parseLimit);
    return 'badIndex' in limits ? { wrong: `its limits[${limits.badIndex}] is no canary's` } : { limits };
  },
};

const has = (a: LimitPlace) => (b: LimitPlace) => a.gpuUuid === b.gpuUuid && a.folder === b.folder;

export function openCanaryCleanup(options: CanaryCleanupOptions): CanaryCleanup {
  const { tools, stateFolder, nvmlLibrary, onProblem, onChange, clock } = options;
  const file = openStateFile(join(stateFolder, 'canary-limits.json'), CANARY_FORMAT, {
    lost: 'limits that a canary may have left stay with their groups',
    onProblem,
  });
  let limits = file.found?.limits ?? [];
  let againMs = Number.NEGATIVE_INFINITY;
  let said = '';
  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);
  const keep = (next: readonly CanaryLimit[]): void => {
    file.write({ limits: next });
    limits = next;
  };
  const say = (text: string): void => {
    if (said !== text) onProblem(text);
    said = text;
  };

  /** Ours is there, or none; else it is not to be touched. */
  const stepFor = (
    { hardBytes, ...place }: CanaryLimit,
    found: LimitAnswer,
  ): 'clear' | 'done' | 'stays' | 'unknown' => {
    if (found.result === FUNCTION_NOT_FOUND || found.result === NOT_SUPPORTED) return 'done';
    if (found.result !== 0 || found.softBytes === undefined || found.hardBytes === undefined) return 'unknown';
    const { softBytes, hardBytes: most } = found;
    if (softBytes === 0 && isAsSet(most, hardBytes)) return 'clear';
    if (softBytes === 0 && most === null) return 'done';
    onProblem(
      `a canary left its group ${place.folder}, of which a limit on ${place.gpuUuid} is not the canary's (${most ?? 'no'} bytes at most, ${softBytes} kept), and stays`,
    );
    return 'stays';
  };

  const round = async (): Promise<void> => {
    const there = limits.filter(({ folder }) => existsSync(folder));
    const found = await ask(there.map(getLine));
    if (!found) return;
    const steps = there.map((limit, at) => ({ limit, step: stepFor(limit, found[at] as LimitAnswer) }));
    const clearing = steps.flatMap(({ limit, step }) => (step === 'clear' ? [limit] : []));
    const answers = await ask(clearing.map((limit) => setLine(limit, undefined)));
    if (!answers) return;
    const cleared = clearing.filter((_, at) => answers[at]?.result === 0);
    for (const { gpuUuid, folder } of cleared)
      onChange(`the limit on ${gpuUuid} that a canary left with its group ${folder} is taken back`);
    const stays = steps.flatMap(({ limit, step }) => (step === 'stays' ? [limit] : []));
    const left = steps.flatMap(({ limit, step }) => (step === 'done' || cleared.includes(limit) ? [] : [limit]));
    const removed = new Set<string>();
    const problems: string[] = [];
    for (const folder of new Set(there.map((limit) => limit.folder))) {
      // A group goes once none of its limits is left. Whoever is in it still ends by himself.
      if (left.some((limit) => limit.folder === folder)) continue;
      try {
        rmdirSync(folder);
        removed.add(folder);
      } catch (error) {
        problems.push((error as Error).message);
      }
    }
    keep(there.filter((limit) => !removed.has(limit.folder) && !stays.includes(limit)));
    if (left.length > stays.length) problems.push('the driver does not tell it, or does not take it back');
    if (problems.length > 0) throw new Error(problems.join('; '));
  };

  return {
    begin: (limit) => keep([...limits.filter((one) => !has(one)(limit)), limit]),
    end(place) {
      try {
        keep(limits.filter((one) => !has(one)(place)));
      } catch (error) {
        onProblem(`that a canary has ended is not kept for the next agent: ${(error as Error).message}`);
      }
    },
    async takeBack() {
      if (limits.length === 0 || clock() < againMs) return;
      againMs = clock() + RETRY_MS;
      try {
        await round();
      } catch (error) {
        say(`what a canary left of its limits is not taken back, and it is tried again: ${(error as Error).message}`);
      }
    },
  };
}
