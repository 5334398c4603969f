// Stands before runc the way NVIDIA's container runtime does: a container whose environment names cards gets the driver's
// files. Here they are those of the simulated node. Called by containerd as a runtime of its own; args: RUNC FOLDER, then
// runc's own.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cardMount, commonMounts, type Mount, wholeMounts } from './cards.ts';

type Spec = {
  process: { env?: string[] };
  mounts: { destination: string; type: string; source: string; options: readonly string[] }[];
};

/** By the last NVIDIA_VISIBLE_DEVICES: `all`, or cards by their UUIDs. Throws for a card that the node does not have. */
function mountsFor(env: readonly string[] = [], folder: string): readonly Mount[] {
  const asked = env.findLast((entry) => entry.startsWith('NVIDIA_VISIBLE_DEVICES='))?.split('=')[1] ?? '';
  if (['', 'void', 'none'].includes(asked)) return [];
  if (asked === 'all') return wholeMounts(folder);
  const cards = asked.split(',').map((uuid) => {
    if (!/^GPU-[0-9a-f-]+$/.test(uuid) || !existsSync(join(folder, 'cards', uuid)))
      throw new Error(`NVIDIA_VISIBLE_DEVICES=${asked}: no card ${uuid} on this node`);
    return cardMount(folder, uuid);
  });
  return [...commonMounts(folder), ...cards];
}

const [runc = '', folder = '', ...args] = process.argv.slice(2);
const bundle = args.includes('create') ? args[args.indexOf('--bundle') + 1] : undefined;
if (bundle !== undefined) {
  const path = join(bundle, 'config.json');
  const spec = JSON.parse(readFileSync(path, 'utf8')) as Spec;
  const mounts = mountsFor(spec.process.env, folder);
  for (const { from, to, options } of mounts)
    spec.mounts.push({ destination: to, type: 'bind', source: from, options });
  if (mounts.length > 0) writeFileSync(path, JSON.stringify(spec));
}
process.exit(spawnSync(runc, args, { stdio: 'inherit' }).status ?? 1);
