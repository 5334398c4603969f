// A run of the laboratory whose virtual time does not go on ends by itself, and says which one it was and how it stood.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';
import { BUILD } from '../../support/native/node.ts';

const MOST_MS = 90_000;
const run = (program: string, atMs: number, args: readonly string[]) =>
  spawnSync(join(BUILD, 'tests', program), args, {
    encoding: 'utf8',
    timeout: MOST_MS,
    env: { ...process.env, COTENANT_LAB_STILL_MS: String(atMs) },
  });

test('a run of the laboratory that stands still ends with its seed and state', (t) => {
  const tenant = (percent: number) => `tenant=form:async,kernel_us:1000,percent:${percent}`;
  const { status, stdout, stderr } = run('compute-lab', 1500, ['seed=7', 'seconds=3', tenant(50), tenant(30)]);
  t.is(status, 4, stderr);
  t.is(stdout, '');
  t.regex(stderr, /^seed 7: virtual time stands still at 1500000 us$/m);
  t.regex(stderr, /^ {2}container 1 process 0: [a-zA-Z ]+, \d+ launches, \d+ in flight$/m);
  t.regex(stderr, /^ {2}GPU 0: (free|held|closing), holder \d; member 0: \d+ wait, \d+ in flight, credit -?\d+ us; /m);
});

for (const [what, args] of [
  ['random program', ['17', '1', '1000']],
  ['job', ['job', '17', '1', '25']],
] as const) {
  test(`a ${what} that stands still fails with its seed and state`, (t) => {
    const { status, stdout, stderr } = run('progress', 5, args);
    t.is(status, 1, stderr);
    t.regex(stdout, /^seed 17 (failed|does not end without a gate)$/m);
    t.regex(stderr, /^seed 17: virtual time stands still at 5000 us$/m);
    t.regex(stderr, /^ {2}container \d process \d: /m);
  });
}
