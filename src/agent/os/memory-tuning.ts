// Memory of the daemons that run on every node, beside what the node is there for.
import { setFlagsFromString } from 'node:v8';
import { loadNative } from './addon.ts';

/** After a start, and again for what its first minute needs: grants that are adopted, GPUs that are measured, lists of pods. */
const STARTED_MS = [3000, 10_000, 20_000, 60_000];
const EVERY_MS = 600_000;

/**
 * Has V8 collect each heap of this process, its threads' included, once it has grown by 2 MiB in place of 8. The flag cannot stand
 * in NODE_OPTIONS. Set after the start it changes the pace of collections; nothing else of it was seen. And lets go, once it has
 * started and now and then, of what of node's own file it does not use.
 */
export function beFrugal(): void {
  setFlagsFromString('--optimize-for-size');
  const { trimProgramMemory } = loadNative();
  for (const ms of STARTED_MS) setTimeout(trimProgramMemory, ms).unref();
  setInterval(trimProgramMemory, EVERY_MS).unref();
}
