// When the enforcer refuses to act or waits for a newer sample: old or missing data, and figures that do not add up.
import test from 'ava';
import { grantOf } from '../node.ts';
import { peopledNode, setUp, there } from './enforcing.ts';

const rogue = [{ id: 'one', mib: 500 }];

test('stale data leads to no stop, and does not count as a fresh sample', (t) => {
  const { act, touched } = setUp(t);
  t.deepEqual(act(0, rogue, 3001), [], 'not even a warning');
  t.deepEqual(act(1, rogue), ['warn one'], 'the first fresh one');
  t.deepEqual(act(2, rogue, 60_000), ['refuse one']);
  t.deepEqual(act(3, rogue, -3001), [], 'a sample of the future is as bad; refusals are written down now and then');
  t.deepEqual(touched, [], 'no process was looked up');
  t.deepEqual(act(4, rogue, 3000), [], 'another one is waited for');
  t.deepEqual(act(5, rogue), ['kill one'], 'the second fresh one');
});

test('a stop that is due on an older sample waits for a newer one, which decides', (t) => {
  const back = setUp(t);
  t.deepEqual(back.act(0, rogue), ['warn one']);
  t.deepEqual(back.act(2, rogue, 1500), [], 'it came late');
  t.deepEqual(back.act(2.1, rogue, 1300), [], 'as did the next');
  t.deepEqual(back.act(2.2, [], 10), [], 'all was given back');
  t.deepEqual(back.touched, [], 'no process was looked up');
  t.deepEqual(back.act(3, rogue), [], 'it begins anew, and was warned of a moment ago');
  const slow = setUp(t);
  t.deepEqual(slow.act(0, rogue, 900), ['warn one']);
  t.deepEqual(slow.act(1, rogue, 900), []);
  t.deepEqual(slow.act(1.8, rogue, 900), [], 'of before it was due');
  t.deepEqual(slow.act(1.95, rogue, 900), ['kill one'], 'a driver that is slow every time spares no container');
  const now = setUp(t);
  t.deepEqual(now.act(0, rogue), ['warn one']);
  t.deepEqual(now.act(1, rogue, 250), ['kill one']);
});

test('stale data does not cancel what fresh data began', (t) => {
  const { act } = setUp(t);
  t.deepEqual(act(0, rogue), ['warn one']);
  t.deepEqual(act(1, [], 5000), []);
  t.deepEqual(act(2, rogue), ['kill one']);
});

test('missing data is not a release: it neither calms nor counts as released', (t) => {
  const unlisted = { processLists: ['graphics'] };
  const { act } = setUp(t, { policy: { releaseSeconds: 3 } });
  t.deepEqual(act(0, rogue), ['warn one']);
  t.deepEqual(act(1, [], 0, 500, unlisted), []);
  t.deepEqual(act(2, rogue), ['kill one'], 'the second fresh one');
  t.deepEqual(act(3, [], 0, 500, unlisted), []);
  t.deepEqual(act(4, [], 0, 500, { healthy: false }), []);
  t.deepEqual(act(5, rogue), ['stuck one'], 'it was there all the time');
  const other = setUp(t);
  t.deepEqual(other.act(0, rogue), ['warn one']);
  t.deepEqual(other.act(1, rogue), ['kill one']);
  t.deepEqual(other.act(2, []), ['released one']);
});

test('on a GPU with a failed process list no release is assumed', (t) => {
  for (const failed of ['graphics', 'mps']) {
    const some = {
      processLists: ['compute', 'graphics', 'mps'].filter((list) => list !== failed),
      failedProcessLists: [failed],
    };
    const { act } = setUp(t, { policy: { releaseSeconds: 3 } });
    t.deepEqual(act(0, rogue), ['warn one']);
    t.deepEqual(act(1, [], 0, 500, some), []);
    t.deepEqual(act(2, rogue), ['kill one'], 'the second fresh one');
    t.deepEqual(act(3, [], 0, 500, some), []);
    t.deepEqual(act(4, [], 0, 500, some), []);
    t.deepEqual(act(5, rogue), ['stuck one'], 'it was there all the time');
  }
  const never = { processLists: ['compute', 'graphics'] };
  const { act } = setUp(t);
  t.deepEqual(act(0, rogue), ['warn one']);
  t.deepEqual(act(1, rogue), ['kill one']);
  t.deepEqual(act(2, [], 0, 0, never), ['released one'], 'no process is in a list that the driver lacks');
});

test('a refusal is recorded at most every ten seconds, with its reason', (t) => {
  const { act, audit } = setUp(t);
  act(0, rogue);
  const said = Array.from({ length: 25 }, (_, index) => act(1 + index, rogue, 9000)).flat();
  t.deepEqual(said, ['refuse one', 'refuse one', 'refuse one']);
  t.deepEqual(
    audit
      .recent()
      .slice(1)
      .map(({ result, refusal, detail }) => [result, refusal, detail]),
    Array(3).fill(['refused', 'stale', 'the data is 9000 ms old']),
  );
  t.regex(audit.recent().at(-1)?.message ?? '', /the agent does not stop it now$/);
});

test('processes that hold more than the GPU has in use are inconsistent data: no stop', (t) => {
  const { act, audit, touched } = setUp(t);
  const all = [
    { id: 'one', mib: 2000 },
    { id: 'two', mib: 50 },
  ];
  act(0, all);
  t.deepEqual(act(1, all, 0, 1800), ['refuse one']);
  t.is(audit.recent().at(-1)?.refusal, 'inconsistent');
  t.regex(
    audit.recent().at(-1)?.detail ?? '',
    /^the driver reports \d+ bytes for processes on a GPU that has \d+ bytes in use$/,
  );
  t.deepEqual(touched, []);
  // 5 % and 64 MiB are what readings a moment apart may differ by.
  t.deepEqual(act(2, all, 0, 1892), ['kill one']);
});

test('double-counted memory of others protects no container, and its own stops none', (t) => {
  const tell = (
    seconds: readonly number[],
    holdings: Parameters<ReturnType<typeof setUp>['act']>[1],
    usedMib: number,
  ) => {
    const { act } = setUp(t, { grants: ['one', 'two', 'three'].map((id) => there(id)), people: peopledNode().native });
    return seconds.flatMap((second) => act(second, holdings, 0, usedMib).map((said) => `${second} ${said}`));
  };
  const many = [0, 1, 2, 3, 4, 5, 6];
  // A block of 60 MiB in both processes of another one, who is within its grant and looks as if it were not.
  const shield = [
    { id: 'two', mib: 60 },
    { id: 'two', mib: 60 },
  ];
  const far = tell(many, [{ id: 'one', mib: 1000 }, ...shield], 1060);
  t.deepEqual(far.slice(0, 3), ['0 warn one', '0 warn two', '1 kill one']);
  // Over by less than may be counted twice: its one process can have nothing twice, but an answer can be wrong.
  const little = tell(many, [{ id: 'one', mib: 150 }, ...shield], 210);
  t.deepEqual(
    little.filter((said) => said.endsWith(' one')),
    ['0 warn one', '1 refuse one', '4 kill one'],
  );
  for (const said of [far, little]) t.false(said.some((what) => what.endsWith('kill two')));
  // 90 MiB, 60 of them in both of its processes.
  const shared = [
    { id: 'three', mib: 75, known: true },
    { id: 'three', mib: 75, known: true },
  ];
  t.deepEqual(
    tell(many, shared, 90).filter((said) => said.includes('kill')),
    [],
  );
});

test('shared memory leads to no stop beside unlisted managed memory of others', (t) => {
  const grants = [there('one'), grantOf('two', 4096)];
  const { act, audit } = setUp(t, { grants, people: peopledNode().native });
  const sharing = Array.from({ length: 3 }, () => ({ id: 'one', mib: 96, known: true }));
  const neighbor = { id: 'two', mib: 10, known: true, managedMib: 4000 };
  const done = [0, 1, 2, 3].flatMap((at) => act(at, [...sharing, neighbor], 0, 96 + 10 + 4000));
  t.deepEqual(done, ['warn one', 'refuse one']);
  t.is(audit.recent().at(-1)?.refusal, 'inconsistent');
  // Its own claim changes nothing.
  const liar = setUp(t, { grants, people: peopledNode().native });
  const lying = Array.from({ length: 3 }, () => ({ id: 'one', mib: 96, managedMib: 4000 }));
  t.deepEqual(
    [0, 1].flatMap((at) => liar.act(at, lying, 0, 288)),
    ['warn one', 'kill one'],
  );
});
