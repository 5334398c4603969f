// State files: small JSON files of the state folder, read once at startup and replaced atomically (temporary file,
// fsync, rename), so that a crash at any moment leaves the old or the new content. A file that cannot be read is kept
// as `.unread`.
import {
  closeSync,
  existsSync,
  fchmodSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import type * as v from 'valibot';
import type { Logger } from './logger.ts';
import { err, type Result } from './result.ts';
import { parseJson, parseVersionedJson } from './schema.ts';

/** Far more than any state file has; a larger one is not ours. */
const MAX_BYTES = 16 * 2 ** 20;

export type StateFormat<T extends object> = {
  /** Undefined: files of this format carry no version. */
  readonly version: number | undefined;
  readonly schema: v.GenericSchema<unknown, T>;
};

type StateFile<T extends object> = {
  /** The content at startup; undefined: there was no file, or it could not be read. */
  readonly found: T | undefined;
  /** Throws where the file cannot be written: it then has its former content. */
  write(value: T): void;
  /** Removes the file, if there is one. */
  remove(): void;
};

export const formatState = <T extends object>({ version }: StateFormat<T>, value: T): string =>
  `${JSON.stringify({ ...(version !== undefined && { version }), ...value }, null, 2)}\n`;

export const parseState = <T extends object>({ version, schema }: StateFormat<T>, text: string): Result<T> =>
  version === undefined ? parseJson(schema, text) : parseVersionedJson(schema, version, text);

function readState<T extends object>(path: string, format: StateFormat<T>): Result<T> | undefined {
  if (!existsSync(path)) return undefined;
  try {
    if (statSync(path).size > MAX_BYTES) return err(`it has more than ${MAX_BYTES} bytes`);
    return parseState(format, readFileSync(path, 'utf8'));
  } catch (error) {
    return err((error as Error).message);
  }
}

type WriteOptions = {
  readonly mode?: number;
  /** False: the content is worthless after a reboot, so that it need not be on the disk before it has its name. */
  readonly sync?: boolean;
  /** Where it is written first, on the same file system; absent: beside the file. */
  readonly temporary?: string;
};

/** Writes the new content beside the file; calling the result gives it the file's name, in one step. */
export function prepareFile(path: string, text: string | Uint8Array, options: WriteOptions = {}): () => void {
  const { mode = 0o644, sync = true, temporary = `${path}.new` } = options;
  const fd = openSync(temporary, 'w', mode);
  try {
    writeFileSync(fd, text);
    fchmodSync(fd, mode); // whatever the umask is
    if (sync) fsyncSync(fd); // else the name may reach the disk before the content
  } finally {
    closeSync(fd);
  }
  return () => renameSync(temporary, path);
}

/** Gives a file new content: readers, and a start after a crash, find all of the old or all of the new. */
export const replaceFile = (path: string, text: string | Uint8Array, options?: WriteOptions): void =>
  prepareFile(path, text, options)();

type StateFileOptions = Pick<WriteOptions, 'mode' | 'sync'> & {
  /** What follows where the file cannot be read, a clause. */
  readonly lost: string;
  readonly log: Pick<Logger, 'warn'>;
};

export function openStateFile<T extends object>(
  path: string,
  format: StateFormat<T>,
  { lost, log, ...options }: StateFileOptions,
): StateFile<T> {
  const read = readState(path, format);
  let isUnread = read?.ok === false;
  if (read?.ok === false)
    log.warn(`${path} is ignored, so ${lost}: ${read.error}; the next write keeps it as ${path}.unread`);
  return {
    found: read?.ok ? read.value : undefined,
    write(value) {
      const text = formatState(format, value);
      if (text.length > MAX_BYTES) throw new Error(`${path}: more than ${MAX_BYTES} bytes are not written`);
      const rename = prepareFile(path, text, options);
      if (isUnread) renameSync(path, `${path}.unread`);
      isUnread = false;
      rename();
    },
    remove() {
      if (existsSync(path)) unlinkSync(path);
    },
  };
}
