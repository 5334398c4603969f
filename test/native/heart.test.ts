// The heartbeat of the arbiter while its thread waits.
import test from 'ava';
import { HEART_CASES, runHeart } from '../support/heart.ts';
import { BUILD } from '../support/node.ts';

for (const [name, what] of Object.entries(HEART_CASES)) test(what, (t) => runHeart(t, BUILD, name));
