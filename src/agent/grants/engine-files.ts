// Files of the interposer's engines, which have their number in their name, and how they are copied to folders that
// tenants load them from.
import {
  closeSync,
  copyFileSync,
  fchmodSync,
  fsyncSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { join } from 'node:path';

/** Preloaded into every process; these load the engine. */
export const PRELOADED: readonly string[] = ['libcotenant.so', 'libcotenant-nvml.so'];

const NAME = /^libcotenant-engine\.([1-9]\d{0,8})\.so$/;

export const engineName = (number: number): string => `libcotenant-engine.${number}.so`;

/** Undefined: not the name of an engine's file. */
export function engineNumber(name: string): number | undefined {
  const digits = NAME.exec(name)?.[1];
  return digits === undefined ? undefined : Number(digits);
}

/** Numbers of the engines in a folder, the lowest first. */
export function enginesIn(folder: string): readonly number[] {
  return readdirSync(folder)
    .filter((name) => engineNumber(name) !== undefined)
    .filter((name) => statSync(join(folder, name), { throwIfNoEntry: false })?.isFile()) // a link may be dangling
    .flatMap((name) => engineNumber(name) ?? [])
    .toSorted((a, b) => a - b);
}

/** The file appears under its name only when it is complete; after a failure no file is left. */
export function copyLibrary(from: string, path: string): void {
  const fresh = `${path}.new`;
  try {
    copyFileSync(from, fresh);
    const fd = openSync(fresh, 'r');
    fchmodSync(fd, 0o755);
    fsyncSync(fd); // a crash must not leave an incomplete file under the name
    closeSync(fd);
    renameSync(fresh, path);
  } catch (error) {
    rmSync(fresh, { force: true });
    throw error;
  }
}
