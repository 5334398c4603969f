import test from 'ava';
import { CASES, runMoment } from '../support/interleavings.ts';
import { TSAN_BUILD } from '../support/sanitizers.ts';

for (const title of Object.keys(CASES) as (keyof typeof CASES)[])
  test(`ThreadSanitizer sees no race where ${title}`, (t) => runMoment(t, TSAN_BUILD, title));
