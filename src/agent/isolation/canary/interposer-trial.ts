// The canary's trial of the interposer: in a grant of a context and 64 MiB, with the same files that containers get.
import { closeSync, mkdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import {
  BEYOND_BYTES,
  type CanaryRun,
  isUnclear,
  MOST_TAKEN_BYTES,
  ROOM_BYTES,
  verdictOf,
} from '../../../policy/isolation-check.ts';
import { engineName, enginesIn, PRELOADED } from '../../grants/engine-files.ts';
import { makeFile } from '../../grants/files.ts';
import type { GpuProfile } from '../../grants/live-grant.ts';
import { BUILD_FOLDER, type Native } from '../../os/addon.ts';
import type { Trial } from './canary.ts';
import { ASSUMED_CONTEXT_BYTES, type RunCanary } from './program.ts';

type InterposerTrialOptions = {
  readonly native: Native;
  readonly run: RunCanary;
  readonly stateFolder: string;
  readonly profileOf: (gpuUuid: string) => GpuProfile;
  /** The engine that grants run; absent: the newest of the build. */
  readonly heldEngine?: number | undefined;
};

const SLOTS = 16;

export function interposerTrial(options: InterposerTrialOptions): Trial {
  const { native, run, stateFolder, profileOf, heldEngine } = options;

  const fenced = async (gpuUuid: string): Promise<CanaryRun | undefined> => {
    const folder = join(stateFolder, 'canary');
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true, mode: 0o755 });
    const engines = enginesIn(BUILD_FOLDER);
    for (const name of [...PRELOADED, ...engines.map(engineName)])
      symlinkSync(join(BUILD_FOLDER, name), join(folder, name));
    const profile = profileOf(gpuUuid);
    const gpu = {
      uuid: gpuUuid,
      ...profile,
      memoryBytes: profile.contextBytes + ROOM_BYTES,
      coresPercent: 0,
    };
    const engine = heldEngine ?? engines.at(-1);
    const page = makeFile(join(folder, 'limits'), 0o644);
    const ledger = makeFile(join(folder, 'ledger'), 0o666);
    try {
      native.writePage(page, { slots: SLOTS, isolateMemory: true, engine, gpus: [gpu] });
      native.initLedger(ledger, SLOTS, 1);
      const preload = PRELOADED.map((name) => join(folder, name)).join(' ');
      return await run({ gpuUuid, beyondBytes: BEYOND_BYTES, preload });
    } finally {
      closeSync(page);
      closeSync(ledger);
      rmSync(folder, { recursive: true, force: true });
    }
  };

  return {
    identity: () =>
      [...PRELOADED, ...enginesIn(BUILD_FOLDER).map(engineName)]
        .map((name) => {
          const file = statSync(join(BUILD_FOLDER, name), { throwIfNoEntry: false });
          return `${name} ${file?.dev} ${file?.ino} ${file?.size} ${file?.mtimeMs}`;
        })
        .join(' '),
    async tryGpu({ gpuUuid, roomBytes }) {
      // Containers may fill their grants at any moment: the canary must not take that memory.
      const need = (profileOf(gpuUuid).contextBytes || ASSUMED_CONTEXT_BYTES) + MOST_TAKEN_BYTES;
      if (roomBytes() < need)
        return { result: 'untried', why: `not enough free memory: the canary needs ${need} bytes` };
      const first = await fenced(gpuUuid);
      if (!first || !isUnclear(first)) return first && verdictOf(first);
      const alone = await run({ gpuUuid, beyondBytes: BEYOND_BYTES, preload: '' });
      return alone && verdictOf(first, alone);
    },
    messages: {
      fails: (gpuUuid, why) =>
        `the interposer does not enforce limits on ${gpuUuid}, so nothing is granted there unless the driver does: ${why}`,
      untried: (gpuUuid, why) => `could not check whether the interposer enforces limits on ${gpuUuid}: ${why}`,
      again: (gpuUuid) => `the interposer enforces limits on ${gpuUuid} again`,
    },
  };
}
