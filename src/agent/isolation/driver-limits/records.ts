// driver-limits.json: the driver's memory limits that this agent or an earlier one set, or may have set. Each is
// recorded before it is set, so that the next agent can remove it when this one is killed at any moment.
import { existsSync, rmdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import * as v from 'valibot';
import type { Logger } from '../../../common/logger.ts';
import { whole } from '../../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../../common/state-file.ts';
import type { LimitPlace } from './client.ts';

export type Place = LimitPlace & { readonly grantId: string };
export type LimitRecord = Place & {
  /** Amounts that we set, or may have set. */
  ours: readonly number[];
  /** Undefined: it is to be removed. */
  wanted: number | undefined;
  /** What the driver reports for it, which it may have rounded. */
  readAs: number | undefined;
  isHeld: boolean;
  /** Undefined: it is due to be read. Infinite: a canary is using it. */
  lookedMs: number | undefined;
};

export type LimitRecords = {
  readonly all: Map<string, LimitRecord>;
  /** Throws where the file cannot be written. */
  save(): void;
  /** Its limit is not set any more. The cgroup of a canary goes with its last limit, else the record stays. */
  forget(record: LimitRecord): void;
};

/** In place of a grant's id, for the limit of a canary. */
export const CANARY = 'canary';
/** The agent's PID follows: another agent may run beside this one. */
const CANARY_GROUP = 'cotenant-canary-';
export const canaryGroup = (own: string): string => join(own, `${CANARY_GROUP}${process.pid}`);

const storedLimit = v.object({
  grantId: v.string(),
  gpuUuid: v.string(),
  folder: v.string(),
  ours: v.pipe(v.array(whole(0, Number.MAX_SAFE_INTEGER)), v.readonly()),
});
const DRIVER_LIMITS = v.object({ limits: v.array(storedLimit) });
const DRIVER_LIMITS_FORMAT: StateFormat<v.InferOutput<typeof DRIVER_LIMITS>> = { version: 1, schema: DRIVER_LIMITS };

export const NOT_SET = { ours: [], readAs: undefined, isHeld: false, lookedMs: undefined } as const;

export const keyOf = ({ gpuUuid, folder }: LimitPlace): string => `${gpuUuid} ${folder}`;

export function openLimitRecords(stateFolder: string, log: Pick<Logger, 'warn'>): LimitRecords {
  const lost = 'driver limits that were set before stay with their cgroups';
  const path = join(stateFolder, 'driver-limits.json');
  const file = openStateFile(path, DRIVER_LIMITS_FORMAT, { lost, log, sync: false });
  const stored = file.found?.limits ?? [];
  const all = new Map(
    stored.map((limit): [string, LimitRecord] => [keyOf(limit), { ...NOT_SET, ...limit, wanted: undefined }]),
  );
  return {
    all,
    save: () =>
      file.write({
        limits: [...all.values()].map(({ grantId, gpuUuid, folder, ours }) => ({ grantId, gpuUuid, folder, ours })),
      }),
    forget(record) {
      const isLast = ![...all.values()].some((other) => other !== record && other.folder === record.folder);
      if (record.grantId === CANARY && isLast && !removeCanaryGroup(record.folder)) return;
      all.delete(keyOf(record));
    },
  };
}

/** False: a process is still in it. */
function removeCanaryGroup(folder: string): boolean {
  if (!/^cotenant-canary-\d+$/.test(basename(folder)) || !existsSync(folder)) return true;
  try {
    rmdirSync(folder);
    return true;
  } catch {
    return false;
  }
}
