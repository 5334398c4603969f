// Checks all interleavings of the lease protocol by model checking test/native/compute/models/lease.pml with spin. Each
// deliberate fault in the model must be found.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';

const MODEL = join(import.meta.dirname, 'models/lease.pml');
const checked = spawnSync('spin', ['-V']).error ? test.skip : test;

/** Result of the model checker with these macros defined. */
function check(t: ExecutionContext, defined: readonly string[]): string {
  const folder = mkdtempSync(join(tmpdir(), 'ct-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const at = { cwd: folder, encoding: 'utf8' } as const;
  execFileSync('spin', ['-a', ...defined.map((name) => `-D${name}`), MODEL], at);
  execFileSync('gcc', ['-O2', '-w', '-DSAFETY', '-DCOLLAPSE', '-DMEMLIM=1500', 'pan.c', '-o', 'pan'], at);
  return spawnSync(join(folder, 'pan'), ['-m2000000'], at).stdout;
}

checked('the lease protocol excludes overlap, mixed terms and lost wake-ups', (t) => {
  const output = check(t, []);
  t.regex(output, /errors: 0/);
  t.notRegex(output, /error: max search depth too small|out of memory/);
  const states = Number(/(\d+) states, stored/.exec(output)?.[1]);
  t.true(states > 10_000, `${states} states`);
});

for (const [broken, what] of [
  ['LOOKS_FIRST', 'a thread that looks before it announces'],
  ['AGENT_FIRST', 'an agent that looks before it closes'],
  ['NO_SECOND_LOOK', 'a reader that reads the terms once'],
  ['WAKES_FIRST', 'an agent that wakes before it opens'],
] as const) {
  checked(`the model finds ${what}`, (t) => {
    t.regex(check(t, [broken]), /errors: [1-9]/);
  });
}
