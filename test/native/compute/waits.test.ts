// Checks by spin that launches which wait, and kernels which wait for launches, never stand still, that gangs get their
// turns, and what holds when an arbiter stops and comes back: models/waits.pml, gangs.pml and heartbeats.pml. Each
// deliberate fault in a model must be found.
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { temporaryFolder } from '../../support/native/node.ts';

const checked = spawnSync('spin', ['-V']).error ? test.skip : test;

/** Result of the model checker, under weak fairness, with these macros defined. */
function check(t: ExecutionContext, model: string, defined: readonly string[]): string {
  const at = { cwd: temporaryFolder(t), encoding: 'utf8' } as const;
  const path = join(import.meta.dirname, 'models', model);
  execFileSync('spin', ['-a', ...defined.map((name) => `-D${name}`), path], at);
  execFileSync('gcc', ['-O2', '-w', '-DNFAIR=4', '-DCOLLAPSE', '-DMEMLIM=1500', 'pan.c', '-o', 'pan'], at);
  return spawnSync(join(at.cwd, 'pan'), ['-a', '-f', '-m2000000'], at).stdout;
}

for (const [model, what] of [
  ['waits.pml', 'all launches go and all kernels end, whatever waits for what'],
  ['gangs.pml', 'gangs that need the same GPUs and lone containers get all their turns'],
  ['heartbeats.pml', 'an arbiter that is lost holds no launch back, and one that returns grants alone'],
] as const) {
  checked(what, (t) => {
    const output = check(t, model, []);
    t.regex(output, /errors: 0/);
    t.notRegex(output, /error: max search depth too small|out of memory/);
    const states = Number(/(\d+) states, stored/.exec(output)?.[1]);
    t.true(states > 1000, `${states} states`);
  });
}

for (const [model, broken, what] of [
  ['waits.pml', 'NO_BOUND', 'credit that is waited for without a bound'],
  ['waits.pml', 'NO_OVERDUE', 'a GPU that a kernel in flight keeps from others'],
  ['waits.pml', 'SHARED_DEPTH', "a launch that waits for other processes' work"],
  ['gangs.pml', 'PIECEMEAL', 'a gang that takes one GPU after the other'],
  ['gangs.pml', 'KEPT', 'a claim that stays when its gang stops waiting'],
  ['heartbeats.pml', 'READ_FIRST', 'a heartbeat that is read before the launch is announced'],
  ['heartbeats.pml', 'BEAT_LATE', 'an arbiter that looks at what is in flight before it beats'],
  ['heartbeats.pml', 'NO_CREDIT', 'a process that waits for an arbiter that never returns'],
  ['heartbeats.pml', 'NO_DRAIN', 'a turn beside work that was launched without an arbiter'],
] as const) {
  checked(`the model finds ${what}`, (t) => {
    t.regex(check(t, model, [broken]), /errors: [1-9]/);
  });
}
