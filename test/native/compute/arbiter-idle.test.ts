// An idle arbiter: how containers wake it, and what happens when it has died.
import test from 'ava';
import { IDLE_CASES, runIdleCase } from '../../support/native/arbiter-idle.ts';
import { BUILD } from '../../support/native/node.ts';

for (const [name, what] of Object.entries(IDLE_CASES)) test(what, (t) => runIdleCase(t, BUILD, name));
