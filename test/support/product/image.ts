// The program as it is in the container image, for tests and benchmarks.
import { cpSync, existsSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { stripFolder } from '../../../image/strip-types.ts';
import { type Teardown, temporaryFolder } from '../native/node.ts';

const ROOT = join(import.meta.dirname, '../../..');

/** A folder with the type-stripped program; packages and native parts are those of this checkout. */
export function imageHome(t: Teardown): string {
  const home = join(temporaryFolder(t), 'cotenant');
  mkdirSync(join(home, 'native'), { recursive: true });
  for (const path of ['src', 'webhook', 'native/build.ts', 'package.json'])
    cpSync(join(ROOT, path), join(home, path), { recursive: true });
  stripFolder(home);
  for (const path of ['node_modules', 'native/build']) symlinkSync(join(ROOT, path), join(home, path));
  return home;
}

/** Command line that starts the program of a folder, with types or without. */
export function mainOf(root = ROOT): string {
  const plain = join(root, 'src/cli/main.js');
  return existsSync(plain) ? plain : join(root, 'src/cli/main.ts');
}
