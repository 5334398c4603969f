// An arbiter that rests, and who needs it then.
import test from 'ava';
import { IDLE_CASES, runIdleCase } from '../../support/arbiter-idle.ts';
import { BUILD } from '../../support/node.ts';

for (const [name, what] of Object.entries(IDLE_CASES)) test(what, (t) => runIdleCase(t, BUILD, name));
