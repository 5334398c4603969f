// Checks by spin that launches which wait, and kernels which wait for launches, never stand still:
// test/native/compute/models/waits.pml. Each deliberate fault in the model must be found.
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { temporaryFolder } from '../../support/native/node.ts';

const MODEL = join(import.meta.dirname, 'models/waits.pml');
const checked = spawnSync('spin', ['-V']).error ? test.skip : test;

/** Result of the model checker, under weak fairness, with these macros defined. */
function check(t: ExecutionContext, defined: readonly string[]): string {
  const at = { cwd: temporaryFolder(t), encoding: 'utf8' } as const;
  execFileSync('spin', ['-a', ...defined.map((name) => `-D${name}`), MODEL], at);
  execFileSync('gcc', ['-O2', '-w', '-DNFAIR=4', '-DCOLLAPSE', '-DMEMLIM=1500', 'pan.c', '-o', 'pan'], at);
  return spawnSync(join(at.cwd, 'pan'), ['-a', '-f', '-m2000000'], at).stdout;
}

checked('all launches go and all kernels end, whatever waits for what', (t) => {
  const output = check(t, []);
  t.regex(output, /errors: 0/);
  t.notRegex(output, /error: max search depth too small|out of memory/);
  const states = Number(/(\d+) states, stored/.exec(output)?.[1]);
  t.true(states > 1000, `${states} states`);
});

for (const [broken, what] of [
  ['NO_BOUND', 'credit that is waited for without a bound'],
  ['NO_OVERDUE', 'a GPU that a kernel in flight keeps from others'],
  ['SHARED_DEPTH', "a launch that waits for other processes' work"],
] as const) {
  checked(`the model finds ${what}`, (t) => {
    t.regex(check(t, [broken]), /errors: [1-9]/);
  });
}
