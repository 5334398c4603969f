// Modules of the guest's kernel, in the order in which they are loaded. Packages that are only unpacked have no
// modules.dep, so each module is asked what it needs.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';

/** Paths of the named modules with all that they need, each after what it needs. `root`: the unpacked packages. */
export function modulesOf(root: string, names: readonly string[]): readonly string[] {
  const folder = join(root, 'lib/modules');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.ko'));
  const paths = new Map(files.map((path) => [nameOf(path), join(folder, path)]));
  const taken = new Set<string>();
  const take = (name: string): void => {
    const path = paths.get(nameOf(name));
    if (path === undefined) throw new Error(`the kernel's package has no module ${name}`);
    if (taken.has(path)) return;
    for (const needed of needsOf(path)) take(needed);
    taken.add(path);
  };
  for (const name of names) take(name);
  return [...taken];
}

/** Files may have a hyphen where the kernel says an underscore. */
const nameOf = (path: string): string => basename(path, '.ko').replaceAll('-', '_');

/** From the strings of its section .modinfo: "depends=a,b" between two zero bytes. */
function needsOf(path: string): readonly string[] {
  const text = readFileSync(path, 'latin1');
  return (/\0depends=([^\0]*)\0/.exec(text)?.[1] ?? '').split(',').filter(Boolean);
}
