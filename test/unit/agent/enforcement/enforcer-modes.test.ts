// What the enforcer does in the modes off, report and enforce, per container, and when a mode changes.
import test from 'ava';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import { grantOf } from '../node.ts';
import { setUp } from './enforcing.ts';

const rogue = [{ id: 'one', mib: 500 }];

test('in modes off and report no process is looked up or stopped', (t) => {
  for (const [mode, expected] of [
    ['off', []],
    ['report', ['warn one', 'would-stop one']],
  ] as const) {
    const { act, touched } = setUp(t, { policy: { mode } });
    const done = Array.from({ length: 60 }, (_, second) => act(second, rogue)).flat();
    t.deepEqual(done, [...expected]);
    t.deepEqual(touched, []);
  }
});

for (const [what, seconds] of [
  ['later', 3600],
  ['earlier', -3600],
] as const)
  test(`a clock set an hour ${what} neither hastens nor delays a stop`, (t) => {
    const slowly = [{ id: 'one', mib: 180, known: true }];
    const { act, jump } = setUp(t, { policy: { mostStopsPerMinute: 6 } });
    t.deepEqual(act(0, slowly), ['warn one']);
    jump(seconds);
    for (const second of [1, 2, 3, 4]) t.deepEqual(act(second, slowly), [], String(second));
    t.deepEqual(act(5, slowly), ['close-gate one']);
    jump(seconds);
    for (const second of [6, 7, 8, 9]) t.deepEqual(act(second, slowly), [], String(second));
    t.deepEqual(act(10, slowly), ['terminate one']);
    t.deepEqual(act(20, slowly), ['kill one']);
    jump(seconds);
    // What was stopped before counts for a minute of the steady clock.
    t.deepEqual(act(21, []), ['released one']);
    t.deepEqual(act(22, [{ id: 'two', mib: 500 }]), ['warn two']);
    t.deepEqual(act(23, [{ id: 'two', mib: 500 }]), ['kill two']);
  });

test('each container has its own mode, at most the node’s', (t) => {
  const said = (id: string, mode: 'off' | 'report' | 'enforce') =>
    grantOf(id, 100, [0], { enforcement: { mode, by: 'namespace' } });
  const grants = [said('one', 'off'), said('two', 'report'), said('three', 'enforce'), grantOf('four', 100)];
  const all = ['one', 'two', 'three', 'four'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  const minute = (mode: 'off' | 'report' | 'enforce') => {
    const { act } = setUp(t, { grants, policy: { mode } });
    return [act(0, all), act(1, all)].flat();
  };
  t.deepEqual(minute('enforce'), ['warn two', 'warn three', 'warn four', 'would-stop two', 'kill three', 'kill four']);
  t.deepEqual(
    minute('report'),
    ['warn', 'would-stop'].flatMap((action) => ['two', 'three', 'four'].map((id) => `${action} ${id}`)),
  );
  t.deepEqual(minute('off'), [], 'a node that is switched off stops no container, whatever a pod asks');
});

test('another mode resets all counts and opens a closed gate', (t) => {
  const grant = grantOf('one', 100);
  const books = [grant];
  const { act, live } = setUp(t, { grants: books });
  const soft = [{ id: 'one', mib: 180, known: true }];
  const say = (mode: 'off' | 'report' | 'enforce' | undefined) => {
    (live('one') as { grant: Grant }).grant = { ...grant, enforcement: mode && { mode, by: 'administrator' } };
  };
  t.deepEqual(act(0, soft), ['warn one']);
  t.deepEqual(act(5, soft), ['close-gate one']);
  t.true(live('one')?.gateClosed);
  say('off');
  t.deepEqual(act(6, soft), ['open-gate one']);
  t.false(live('one')?.gateClosed);
  for (let second = 7; second < 40; second++) t.deepEqual(act(second, soft), []);
  say('report');
  t.deepEqual(act(40, soft), ['warn one']);
  say(undefined);
  t.deepEqual(act(60, soft), ['warn one'], 'what it did while nothing would have come of it is no evidence');
  t.deepEqual([act(61, soft), act(62, soft), act(65, soft)].flat(), ['close-gate one']);
});
