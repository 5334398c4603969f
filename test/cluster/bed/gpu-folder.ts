// The folder of a running simulated node, completed for containers: real files in place of links, and the files that
// stand for devices and for other libraries of a driver. Also runs on a node of its own, in the guest.
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { firstSample } from '../../support/product/sample.ts';
import { cdiSpec, STAND_INS } from './gpus.ts';

/** `build`: the native programs. Returns the UUIDs of the GPUs and their CDI specification. */
export function completeFolder(folder: string, build: string): { uuids: readonly string[]; specification: object } {
  // Links to this checkout would be broken in a container.
  for (const name of readdirSync(join(folder, 'lib'))) {
    const path = join(folder, 'lib', name);
    const library = realpathSync(path);
    rmSync(path);
    copyFileSync(library, path);
  }
  const library = join(folder, 'lib/libnvidia-ml.so.1');
  const output = execFileSync(join(build, 'cotenant-sampler'), ['--library', library], { input: '', encoding: 'utf8' });
  const uuids = firstSample(output).gpus.map(({ uuid }) => uuid);
  mkdirSync(join(folder, 'gpus'));
  for (const uuid of uuids) writeFileSync(join(folder, 'gpus', uuid), '');
  mkdirSync(join(folder, 'driver'));
  for (const name of STAND_INS) writeFileSync(join(folder, 'driver', name), '');
  return { uuids, specification: cdiSpec(folder, uuids) };
}
