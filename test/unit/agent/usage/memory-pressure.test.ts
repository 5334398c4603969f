// Whose memory a container takes: what others on its GPU were granted and have not taken, where nothing else is left.
import test from 'ava';
import { applyMemoryPressure } from '../../../../src/agent/usage/memory-pressure.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE } from '../../../../src/policy/memory-verdict.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofGrant,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

/** Grants of 1000 MiB on GPU 0, what they hold there in MiB, all of it in their ledgers. */
function verdicts(freeMib: number | undefined, held: Readonly<Record<string, number | undefined>>, more: object = {}) {
  const names = Object.keys(held);
  const processes = names.map((name, index) => {
    const mib = held[name];
    return sampledProcess(100 + index, [use(0, mib === undefined ? {} : { bytes: mib * MIB })]);
  });
  const on = gpu(0, { ...(freeMib !== undefined && { freeBytes: freeMib * MIB }) });
  const readings = names.map((name, index) =>
    reading(grantOf(name, 1000, [0], more), ledgerOf([slot(100 + index, [row()])])),
  );
  const owners = Object.fromEntries(names.map((name, index) => [100 + index, ofGrant(name)]));
  const state = compared(sampleOf([on], processes), readings, owners);
  const after = applyMemoryPressure(state, DEFAULT_TOLERANCE);
  const said = after.containers.map(({ grant, verdict }) =>
    verdict.severity === 'within' ? grant.id : `${grant.id} ${verdict.severity} ${verdict.reason}`,
  );
  return { said, isSame: after === state };
}

test('an overusing container owes memory to those that have not used their whole grant', (t) => {
  const cases: [string, number | undefined, Record<string, number | undefined>, readonly string[]][] = [
    ['to one who has nothing yet', 10, { rogue: 1200, other: 0 }, ['rogue hard no-room', 'other']],
    ['to no other, whatever it is short of itself', 10, { rogue: 1200 }, ['rogue soft over-limit']],
    ['to one who has all of it', 10, { rogue: 1200, other: 1000 }, ['rogue soft over-limit', 'other']],
    [
      'by each of two, to a third',
      10,
      { rogue: 1200, second: 1100, other: 900 },
      ['rogue hard no-room', 'second hard no-room', 'other'],
    ],
    [
      'not by two to one another',
      10,
      { rogue: 1200, second: 1100 },
      ['rogue soft over-limit', 'second soft over-limit'],
    ],
    ['not while there is some', 1000, { rogue: 1200, other: 0 }, ['rogue soft over-limit', 'other']],
    [
      "what the driver does not report is no container's fault",
      undefined,
      { rogue: 1200, other: 0 },
      ['rogue soft over-limit', 'other'],
    ],
    [
      'a container without reported use is owed nothing',
      10,
      { rogue: 1200, other: undefined },
      ['rogue soft over-limit', 'other'],
    ],
  ];
  for (const [what, free, held, expected] of cases) t.deepEqual(verdicts(free, held).said, expected, what);
});

test('where no container is over its limit the state is the same object', (t) => {
  t.true(verdicts(10, { one: 1000, other: 0 }).isSame);
  t.false(verdicts(10, { rogue: 1200, other: 0 }).isSame);
  t.deepEqual(verdicts(10, { rogue: 1200, other: 0 }, { isolateMemory: false }).said, ['rogue', 'other']);
});
