// Which fence is in force, and what is done about a limit of the driver's that is found.
import test from 'ava';
import { type DriverLimit, type Fence, fenceOf, type LimitStep, limitStep } from '../../../src/quota/fence.ts';

test('the strongest fence that holds a container is told', (t) => {
  const cases: [isolateMemory: boolean, driverHolds: boolean, holdsMemory: boolean, inLedger: boolean, fence: Fence][] =
    [
      [true, true, true, false, 'driver'],
      [true, true, false, false, 'driver'],
      [true, false, true, true, 'interposer'],
      [true, false, false, false, 'interposer'],
      [true, false, true, false, 'agent'],
      [false, true, true, true, 'none'],
    ];
  for (const [isolateMemory, driverHolds, holdsMemory, inLedger, fence] of cases)
    t.is(fenceOf({ isolateMemory, driverHolds, holdsMemory, inLedger }), fence);
});

test('a limit of the driver is set where there is none, changed and taken back where it is ours, and left where it is not', (t) => {
  const none: DriverLimit = { softBytes: 0, hardBytes: null };
  const of = (hardBytes: number, softBytes = 0): DriverLimit => ({ softBytes, hardBytes });
  const cases: [found: DriverLimit, ours: number[], wanted: number | undefined, step: LimitStep][] = [
    [none, [], 100, 'set'],
    [none, [100], 100, 'set'],
    [of(100), [100], 100, 'keep'],
    [of(100), [100], 50, 'set'],
    [of(100), [50, 100], 50, 'set'],
    // The very amount that is wanted, but nobody knows of having set it.
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
    t.is(limitStep(found, ours, wanted), step, JSON.stringify([found, ours, wanted]));
});
