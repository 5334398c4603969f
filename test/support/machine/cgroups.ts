// Cgroups for a test, below the cgroup in which it runs, in the unified hierarchy.
import { mkdirSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';
import { unifiedMount, unifiedPath } from '../../../src/agent/os/cgroup.ts';

/** The folder in which they may be created, or the reason why the test is skipped. */
export function groupHome(): { readonly home: string } | { readonly reason: string } {
  const mount = unifiedMount();
  const own = unifiedPath(readFileSync('/proc/self/cgroup', 'utf8'));
  if (mount === undefined || own === undefined) return { reason: 'there is no unified control group hierarchy' };
  const home = join(mount, own);
  const trial = join(home, `trial-${process.pid}`);
  try {
    mkdirSync(trial);
    rmdirSync(trial);
    return { home };
  } catch (error) {
    return { reason: `control groups cannot be made here: ${(error as NodeJS.ErrnoException).code}` };
  }
}
