// Wraps runc as NVIDIA's container runtime does: a container whose environment names GPUs gets the driver's files, here
// those of the simulated node. containerd calls it as a runtime of its own. Arguments: RUNC FOLDER, then runc's own.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { commonMounts, gpuMount, type Mount, wholeMounts } from './gpus.ts';

type Spec = {
  process: { env?: string[] };
  mounts: { destination: string; type: string; source: string; options: readonly string[] }[];
};

/** Mounts for the last NVIDIA_VISIBLE_DEVICES: `all`, or GPUs by UUID. Throws for a GPU that the node does not have. */
function mountsFor(env: readonly string[] = [], folder: string): readonly Mount[] {
  const asked = env.findLast((entry) => entry.startsWith('NVIDIA_VISIBLE_DEVICES='))?.split('=')[1] ?? '';
  if (['', 'void', 'none'].includes(asked)) return [];
  if (asked === 'all') return wholeMounts(folder);
  const gpus = asked.split(',').map((uuid) => {
    if (!/^GPU-[0-9a-f-]+$/.test(uuid) || !existsSync(join(folder, 'gpus', uuid)))
      throw new Error(`NVIDIA_VISIBLE_DEVICES=${asked}: no GPU ${uuid} on this node`);
    return gpuMount(folder, uuid);
  });
  return [...commonMounts(folder), ...gpus];
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
