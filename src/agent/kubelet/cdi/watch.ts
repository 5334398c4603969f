// Watches the CDI folders of the node: reads NVIDIA's specification, writes the agent's beside it, and keeps its device
// names in memory, because the runtime does not wait for files. split-spec.ts decides what is in it.
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { DRIVER_CAPABILITIES_VARIABLE } from '../../../api/names.ts';
import type { Logger } from '../../../common/logger.ts';
import { err, type Result } from '../../../common/result.ts';
import { replaceFile } from '../../../common/state-file.ts';
import { createFolderWatch } from '../../os/folder-watch.ts';
import { type CdiSpec, type Found, readSpec, sourceOf } from './spec.ts';
import { allowedBy, devicesFor, OWN_KIND, type SplitSpec, splitSpec } from './split-spec.ts';

const require = createRequire(import.meta.url);

/** The agent's file, in the last folder. CDI readers read only files that end in .json or .yaml. */
export const OWN_FILE = `${OWN_KIND.replace('/', '-')}.json`;
const BEING_WRITTEN = `.${OWN_FILE}.new`;
/** A specification of eight GPUs has some 50 KB. */
const MOST_BYTES = 4 * 2 ** 20;
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
      return writeOwn(folder, undefined);
    }
    writeOwn(folder, made);
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

/** Throws if the folder cannot be written. */
function writeOwn(folder: string, made: SplitSpec | undefined): void {
  const own = join(folder, OWN_FILE);
  if (!made) {
    rmSync(own, { force: true });
    return;
  }
  const text = `${JSON.stringify(made.spec, null, 1)}\n`;
  if (existsSync(own) && readFileSync(own, 'utf8') === text) return;
  // Podman and Docker's client read it as any user.
  replaceFile(own, text, { mode: 0o644, sync: false, temporary: join(folder, BEING_WRITTEN) });
}

const isSpecification = (name: string) => name.endsWith('.json') || name.endsWith('.yaml');

/** Empty without such a folder. Throws where the folder cannot be read: its content is unknown then. */
function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder).filter(isSpecification).toSorted();
  } catch (error) {
    if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') return [];
    throw error;
  }
}

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? String(error);
/** Reading a pipe blocks, and a device may have no end. */
const statOf = (path: string) => {
  const found = statSync(path);
  return { size: found.size, isFile: found.isFile() };
};

/** Identifies a file and its content: another text after each change. */
function signature(path: string): string {
  try {
    const { ino, size, mtimeMs, ctimeMs } = statSync(path);
    return `${path} ${ino} ${size} ${mtimeMs} ${ctimeMs}\n`;
  } catch (error) {
    return `${path} ${codeOf(error)}\n`; // a link that leads nowhere, or in a circle
  }
}
const signatureOf = (folders: readonly string[]): string =>
  sourcesIn(folders)
    .map(({ path }) => signature(path))
    .join('');

/** All specifications except the agent's. */
const sourcesIn = (folders: readonly string[]) =>
  folders.flatMap((folder, index) =>
    namesIn(folder).flatMap((name) => (name === OWN_FILE ? [] : [{ path: join(folder, name), folder: index }])),
  );

type Unreadable = { readonly path: string; readonly wrong: string };

function specificationsIn(folders: readonly string[]): { found: readonly Found[]; unreadable: readonly Unreadable[] } {
  const found: Found[] = [];
  const unreadable: Unreadable[] = [];
  for (const { path, folder } of sourcesIn(folders)) {
    const spec = readFile(path);
    if (spec.ok) found.push({ path, folder, spec: spec.value });
    else unreadable.push({ path, wrong: spec.error });
  }
  return { found, unreadable };
}

function readFile(path: string): Result<CdiSpec> {
  try {
    const { size, isFile } = statOf(path);
    if (!isFile) return err('it is no file');
    if (size > MOST_BYTES) return err(`it has more than ${MOST_BYTES} bytes`);
    const text = readFileSync(path, 'utf8');
    return readSpec(path.endsWith('.json') ? JSON.parse(text) : parseYaml(text));
  } catch (error) {
    return err((error as Error).message.split('\n')[0] ?? '');
  }
}

/** As CDI's readers do, by YAML 1.1: 0660 is octal there. The parser is loaded only for such a file. */
function parseYaml(text: string): unknown {
  const { parse } = require('yaml') as typeof import('yaml');
  return parse(text, { version: '1.1' });
}
