// The program of an arbiter that rests (test/native/programs/arbiter_idle.c), case by case.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { temporaryFolder } from './node.ts';

/** What each case shows, by its name. */
export const REST_CASES = {
  promises: 'while the arbiter rests every page says until when it listens, one promise after another',
  heard: 'who rings while the arbiter rests gets the lease from it',
  cut: 'a page that its tenant cuts keeps no other from being heard',
  plans: 'pages join and leave while the arbiter rests',
  gone: 'who rings an arbiter that was killed or hangs while it rests goes by its own credit after 60 ms, its next launches at once, whoever wrote the promise',
  late: 'what was let go because nobody came drains before another container gets the GPU',
} as const;

/** Of the build in that folder. */
export function runRest(t: ExecutionContext, build: string, name: string): void {
  const cwd = temporaryFolder(t);
  const { status, signal, stdout, stderr } = spawnSync(join(build, 'tests/arbiter_idle'), [name], {
    cwd,
    encoding: 'utf8',
  });
  t.deepEqual({ status, signal, said: stdout + stderr }, { status: 0, signal: null, said: '' });
}
