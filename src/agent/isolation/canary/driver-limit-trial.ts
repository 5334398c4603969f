// The canary's trial of the driver's memory limits: in a cgroup of its own with a limit and without the interposer.
// Creates and removes both; what cannot be removed, or is left by an agent that was killed, is removed with the limits
// of grants (driver-limits/sync.ts).
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { isAsSet } from '../../../policy/isolation.ts';
import { type CanaryVerdict, driverVerdictOf, isUnclear, ROOM_BYTES } from '../../../policy/isolation-check.ts';
import type { GpuProfile } from '../../grants/live-grant.ts';
import type { Native } from '../../os/addon.ts';
import { unifiedMount, unifiedPath } from '../../os/cgroup.ts';
import type { HelperRunner } from '../../os/helper-process.ts';
import {
  askDriverLimits,
  FUNCTION_NOT_FOUND,
  getLine,
  type LimitPlace,
  NOT_SUPPORTED,
  setLine,
} from '../driver-limits/client.ts';
import { CANARY, canaryGroup, keyOf, type LimitRecords, NOT_SET } from '../driver-limits/records.ts';
import type { Trial } from './canary.ts';
import { ASSUMED_CONTEXT_BYTES, type RunCanary } from './program.ts';

type DriverLimitTrialOptions = {
  readonly native: Pick<Native, 'readProcess'>;
  readonly tools: HelperRunner;
  readonly run: RunCanary;
  readonly nvmlLibrary: string;
  readonly profileOf: (gpuUuid: string) => GpuProfile;
  readonly records: LimitRecords;
};

const GRANULES_BYTES = 4 * 1024 * 1024;

/** The agent's cgroup; undefined: no unified hierarchy, or the agent's path in it is not visible in the mount. */
function ownFolder(native: DriverLimitTrialOptions['native']): string | undefined {
  const mount = unifiedMount();
  const own = unifiedPath(native.readProcess(process.pid)?.cgroup ?? '');
  return mount === undefined || own === undefined || own.includes('..') ? undefined : join(mount, own);
}

export function driverLimitTrial(options: DriverLimitTrialOptions): Trial {
  const { native, tools, run, nvmlLibrary, profileOf, records } = options;
  const ask = (lines: readonly string[]) => askDriverLimits(tools, nvmlLibrary, lines);

  const takeDown = async (place: LimitPlace): Promise<void> => {
    const record = records.all.get(keyOf(place));
    if (!record) return;
    try {
      const [set, read] = (await ask([setLine(place, undefined), getLine(place)])) ?? [];
      const isNone = read?.result === 0 && read.softBytes === 0 && read.hardBytes === null;
      if (set?.result !== 0 && !isNone) return;
      records.forget(record);
      records.save();
    } catch {
      // Asked for again with the limits of grants.
    } finally {
      record.lookedMs = undefined;
    }
  };

  const inGroup = async (
    gpuUuid: string,
    group: string,
    contextBytes: number,
  ): Promise<CanaryVerdict | 'none' | undefined> => {
    const limitBytes = contextBytes + ROOM_BYTES;
    const place = { gpuUuid, folder: group };
    const inUse = { ...NOT_SET, wanted: undefined, ours: [limitBytes], lookedMs: Number.POSITIVE_INFINITY };
    records.all.set(keyOf(place), { ...place, ...inUse, grantId: CANARY });
    records.save();
    mkdirSync(group, { recursive: true });
    const answers = await ask([setLine(place, limitBytes), getLine(place)]);
    if (!answers) return undefined;
    const [set, read] = answers;
    if (set?.result !== 0)
      return { result: 'untried', why: `the driver did not set the limit (NVML code ${set?.result})` };
    if (read?.result !== 0 || !isAsSet(read.hardBytes, limitBytes))
      return { result: 'fails', why: `a limit of ${limitBytes} bytes is read back as ${read?.hardBytes ?? 'none'}` };
    // As much as the limit itself: together with the context that exceeds it.
    const first = await run({ gpuUuid, beyondBytes: limitBytes, preload: '', group });
    if (!first || !isUnclear(first)) return first && driverVerdictOf(first);
    const alone = await run({ gpuUuid, beyondBytes: limitBytes, preload: '' });
    return alone && driverVerdictOf(first, alone);
  };

  return {
    identity: () => '',
    async tryGpu({ gpuUuid, roomBytes }) {
      const contextBytes = profileOf(gpuUuid).contextBytes || ASSUMED_CONTEXT_BYTES;
      const need = 2 * contextBytes + ROOM_BYTES + GRANULES_BYTES;
      const own = ownFolder(native);
      if (own === undefined) return 'none';
      if (roomBytes() < need)
        return { result: 'untried', why: `not enough free memory: the canary needs ${need} bytes` };
      const asked = await ask([getLine({ gpuUuid, folder: own })]);
      if (!asked) return undefined;
      if (asked.some(({ result }) => result === FUNCTION_NOT_FOUND || result === NOT_SUPPORTED)) return 'none';
      const group = canaryGroup(own);
      if (records.all.has(keyOf({ gpuUuid, folder: group })))
        return { result: 'untried', why: 'the limit of the trial before is not removed yet' };
      try {
        return await inGroup(gpuUuid, group, contextBytes);
      } finally {
        await takeDown({ gpuUuid, folder: group });
      }
    },
    messages: {
      fails: (gpuUuid, why) =>
        `the driver does not enforce its limits on ${gpuUuid}, so they are not used there: ${why}`,
      untried: (gpuUuid, why) => `could not check whether the driver enforces its limits on ${gpuUuid}: ${why}`,
      again: (gpuUuid) => `the driver enforces its limits on ${gpuUuid} again`,
    },
  };
}
