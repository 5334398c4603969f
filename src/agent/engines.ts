// Files of the interposer's engines, which have their number in their name. Pure of what a number means.
import { readdirSync } from 'node:fs';

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
    .flatMap((name) => engineNumber(name) ?? [])
    .toSorted((a, b) => a - b);
}
