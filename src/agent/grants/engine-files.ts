// Files of the interposer's engines, which have their number in their name, and how they come into a folder that tenants load
// from. Pure of what a number means.
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

/** What the loader brings into every process; engines are loaded by it. */
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
    .filter((name) => statSync(join(folder, name), { throwIfNoEntry: false })?.isFile()) // a link may lead nowhere
    .flatMap((name) => engineNumber(name) ?? [])
    .toSorted((a, b) => a - b);
}

/** Under its name only when it is whole; where that fails nothing of it is left. */
export function copyLibrary(from: string, path: string): void {
  const fresh = `${path}.new`;
  try {
    copyFileSync(from, fresh);
    const fd = openSync(fresh, 'r');
    fchmodSync(fd, 0o755);
    fsyncSync(fd); // a crash must not leave the name to a file that is cut short
    closeSync(fd);
    renameSync(fresh, path);
  } catch (error) {
    rmSync(fresh, { force: true });
    throw error;
  }
}
