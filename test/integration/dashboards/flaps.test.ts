// Whether the rules tire those who are on call: over 25 hours with failed scrapes, restarts, counters that begin anew,
// pods that come and go, and values that swing, nothing fires on a quiet day, and a trouble makes its alert fire once.
import { alertRules } from '../../../dashboards/alerts/rules.ts';
import { testUnless } from '../../support/gate.ts';
import { findPromtool } from '../../support/services/promtool.ts';
import { badDay, TROUBLES } from './day/bad.ts';
import { firings } from './day/firings.ts';
import { quietDay } from './day/quiet.ts';

const found = findPromtool();
const testWithPromtool = testUnless('reason' in found ? found.reason : undefined);
/** Any will do; a failure is to be the same when it is looked into. */
const SEED = 7;

testWithPromtool('no alert fires on a quiet day', async (t) => {
  t.timeout(400_000);
  t.deepEqual([...(await firings(quietDay(SEED)))], []);
});

testWithPromtool('each trouble fires its alert once, though it is interrupted', async (t) => {
  t.timeout(400_000);
  const fired = await firings(badDay(SEED));
  t.deepEqual(
    [...fired].filter(([, times]) => times > 1),
    [],
  );
  t.deepEqual([...fired.keys()].toSorted(), TROUBLES.toSorted(), 'what fires');
});

testWithPromtool('each alert has a trouble', (t) => {
  const known = alertRules().groups.flatMap(({ rules }) => rules.map(({ alert }) => alert));
  t.deepEqual(TROUBLES.toSorted(), known.toSorted());
});
