import test from 'ava';
import { IDLE_CASES, runIdleCase } from '../support/arbiter-idle.ts';
import { TSAN_BUILD } from '../support/sanitizers.ts';

for (const name of Object.keys(IDLE_CASES)) {
  test(`ThreadSanitizer sees no race between the arbiter's thread and a page's: ${name}`, (t) =>
    runIdleCase(t, TSAN_BUILD, name));
}
