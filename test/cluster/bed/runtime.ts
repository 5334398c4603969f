// Stands before runc the way NVIDIA's container runtime does: a container whose environment names cards gets the driver's
// files. Here they are those of the simulated node. Called by containerd as a runtime of its own; args: RUNC FOLDER, then
// runc's own.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Where a container finds the simulated driver: FOLDER/lib for the loader, with the node's socket beside it. */
export const INSIDE = '/usr/local/simulated';

type Spec = {
  process: { env?: string[] };
  mounts: { destination: string; type: string; source: string; options: string[] }[];
};

/** `all`, or nothing: single cards are not told apart here. */
export function giveCards(spec: Spec, folder: string): boolean {
  const asked = spec.process.env?.findLast((entry) => entry.startsWith('NVIDIA_VISIBLE_DEVICES='))?.split('=')[1];
  if (asked === undefined || ['', 'void', 'none'].includes(asked)) return false;
  spec.mounts.push({ destination: INSIDE, type: 'bind', source: folder, options: ['rbind', 'ro', 'nosuid', 'nodev'] });
  return true;
}

if (import.meta.main) {
  const [runc = '', folder = '', ...args] = process.argv.slice(2);
  const bundle = args.includes('create') ? args[args.indexOf('--bundle') + 1] : undefined;
  if (bundle !== undefined) {
    const path = join(bundle, 'config.json');
    const spec = JSON.parse(readFileSync(path, 'utf8')) as Spec;
    if (giveCards(spec, folder)) writeFileSync(path, JSON.stringify(spec));
  }
  process.exit(spawnSync(runc, args, { stdio: 'inherit' }).status ?? 1);
}
