// An arbiter that rests, and who needs it then.
import test from 'ava';
import { REST_CASES, runRest } from '../../support/arbiter-idle.ts';
import { BUILD } from '../../support/node.ts';

for (const [name, what] of Object.entries(REST_CASES)) test(what, (t) => runRest(t, BUILD, name));
