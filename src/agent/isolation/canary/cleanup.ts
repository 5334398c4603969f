// Removes what a trial of the driver's limits leaves when its agent is killed: a cgroup and its limit. Both are
// recorded in canary-limits.json before they are created. A limit with another amount than recorded was set by another
// program, and stays.
import { existsSync, rmdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import * as v from 'valibot';
import type { Logger } from '../../../common/logger.ts';
import { whole } from '../../../common/schema.ts';
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

/** As the canary sets it, without a soft limit. */
export type CanaryLimit = LimitPlace & { readonly hardBytes: number };

export type CanaryCleanup = {
  /** Before the limit is set. Throws where it cannot be recorded: then nothing may be set. */
  begin(limit: CanaryLimit): void;
  /** Limit and cgroup are removed. */
  end(place: LimitPlace): void;
  /** Removes what is recorded and not in use now; tries again later where that fails. Never throws. */
  takeBack(): Promise<void>;
};

export type CanaryCleanupOptions = {
  readonly tools: Pick<HelperRunner, 'run'>;
  readonly stateFolder: string;
  readonly nvmlLibrary: string;
  readonly log: Pick<Logger, 'info' | 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
};

/** The agent's PID follows: another agent may run beside this one. */
const GROUP = 'cotenant-canary-';
export const canaryGroup = (own: string): string => join(own, `${GROUP}${process.pid}`);
const isCanarys = (folder: string): boolean => /^cotenant-canary-\d+$/.test(basename(folder));

const RETRY_MS = 10_000;

const limit = v.object({
  gpuUuid: v.pipe(v.string(), v.regex(/^[\w/-]+$/, 'the UUID of a GPU')),
  // A path with a line feed would be two commands.
  folder: v.pipe(
    v.string(),
    v.check((folder) => isCanarys(folder) && !folder.includes('\n'), 'a cgroup of the canary'),
  ),
  hardBytes: whole(1, Number.MAX_SAFE_INTEGER),
});
export const CANARY_FORMAT: StateFormat<{ readonly limits: readonly CanaryLimit[] }> = {
  version: 1,
  schema: v.object({ limits: v.array(limit) }),
};

const has = (a: LimitPlace) => (b: LimitPlace) => a.gpuUuid === b.gpuUuid && a.folder === b.folder;

export function openCanaryCleanup(options: CanaryCleanupOptions): CanaryCleanup {
  const { tools, stateFolder, nvmlLibrary, log, clock } = options;
  const file = openStateFile(join(stateFolder, 'canary-limits.json'), CANARY_FORMAT, {
    lost: 'limits that the canary may have left stay with their cgroups',
    log,
  });
  let limits = file.found?.limits ?? [];
  let againMs = Number.NEGATIVE_INFINITY;
  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);
  const keep = (next: readonly CanaryLimit[]): void => {
    file.write({ limits: next });
    limits = next;
  };

  /** Our limit is set, or none; another one must not be touched. */
  const stepFor = (
    { hardBytes, ...place }: CanaryLimit,
    found: LimitAnswer,
  ): 'clear' | 'done' | 'stays' | 'unknown' => {
    if (found.result === FUNCTION_NOT_FOUND || found.result === NOT_SUPPORTED) return 'done';
    if (found.result !== 0 || found.softBytes === undefined || found.hardBytes === undefined) return 'unknown';
    const { softBytes, hardBytes: most } = found;
    if (softBytes === 0 && isAsSet(most, hardBytes)) return 'clear';
    if (softBytes === 0 && most === null) return 'done';
    log.warn(
      `the canary left its cgroup ${place.folder}, whose limit on ${place.gpuUuid} another program changed (hard ${most ?? 'none'}, soft ${softBytes} bytes): it stays`,
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
      log.info(`removed the limit on ${gpuUuid} that the canary left with its cgroup ${folder}`);
    const stays = steps.flatMap(({ limit, step }) => (step === 'stays' ? [limit] : []));
    const left = steps.flatMap(({ limit, step }) => (step === 'done' || cleared.includes(limit) ? [] : [limit]));
    const removed = new Set<string>();
    const problems: string[] = [];
    for (const folder of new Set(there.map((limit) => limit.folder))) {
      // A cgroup is removed with its last limit. A process that is still in it ends by itself.
      if (left.some((limit) => limit.folder === folder)) continue;
      try {
        rmdirSync(folder);
        removed.add(folder);
      } catch (error) {
        problems.push((error as Error).message);
      }
    }
    keep(there.filter((limit) => !removed.has(limit.folder) && !stays.includes(limit)));
    if (left.length > stays.length) problems.push('the driver does not report it, or does not remove it');
    if (problems.length > 0) throw new Error(problems.join('; '));
  };

  return {
    begin: (limit) => keep([...limits.filter((one) => !has(one)(limit)), limit]),
    end(place) {
      try {
        keep(limits.filter((one) => !has(one)(place)));
      } catch (error) {
        log.warn(`cannot store the end of a canary for the next agent: ${(error as Error).message}`);
      }
    },
    async takeBack() {
      if (limits.length === 0 || clock() < againMs) return;
      againMs = clock() + RETRY_MS;
      try {
        await round();
      } catch (error) {
        log.warn(`cannot remove limits that the canary left; removing is retried: ${(error as Error).message}`);
      }
    },
  };
}
