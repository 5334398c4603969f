// An arbiter that rests, and who needs it then.
import test from 'ava';
import { BUILD } from '../support/node.ts';
import { REST_CASES, runRest } from '../support/rest.ts';

for (const [name, what] of Object.entries(REST_CASES)) test(what, (t) => runRest(t, BUILD, name));
