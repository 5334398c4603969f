// The two files of a grant as the agent holds them: the limits page, written in place, and the ledger, read through a
// descriptor. Owns how they are made, opened and adopted; a tenant may have put something else in a file's place.
import { closeSync, constants, fchmodSync, fstatSync, openSync, rmSync } from 'node:fs';

/** A page that may be written. Of a pod it is opened for each writing: its file system is read-only at all other times. */
export type PageFile = {
  write<T>(use: (fd: number) => T): T;
  close(): void;
};

/** A new file of that mode, whatever lay there and whatever the umask is. */
export function makeFile(path: string, mode: number): number {
  rmSync(path, { force: true, recursive: true });
  const fd = openSync(path, 'wx+', mode);
  fchmodSync(fd, mode); // what the umask took away is meant
  return fd;
}

/** An ordinary file, opened for reading and writing; throws where it is something else. */
export function openFile(path: string): number {
  const fd = openSync(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if (fstatSync(fd).isFile()) return fd;
  closeSync(fd);
  throw new Error('not a file');
}

export const heldPage = (fd: number): PageFile => ({ write: (use) => use(fd), close: () => closeSync(fd) });

/** `within` makes the file system writable for the time of one call. */
export function reopenedPage(path: string, within: <T>(write: () => T) => T): PageFile {
  return {
    write: (use) =>
      within(() => {
        const fd = openFile(path);
        try {
          return use(fd);
        } finally {
          closeSync(fd); // an open descriptor would keep the file system from becoming read-only again
        }
      }),
    close: () => {},
  };
}
