// Reduces the memory of the daemons that run on every node.
import { setFlagsFromString } from 'node:v8';
import { loadNative } from './addon.ts';

/** Trims after the start, and during the first minute, which adopts grants, measures GPUs and lists pods. */
const STARTED_MS = [3000, 10_000, 20_000, 60_000];
const EVERY_MS = 600_000;

/**
 * Lets V8 collect each heap of this process, also those of its threads, after 2 MiB of growth instead of 8.
 * NODE_OPTIONS does not accept the flag; set after the start it only makes collections more frequent. Also releases
 * unused pages of node's own file at intervals.
 */
export function reduceMemory(): void {
  setFlagsFromString('--optimize-for-size');
  const { trimProgramMemory } = loadNative();
  for (const ms of STARTED_MS) setTimeout(trimProgramMemory, ms).unref();
  setInterval(trimProgramMemory, EVERY_MS).unref();
}
