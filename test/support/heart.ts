// The heart's program (test/native/programs/heart.c), case by case.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { temporaryFolder } from './node.ts';

/** What each case shows, by its name. */
export const HEART_CASES = {
  beats: 'while the arbiter rests every page is told that it is there, and from its return on by itself alone',
  unheard:
    'who rang and was not heard is told nothing more, and the heart calls the arbiter and is silent until it is back',
  overdue: 'an arbiter that does not return in time is not there, and is called',
  cut: 'a page that its tenant cuts keeps no other from being told',
  gone: 'pages go as soon as the arbiter is back, whatever the heart was about',
} as const;

/** Of the build in that folder. */
export function runHeart(t: ExecutionContext, build: string, name: string): void {
  const cwd = temporaryFolder(t);
  const { status, signal, stdout, stderr } = spawnSync(join(build, 'tests/heart'), [name], { cwd, encoding: 'utf8' });
  t.deepEqual({ status, signal, said: stdout + stderr }, { status: 0, signal: null, said: '' });
}
