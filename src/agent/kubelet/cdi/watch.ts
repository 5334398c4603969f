// Watches the CDI folders of the node: reads NVIDIA's specification, writes the agent's beside it, and keeps its device
// names in memory, because the runtime does not wait for files. split-spec.ts decides what is in it.
import { join } from 'node:path';
import { DRIVER_CAPABILITIES_VARIABLE } from '../../../api/names.ts';
import type { Logger } from '../../../common/logger.ts';
import { createFolderWatch } from '../../os/folder-watch.ts';
import { OWN_FILE, signature, signatureOf, specificationsIn, writeSpecification } from './folders.ts';
import { sourceOf } from './spec.ts';
import { allowedBy, devicesFor, type SplitSpec, splitSpec } from './split-spec.ts';

/** Interval of polling, for folders that appear later and file systems without events. */
const LOOK_EVERY_MS = 10_000;
/** Delay after an event, so that a file that is written in place is complete. */
const SETTLE_MS = 100;

export type CdiOptions = {
  /** In the runtime's order: if two specifications have a GPU, that in the later folder counts. The agent's file is in
   * the last one. */
  readonly folders: readonly string[];
  /** Kind of the specification to split. */
  readonly kind: string;
  readonly log: Pick<Logger, 'warn'>;
  readonly lookEveryMs?: number;
};

export type Cdi = {
  /** Devices by their names for a container with these GPUs and this environment (`NAME=value`). From memory. */
  devicesFor(gpus: readonly string[], env: readonly string[]): readonly string[];
  close(): void;
};

/** Reads once before it returns. */
export function followCdi({ folders, kind, log, lookEveryMs = LOOK_EVERY_MS }: CdiOptions): Cdi {
  const folder = folders.at(-1) ?? '';
  const own = join(folder, OWN_FILE);
  let divided: SplitSpec | undefined;
  /** The file that it was made of. */
  let source = '';
  let seen = '';
  /** Of files that are not read yet. */
  let changing = '';

  const undivided = `as ${kind}=<UUID>, with all parts of the driver, whatever ${DRIVER_CAPABILITIES_VARIABLE} says`;

  const read = () => {
    const { found, unreadable } = specificationsIn(folders);
    const best = sourceOf(found, kind);
    const why = unreadable.map(({ path, wrong }) => `; ${path} cannot be read: ${wrong}`).join('');
    // A half-written file does not describe the driver: the earlier division stays in use.
    if (best?.found.path !== source && unreadable.some(({ path }) => path === source) && divided !== undefined)
      return log.warn(`GPUs are still given as by the last readable ${source}${why}`);
    const made = best && splitSpec(best);
    if (made === undefined || made.gpus.size === 0) {
      divided = undefined; // before the file is removed, so that no container is given its devices
      source = '';
      log.warn(`GPUs are given ${undivided}: no specification in ${folders.join(', ')} lists any by its UUID${why}`);
      return writeSpecification(folder, OWN_FILE, undefined);
    }
    writeSpecification(folder, OWN_FILE, made.spec);
    divided = made;
    source = best?.found.path ?? '';
  };

  /** A changed file is read only after it has not changed for a moment, because an incomplete file may look
   * complete. */
  const look = () => {
    let sources: string;
    try {
      for (const watcher of watchers) watcher.follow();
      sources = signatureOf(folders);
    } catch (error) {
      return log.warn(`GPUs are given as before, for the folders cannot be read: ${(error as Error).message}`);
    }
    try {
      if (sources + signature(own) === seen) return;
      if (seen !== '' && sources !== changing) {
        changing = sources;
        return onEvent();
      }
      read();
      seen = sources + signature(own); // a file that changed during the reading is read again
    } catch (error) {
      divided = undefined;
      log.warn(`GPUs are given ${undivided}: ${(error as Error).message}`);
    }
  };

  let settling: NodeJS.Timeout | undefined;
  const onEvent = () => {
    clearTimeout(settling);
    settling = setTimeout(look, SETTLE_MS);
  };
  const watchers = folders.map((path) => createFolderWatch(path, onEvent));

  look();
  const looking = setInterval(look, lookEveryMs);
  looking.unref();
  return {
    devicesFor(gpus, env) {
      const devices = divided && devicesFor(divided, gpus, allowedBy(env, DRIVER_CAPABILITIES_VARIABLE));
      if (devices !== undefined) return devices;
      if (divided !== undefined) log.warn(`${gpus.join(', ')} is given ${undivided}: ${source} does not list it`);
      return gpus.map((gpu) => `${kind}=${gpu}`);
    },
    close() {
      clearInterval(looking);
      clearTimeout(settling);
      for (const watcher of watchers) watcher.close();
    },
  };
}
