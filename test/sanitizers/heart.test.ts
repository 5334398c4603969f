import test from 'ava';
import { HEART_CASES, runHeart } from '../support/heart.ts';
import { TSAN_BUILD } from '../support/sanitizers.ts';

for (const name of Object.keys(HEART_CASES)) {
  test(`ThreadSanitizer sees no race between the heart and the thread that rests: ${name}`, (t) =>
    runHeart(t, TSAN_BUILD, name));
}
