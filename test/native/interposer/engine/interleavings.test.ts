// Another thread runs between a result of the driver and its accounting.
import test from 'ava';
import { CASES, runMoment } from '../../../support/native/interleavings.ts';
import { BUILD } from '../../../support/native/node.ts';

for (const title of Object.keys(CASES) as (keyof typeof CASES)[]) test(title, (t) => runMoment(t, BUILD, title));
