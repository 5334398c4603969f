// A small file of the state folder: JSON with a version, read once at the start and written whole. Owns that an end at any moment
// leaves the old one or the new one, and that one which cannot be read is put aside before another takes its place. What is in it
// is its format's to say.
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { parseVersioned } from './json.ts';

/** None of ours is anywhere near that. */
const MOST_BYTES = 16 * 2 ** 20;

export type Wrong = { readonly wrong: string };

export type StateFormat<T extends object> = {
  readonly version: number;
  /** Of what is in a file of that version; `wrong` is a clause about it. */
  read(value: unknown): T | Wrong;
};

export type StateFile<T extends object> = {
  /** At the start; undefined: there was none, or none that can be read. */
  readonly found: T | undefined;
  /** Throws where it cannot be kept: the file is then as it was. */
  write(value: T): void;
};

export const formatState = <T extends object>({ version }: StateFormat<T>, value: T): string =>
  `${JSON.stringify({ version, ...value }, null, 2)}\n`;

export function parseState<T extends object>({ version, read }: StateFormat<T>, text: string): T | Wrong {
  const versioned = parseVersioned(text, version);
  return 'wrong' in versioned ? versioned : read(versioned.value);
}

function readState<T extends object>(path: string, format: StateFormat<T>): T | Wrong | undefined {
  if (!existsSync(path)) return undefined;
  try {
    if (statSync(path).size > MOST_BYTES) return { wrong: `it has more than ${MOST_BYTES} bytes` };
    return parseState(format, readFileSync(path, 'utf8'));
  } catch (error) {
    return { wrong: (error as Error).message };
  }
}

export type StateFileOptions = {
  /** What follows where it cannot be read, a clause. */
  readonly lost: string;
  readonly onProblem: (text: string) => void;
  /** It says nothing to another start of the machine: nobody waits for the disk. */
  readonly untilReboot?: boolean;
};

export function openStateFile<T extends object>(
  path: string,
  format: StateFormat<T>,
  { lost, onProblem, untilReboot = false }: StateFileOptions,
): StateFile<T> {
  const read = readState(path, format);
  let isUnread = read !== undefined && 'wrong' in read;
  if (read !== undefined && 'wrong' in read)
    onProblem(`${path} is passed over, so ${lost}: ${read.wrong}; it becomes ${path}.unread before another is written`);
  return {
    found: read === undefined || 'wrong' in read ? undefined : read,
    write(value) {
      const fd = openSync(`${path}.new`, 'w', 0o644);
      try {
        writeFileSync(fd, formatState(format, value));
        if (!untilReboot) fsyncSync(fd); // else the name may come to the disk before what it names
      } finally {
        closeSync(fd);
      }
      if (isUnread) renameSync(path, `${path}.unread`);
      isUnread = false;
      renameSync(`${path}.new`, path);
    },
  };
}
