import test from 'ava';
import { IDLE_CASES, runIdleCase } from '../support/native/arbiter-idle.ts';
import { TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

for (const name of Object.keys(IDLE_CASES)) {
  test(`ThreadSanitizer finds no race between arbiter and container: ${name}`, (t) => runIdleCase(t, TSAN_BUILD, name));
}
