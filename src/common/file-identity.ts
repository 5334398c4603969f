import { lstatSync } from 'node:fs';

/**
 * Distinguishes a file from another one of the same name, even if the file system reuses the inode number; undefined:
 * there is none.
 */
export function fileIdentity(path: string): string | undefined {
  const found = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return found && `${found.dev}:${found.ino}:${found.ctimeNs}`;
}
