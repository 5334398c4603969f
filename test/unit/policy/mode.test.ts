// Which mode holds for a container: which object may set what, and that only an administrator makes it weaker.
import test from 'ava';
import { MODES, type Mode } from '../../../src/api/request.ts';
import { effectiveMode, notWeakerThan, parseMode, resolveRequestedMode } from '../../../src/policy/mode.ts';

const all = <T>(
  make: (node: Mode, namespace: Mode, pod: Mode | undefined, administrator: Mode | undefined) => T,
): T[] =>
  MODES.flatMap((node) =>
    MODES.flatMap((namespace) =>
      [undefined, ...MODES].flatMap((pod) =>
        [undefined, ...MODES].map((administrator) => make(node, namespace, pod, administrator)),
      ),
    ),
  );
const rank = (mode: Mode) => MODES.indexOf(mode);

test('the mode of a container and its source', (t) => {
  const cases: [[Mode, Mode, Mode | undefined, Mode | undefined], string][] = [
    [['enforce', 'enforce', undefined, undefined], 'enforce node'],
    [['enforce', 'report', undefined, undefined], 'report namespace'],
    [['enforce', 'off', undefined, undefined], 'off namespace'],
    [['enforce', 'report', 'enforce', undefined], 'enforce pod'],
    [['enforce', 'enforce', 'off', undefined], 'enforce node'],
    [['enforce', 'report', 'off', undefined], 'report namespace'],
    [['enforce', 'enforce', undefined, 'report'], 'report administrator'],
    [['enforce', 'off', 'report', 'enforce'], 'enforce administrator'],
    [['report', 'enforce', 'enforce', 'enforce'], 'report node'],
    [['report', 'off', undefined, undefined], 'off namespace'],
    [['off', 'enforce', 'enforce', 'enforce'], 'off node'],
  ];
  for (const [[node, namespace, pod, administrator], expected] of cases) {
    const { mode, by } = effectiveMode(node, resolveRequestedMode({ namespace, pod, administrator }));
    t.is(`${mode} ${by}`, expected, [node, namespace, pod, administrator].join(' '));
  }
});

test("no mode exceeds the node's, and a pod cannot weaken its own", (t) => {
  const seen = all((node, namespace, pod, administrator) => {
    const { mode } = effectiveMode(node, resolveRequestedMode({ namespace, pod, administrator }));
    const without = effectiveMode(node, resolveRequestedMode({ namespace, pod: undefined, administrator })).mode;
    return { bounded: rank(mode) <= rank(node), notLess: rank(mode) >= rank(without) };
  });
  t.is(seen.length, 144);
  t.true(seen.every(({ bounded, notLess }) => bounded && notLess));
});

test('an unknown mode is undefined', (t) => {
  t.deepEqual(['report', 'Report', '', undefined, false, 1].map(parseMode), [
    'report',
    undefined,
    undefined,
    undefined,
    undefined,
    undefined,
  ]);
  t.deepEqual(notWeakerThan('report'), ['report', 'enforce']);
});
