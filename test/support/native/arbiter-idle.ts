// Runs the cases of an idle arbiter (test/native/programs/compute/arbiter_idle.c).
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { temporaryFolder } from './node.ts';

/** What each case shows, by its name. */
export const IDLE_CASES = {
  promises: 'while the arbiter is idle every page says until when, without gaps',
  heard: 'a container that rings an idle arbiter gets the lease',
  cut: 'a truncated page does not keep other pages from waking the arbiter',
  plans: 'pages join and leave while the arbiter is idle',
  gone: '60 ms after a ring to a dead idle arbiter, a container uses its own credit',
  late: 'work launched without an answer drains before the next lease',
} as const;

/** Runs a case of the build in that folder. */
export function runIdleCase(t: ExecutionContext, build: string, name: string): void {
  const cwd = temporaryFolder(t);
  const { status, signal, stdout, stderr } = spawnSync(join(build, 'tests/arbiter_idle'), [name], {
    cwd,
    encoding: 'utf8',
  });
  t.deepEqual({ status, signal, said: stdout + stderr }, { status: 0, signal: null, said: '' });
}
