import test from 'ava';
import { CASES, runMoment } from '../support/native/interleavings.ts';
import { TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

for (const title of Object.keys(CASES) as (keyof typeof CASES)[])
  test(`ThreadSanitizer finds no race in the case ${CASES[title][0]}`, (t) => runMoment(t, TSAN_BUILD, title));
