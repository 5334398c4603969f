// Which fence is in force, and what is done about a limit of the driver's that is found.
import test from 'ava';
import {
  type DriverLimit,
  type Fence,
  type FenceFacts,
  fenceOf,
  type LimitStep,
  limitStep,
} from '../../../src/policy/isolation.ts';

test('the strongest mechanism that holds a container is named', (t) => {
  const facts = { isolateMemory: true, driverHolds: false, interposerFails: false, holdsMemory: true, inLedger: true };
  const cases: [facts: Partial<FenceFacts>, fence: Fence][] = [
    [{}, 'interposer'],
    [{ driverHolds: true, inLedger: false }, 'driver'],
    [{ driverHolds: true, holdsMemory: false, inLedger: false }, 'driver'],
    [{ driverHolds: true, interposerFails: true }, 'driver'],
    [{ holdsMemory: false, inLedger: false }, 'interposer'],
    [{ inLedger: false }, 'agent'],
    [{ interposerFails: true }, 'agent'],
    [{ interposerFails: true, holdsMemory: false, inLedger: false }, 'agent'],
    [{ isolateMemory: false, driverHolds: true }, 'none'],
  ];
  for (const [more, fence] of cases) t.is(fenceOf({ ...facts, ...more }), fence, JSON.stringify(more));
});

test('our driver limits are set, changed and removed; others stay', (t) => {
  const none: DriverLimit = { softBytes: 0, hardBytes: null };
  const of = (hardBytes: number, softBytes = 0): DriverLimit => ({ softBytes, hardBytes: hardBytes * mib });
  const mib = 1024 * 1024;
  const cases: [found: DriverLimit, ours: number[], wanted: number | undefined, step: LimitStep][] = [
    [none, [], 100, 'set'],
    [none, [100], 100, 'set'],
    [of(100), [100], 100, 'keep'],
    [of(100), [100], 50, 'set'],
    // The driver rounded what we set, and we were ended before we read it.
    [of(101), [100], 100, 'set'],
    [of(101), [100], undefined, 'clear'],
    [of(100), [50, 100], 50, 'set'],
    // The very amount that is wanted, but no record says that it was set.
    [of(100), [], 100, 'leave'],
    [of(70), [100], 100, 'leave'],
    [of(100, 1), [100], 100, 'leave'],
    [{ softBytes: 5, hardBytes: null }, [100], 100, 'leave'],
    [of(100), [100], undefined, 'clear'],
    [of(70), [100], undefined, 'leave'],
    [of(100, 1), [100], undefined, 'leave'],
    [none, [100], undefined, 'leave'],
  ];
  for (const [found, ours, wanted, step] of cases)
    t.is(
      limitStep(
        found,
        ours.map((amount) => amount * mib),
        wanted === undefined ? wanted : wanted * mib,
      ),
      step,
      JSON.stringify([found, ours, wanted]),
    );
});
