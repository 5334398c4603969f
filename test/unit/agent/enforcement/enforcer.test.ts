// When the enforcer refuses to act: old data, figures that do not add up, another mode. Whom a stop hits, with real
// processes, is tested with a real agent; how many are stopped, and who first, in stop-rate.test.ts.
import test from 'ava';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';
import { type Holding, peopledNode, setUp, there } from './enforcing.ts';

const cheat = [{ id: 'one', mib: 500 }];

test('two fresh samples over the grant stop it, the worst first', (t) => {
  const { act, audit, touched } = setUp(t);
  const both = [
    { id: 'one', mib: 500 },
    { id: 'two', mib: 900 },
  ];
  t.deepEqual(act(0, both), ['warn two', 'warn one']);
  t.deepEqual(touched, []);
  t.deepEqual(act(1, both), ['kill two', 'kill one']);
  t.true(touched.every((name) => name === 'readProcess') && touched.length > 0);
  t.deepEqual(
    audit
      .recent()
      .map(({ action, result }) => `${action} ${result}`)
      .slice(2),
    ['kill none-left', 'kill none-left'],
  );
});

test('on a full GPU one container after the other is stopped until memory is free', (t) => {
  const grants = ['one', 'two', 'three'].map((id) => grantOf(id, 1000));
  const less = { id: 'one', mib: 1100, known: true };
  const more = { id: 'two', mib: 1200, known: true };
  const begin = () => {
    const { act } = setUp(t, { grants, policy: { softSeconds: 600 } });
    const at = (second: number, freeMib: number, ...holdings: Holding[]) =>
      act(second, holdings, 0, undefined, { freeBytes: freeMib * MIB });
    t.deepEqual(at(0, 10, less, more), ['warn two', 'warn one']);
    t.deepEqual(at(1, 10, less, more), ['kill two'], 'who is over by most');
    t.deepEqual(at(2, 10, less, more), [], 'it ends');
    return at;
  };
  const enough = begin();
  t.deepEqual(enough(3, 1210, less), ['released two']);
  for (const second of [4, 5, 6, 7]) t.deepEqual(enough(second, 1210, less), [], 'the GPU has free memory');
  const taken = begin();
  t.deepEqual(taken(3, 10, less), ['released two']);
  t.deepEqual(taken(4, 10, less), ['kill one'], 'another container took it');
  const never = begin();
  for (const second of [3, 4, 5]) t.deepEqual(never(second, 10, less, more), []);
  t.deepEqual(never(6, 10, less, more), ['kill one'], 'what does not come is not waited for');
});

test('stale data leads to no stop, and does not count as a fresh sample', (t) => {
  const { act, touched } = setUp(t);
  t.deepEqual(act(0, cheat, 3001), [], 'not even a warning');
  t.deepEqual(act(1, cheat), ['warn one'], 'the first fresh one');
  t.deepEqual(act(2, cheat, 60_000), ['refuse one']);
  t.deepEqual(act(3, cheat, -3001), [], 'a sample of the future is as bad; refusals are written down now and then');
  t.deepEqual(touched, [], 'no process was looked up');
  t.deepEqual(act(4, cheat, 3000), [], 'another one is waited for');
  t.deepEqual(act(5, cheat), ['kill one'], 'the second fresh one');
});

test('a stop that is due on an older sample waits for a newer one, which decides', (t) => {
  const back = setUp(t);
  t.deepEqual(back.act(0, cheat), ['warn one']);
  t.deepEqual(back.act(2, cheat, 1500), [], 'it came late');
  t.deepEqual(back.act(2.1, cheat, 1300), [], 'as did the next');
  t.deepEqual(back.act(2.2, [], 10), [], 'all was given back');
  t.deepEqual(back.touched, [], 'no process was looked up');
  t.deepEqual(back.act(3, cheat), [], 'it begins anew, and was warned of a moment ago');
  const slow = setUp(t);
  t.deepEqual(slow.act(0, cheat, 900), ['warn one']);
  t.deepEqual(slow.act(1, cheat, 900), []);
  t.deepEqual(slow.act(1.8, cheat, 900), [], 'of before it was due');
  t.deepEqual(slow.act(1.95, cheat, 900), ['kill one'], 'a driver that is slow every time spares no container');
  const now = setUp(t);
  t.deepEqual(now.act(0, cheat), ['warn one']);
  t.deepEqual(now.act(1, cheat, 250), ['kill one']);
});

test('stale data does not cancel what fresh data began', (t) => {
  const { act } = setUp(t);
  t.deepEqual(act(0, cheat), ['warn one']);
  t.deepEqual(act(1, [], 5000), []);
  t.deepEqual(act(2, cheat), ['kill one']);
});

test('missing data is not a release: it neither calms nor counts as released', (t) => {
  const unlisted = { processLists: ['graphics'] };
  const { act } = setUp(t, { policy: { releaseSeconds: 3 } });
  t.deepEqual(act(0, cheat), ['warn one']);
  t.deepEqual(act(1, [], 0, 500, unlisted), []);
  t.deepEqual(act(2, cheat), ['kill one'], 'the second fresh one');
  t.deepEqual(act(3, [], 0, 500, unlisted), []);
  t.deepEqual(act(4, [], 0, 500, { healthy: false }), []);
  t.deepEqual(act(5, cheat), ['stuck one'], 'it was there all the time');
  const other = setUp(t);
  t.deepEqual(other.act(0, cheat), ['warn one']);
  t.deepEqual(other.act(1, cheat), ['kill one']);
  t.deepEqual(other.act(2, []), ['released one']);
});

test('on a GPU with a failed process list no release is assumed', (t) => {
  for (const failed of ['graphics', 'mps']) {
    const some = {
      processLists: ['compute', 'graphics', 'mps'].filter((list) => list !== failed),
      failedProcessLists: [failed],
    };
    const { act } = setUp(t, { policy: { releaseSeconds: 3 } });
    t.deepEqual(act(0, cheat), ['warn one']);
    t.deepEqual(act(1, [], 0, 500, some), []);
    t.deepEqual(act(2, cheat), ['kill one'], 'the second fresh one');
    t.deepEqual(act(3, [], 0, 500, some), []);
    t.deepEqual(act(4, [], 0, 500, some), []);
    t.deepEqual(act(5, cheat), ['stuck one'], 'it was there all the time');
  }
  const never = { processLists: ['compute', 'graphics'] };
  const { act } = setUp(t);
  t.deepEqual(act(0, cheat), ['warn one']);
  t.deepEqual(act(1, cheat), ['kill one']);
  t.deepEqual(act(2, [], 0, 0, never), ['released one'], 'no process is in a list that the driver lacks');
});

test('a refusal is recorded at most every ten seconds, with its reason', (t) => {
  const { act, audit } = setUp(t);
  act(0, cheat);
  const said = Array.from({ length: 25 }, (_, index) => act(1 + index, cheat, 9000)).flat();
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

test('a signaled process gets no second signal while it ends; one that had moved does', (t) => {
  const cases: [answers: string[], signals: number][] = [
    [['sent'], 1],
    [['refused: no'], 1],
    [['moved', 'moved', 'sent'], 3],
    [Array(20).fill('moved'), 10],
  ];
  for (const [answers, signals] of cases) {
    const { native, signaled } = peopledNode(answers);
    const { act } = setUp(t, { grants: [there('one')], people: native });
    act(0, cheat);
    t.deepEqual(act(1, cheat), ['kill one']);
    t.deepEqual(signaled, Array(signals).fill('stand-in 9'));
  }
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

test('the rate bounds SIGTERM and SIGKILL; both to one container are one stop', (t) => {
  const ids = Array.from({ length: 9 }, (_, index) => `g${index}`);
  const { act } = setUp(t, {
    grants: ids.map((id, index) => there(id, { namespace: `team-${index}` })),
    people: peopledNode().native,
  });
  // Soft: above 1.02 times and 64 MiB, below 1.25 times and 64.
  const soft = ids.map((id) => ({ id, mib: 180, known: true }));
  const said = Array.from({ length: 40 }, (_, second) =>
    act(second, soft).map((what) => [second, what] as const),
  ).flat();
  const of = (action: string, until: number) =>
    said.filter(([second, what]) => what.startsWith(action) && second <= until).length;
  t.is(of('terminate', 19), 6, 'six of a minute');
  t.true(of('refuse', 19) >= 3);
  t.is(of('kill', 25), 6, 'and the same six when their grace is over');
});

test('a process that starts before the stopped one released memory is judged at once', (t) => {
  const { act } = setUp(t, { grants: [there('one'), there('two')], people: peopledNode().native });
  const first = [{ id: 'one', mib: 500 }];
  // Another process, in its container, and yet another with the first one's PID.
  const second = [
    { id: 'two', mib: 1, known: true },
    { id: 'one', mib: 500 },
  ];
  const said = [...act(0, first), ...act(1, first)];
  t.deepEqual(said, ['warn one', 'kill one']);
  t.deepEqual(
    [2, 3, 4].map((at) => act(at, second)),
    [['released one'], ['warn one'], ['kill one']],
  );
});

test('a new process is stopped while the stopped one still holds its memory', (t) => {
  const { act } = setUp(t, { grants: [there('one')], people: peopledNode().native });
  const hit = { id: 'one', mib: 500 };
  const newcomer = { id: 'one', mib: 300 };
  t.deepEqual([...act(0, [hit]), ...act(1, [hit])], ['warn one', 'kill one']);
  // What was hit holds its memory still, and is waited for without another signal.
  t.deepEqual(
    [2, 3].flatMap((at) => act(at, [hit])),
    [],
  );
  t.deepEqual(act(4, [hit, newcomer]), ['warn one']);
  t.deepEqual(act(5, [hit, newcomer]), ['kill one']);
  t.deepEqual(
    [6, 7].flatMap((at) => act(at, [hit, newcomer])),
    [],
    'both are waited for now',
  );
  t.deepEqual(act(8, []), ['released one']);
});

test('a new process within the grant is left alone while the stopped one ends', (t) => {
  const { act } = setUp(t, { grants: [there('one')], people: peopledNode().native });
  const hit = { id: 'one', mib: 500 };
  const honest = { id: 'one', mib: 90, known: true };
  t.deepEqual([...act(0, [hit]), ...act(1, [hit])], ['warn one', 'kill one']);
  t.deepEqual(
    [2, 3, 4, 5, 6].flatMap((at) => act(at, [hit, honest])),
    [],
  );
});

test('a soft excess after a stop leads to warning, gate and SIGTERM', (t) => {
  const policy = { coolDownSeconds: 0, releaseSeconds: 30, softSeconds: 4, softSamples: 2, graceSeconds: 4 };
  const { act } = setUp(t, { grants: [there('one'), there('two')], people: peopledNode().native, policy });
  const hit = { id: 'one', mib: 500 };
  const another = { id: 'two', mib: 1, known: true };
  const soft = { id: 'one', mib: 180, known: true };
  t.deepEqual([...act(0, [hit]), ...act(1, [hit])], ['warn one', 'kill one']);
  t.deepEqual(
    Array.from({ length: 20 }, (_, index) => act(2 + index, [hit, soft])).flat(),
    ['warn one'],
    'while what was hit goes',
  );
  const after = Array.from({ length: 11 }, (_, index) => act(22 + index, [another, soft])).flat();
  t.deepEqual(after, ['released one', 'warn one', 'close-gate one', 'terminate one', 'kill one']);
});

test('alternating over and within the grant is stopped like staying over', (t) => {
  const { act } = setUp(t, { grants: [there('one')], people: peopledNode().native });
  const over = [{ id: 'one', mib: 2000 }];
  const within = [{ id: 'one', mib: 50 }];
  t.deepEqual(
    [0, 1, 2, 3, 4].flatMap((at) => act(at, at % 2 === 0 ? over : within)),
    ['warn one', 'kill one'],
  );
});

test('alternating slightly over and within the grant does not fill the audit log', (t) => {
  const { act, audit } = setUp(t);
  const turns = Array.from({ length: 240 }, (_, at) =>
    act(at / 4, [{ id: 'one', mib: at % 2 === 0 ? 180 : 50, known: true }]),
  );
  t.deepEqual(turns.flat(), Array(6).fill('warn one'), 'in a minute');
  t.is(audit.recent().length, 6);
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

test('a process that had ended before its signal is not a failed stop', (t) => {
  const { native } = peopledNode(['gone']);
  const { act, audit } = setUp(t, { grants: [there('one')], people: native });
  act(0, cheat);
  t.deepEqual(act(1, cheat), ['kill one']);
  t.is(audit.recent().at(-1)?.result, 'none-left');
});

test('a stop from before a restart counts for the cool-down and the rate', (t) => {
  const people = { grants: ['one', 'two'].map((id) => there(id)), people: peopledNode().native };
  const first = setUp(t, { policy: { mostStopsPerMinute: 1 }, ...people });
  first.act(0, cheat);
  t.deepEqual(first.act(1, cheat), ['kill one']);
  const audit = openAudit(first.folder, loggerTo({ push: (text) => t.fail(text) }));
  const second = setUp(t, { policy: { mostStopsPerMinute: 1 }, audit, second: 2, ...people });
  const soft = [{ id: 'one', mib: 180, known: true }];
  const done = Array.from({ length: 29 }, (_, index) => second.act(2 + index, soft)).flat();
  t.deepEqual(done, ['released one', 'warn one'], 'left alone in its cool-down');
  t.deepEqual(second.act(31, soft), ['refuse one'], 'SIGTERM would be due, but one container a minute is the rate');
  t.deepEqual(second.act(32, [{ id: 'two', mib: 500 }]), ['warn two']);
  t.deepEqual(second.act(33, [{ id: 'two', mib: 500 }]), ['refuse two']);
});

test('in modes off and report no process is looked up or stopped', (t) => {
  for (const [mode, expected] of [
    ['off', []],
    ['report', ['warn one', 'would-stop one']],
  ] as const) {
    const { act, touched } = setUp(t, { policy: { mode } });
    const done = Array.from({ length: 60 }, (_, second) => act(second, cheat)).flat();
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

test('a failure for one container is reported and spares neither it nor the others', (t) => {
  const { native } = peopledNode();
  let isBroken = true;
  const broken: typeof native = {
    ...native,
    readProcess(pid) {
      if (isBroken) throw new Error('no descriptor left');
      return native.readProcess(pid);
    },
  };
  const { act, problems } = setUp(t, { grants: [there('one'), there('two')], people: broken });
  const both = [
    { id: 'one', mib: 500 },
    { id: 'two', mib: 400 },
  ];
  act(0, both);
  t.deepEqual(act(1, both), []);
  t.is(problems.length, 2);
  t.regex(problems[0] ?? '', /^cannot enforce the grant of local\/pod-one: Error: no descriptor left/);
  isBroken = false;
  t.deepEqual(act(2, both), ['kill one', 'kill two'], 'with the next sample');
});

test('a process that cannot be signaled is recorded as refused', (t) => {
  const { native } = peopledNode();
  const people: typeof native = {
    ...native,
    signalExact() {
      throw new Error('no descriptor left');
    },
  };
  const { act, audit } = setUp(t, { grants: [there('one')], people });
  act(0, cheat);
  t.deepEqual(act(1, cheat), ['kill one']);
  t.is(audit.recent().at(-1)?.result, 'refused');
  t.is(audit.recent().at(-1)?.processes[0]?.result, 'refused: no descriptor left');
});

test('processes that replace those with a SIGTERM are judged once more, not repeatedly', (t) => {
  const { act } = setUp(t, { grants: [there('one'), there('two')], people: peopledNode().native });
  // Over softly all the time, by another process each time that there was a SIGTERM.
  let turn = 0;
  const said: string[] = [];
  for (let second = 0; second < 60; second++) {
    const before = Array.from({ length: turn }, () => ({ id: 'two', mib: 0, known: true }));
    const done = act(second, [...before, { id: 'one', mib: 180, known: true }]);
    said.push(...done.map((what) => `${second} ${what}`));
    if (done.includes('terminate one')) turn += 1;
  }
  const steps = said.filter((what) => /(terminate|kill) one/.test(what));
  t.deepEqual(steps.slice(0, 3), ['10 terminate one', '21 terminate one', '31 kill one'], said.join(', '));
});
