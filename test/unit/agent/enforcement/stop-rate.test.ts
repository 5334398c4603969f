// How many containers are stopped within a minute, and who comes first where not all can be.
import test from 'ava';
import { type Holding, MISSING_PROCESS, peopledNode, setUp, there } from './enforcing.ts';

test('no more containers than the rate are stopped within a minute; the others wait', (t) => {
  const grants = ['one', 'two', 'three'].map((id) => there(id));
  const { act, audit } = setUp(t, { policy: { mostStopsPerMinute: 2 }, grants, people: peopledNode().native });
  const all = ['one', 'two', 'three'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  act(0, all);
  t.deepEqual(act(1, all), ['kill one', 'kill two', 'refuse three']);
  t.is(audit.recent().at(-1)?.detail, '2 containers were stopped within a minute');
  const left = all.slice(2);
  for (let second = 2; second < 61; second++)
    t.deepEqual(
      act(second, left).filter((what) => what.startsWith('kill')),
      [],
      `${second} s`,
    );
  t.deepEqual(act(61, left), ['kill three']);
});

test('a stop that reaches no process does not count for the rate', (t) => {
  const grants = [there('gone', { owner: MISSING_PROCESS }), there('other', { owner: MISSING_PROCESS }), there('held')];
  const { act } = setUp(t, {
    policy: { mostStopsPerMinute: 1 },
    grants,
    people: peopledNode(['refused: no', 'sent']).native,
  });
  const all = ['gone', 'other', 'held'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  act(0, all);
  t.deepEqual(act(1, all), ['kill gone', 'kill other', 'kill held'], 'the last one is refused by the kernel');
  act(2, []);
  act(3, all);
  t.deepEqual(act(4, all), ['kill gone', 'kill other', 'kill held']);
  act(5, []);
  act(6, all);
  t.deepEqual(act(7, all), ['refuse gone', 'refuse other', 'refuse held'], 'the one that was reached has used it up');
});

test('repeatedly stopped decoys protect neither their own nor another namespace', (t) => {
  const grants = [
    ...['decoy-1', 'decoy-2'].map((id) => there(id, { namespace: 'team' })),
    there('rogue', { namespace: 'team' }),
    there('stranger', { namespace: 'elsewhere' }),
  ];
  const { act, audit } = setUp(t, { grants, people: peopledNode().native });
  const decoys = ['decoy-1', 'decoy-2'].map((id) => ({ id, mib: 5000 }));
  const quiet = [
    { id: 'rogue', mib: 300 },
    { id: 'stranger', mib: 200 },
  ];
  // They hold too much for two samples, are stopped, are started anew.
  const done = (from: number, to: number, others: readonly Holding[]) => {
    const kills: string[] = [];
    for (let second = from; second < to; second += 3) {
      for (const [index, holdings] of [decoys, decoys, []].entries())
        kills.push(...act(second + index, [...holdings, ...others]).filter((what) => what.startsWith('kill')));
    }
    return kills;
  };
  t.deepEqual(done(0, 20, []), ['kill decoy-1', 'kill decoy-2', 'kill decoy-1', 'kill decoy-2']);
  t.regex(
    audit.recent().at(-1)?.detail ?? '',
    /^4 containers were stopped .* reserved for containers that were not stopped yet$/,
  );
  t.deepEqual(done(21, 24, quiet), ['kill rogue', 'kill stranger']);
});

test('one namespace leaves stops for others, however many containers it has', (t) => {
  const many = Array.from({ length: 8 }, (_, index) => there(`many-${index}`, { namespace: 'team' }));
  const grants = [...many, there('stranger', { namespace: 'elsewhere' })];
  const { act, audit } = setUp(t, { grants, people: peopledNode().native });
  const all = grants.map(({ id }, index) => ({ id, mib: 1000 - index * 100 }));
  act(0, all);
  const done = act(1, all);
  t.deepEqual(
    done.filter((what) => what.startsWith('kill')),
    [...many.slice(0, 5).map(({ id }) => `kill ${id}`), 'kill stranger'],
  );
  t.is(
    audit.recent().find(({ action }) => action === 'refuse')?.detail,
    '5 containers of this namespace were stopped within a minute',
  );
});

test("the container that waits longest is stopped first, whatever the others' excess", (t) => {
  const grants = ['later', 'first', 'waiting'].map((id) => there(id));
  const { act } = setUp(t, { policy: { mostStopsPerMinute: 1 }, grants, people: peopledNode().native });
  const both = [
    { id: 'first', mib: 900 },
    { id: 'waiting', mib: 500 },
  ];
  act(0, both);
  t.deepEqual(act(1, both), ['kill first', 'refuse waiting']);
  const late = [
    { id: 'waiting', mib: 500 },
    { id: 'later', mib: 5000 },
  ];
  act(59, late);
  t.deepEqual(
    act(60.9, late).filter((what) => what.startsWith('kill')),
    [],
  );
  t.deepEqual(
    act(61.1, late).filter((what) => what.startsWith('kill')),
    ['kill waiting'],
  );
});
