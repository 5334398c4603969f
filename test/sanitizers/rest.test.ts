import test from 'ava';
import { REST_CASES, runRest } from '../support/arbiter-idle.ts';
import { TSAN_BUILD } from '../support/sanitizers.ts';

for (const name of Object.keys(REST_CASES)) {
  test(`ThreadSanitizer sees no race between the arbiter's thread and a page's: ${name}`, (t) =>
    runRest(t, TSAN_BUILD, name));
}
