// When the enforcer stops a container, and what it does while the stopped one ends. That the right processes are
// signaled is tested with a real agent; how many containers are stopped, and which first, in stop-rate.test.ts.
import test from 'ava';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';
import { type Holding, peopledNode, setUp, there } from './enforcing.ts';

const rogue = [{ id: 'one', mib: 500 }];

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
    act(0, rogue);
    t.deepEqual(act(1, rogue), ['kill one']);
    t.deepEqual(signaled, Array(signals).fill('stand-in 9'));
  }
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

test('a process that had ended before its signal is not a failed stop', (t) => {
  const { native } = peopledNode(['gone']);
  const { act, audit } = setUp(t, { grants: [there('one')], people: native });
  act(0, rogue);
  t.deepEqual(act(1, rogue), ['kill one']);
  t.is(audit.recent().at(-1)?.result, 'none-left');
});

test('a stop from before a restart counts for the cool-down and the rate', (t) => {
  const people = { grants: ['one', 'two'].map((id) => there(id)), people: peopledNode().native };
  const first = setUp(t, { policy: { mostStopsPerMinute: 1 }, ...people });
  first.act(0, rogue);
  t.deepEqual(first.act(1, rogue), ['kill one']);
  const audit = openAudit(first.folder, loggerTo({ push: (text) => t.fail(text) }));
  const second = setUp(t, { policy: { mostStopsPerMinute: 1 }, audit, second: 2, ...people });
  const soft = [{ id: 'one', mib: 180, known: true }];
  const done = Array.from({ length: 29 }, (_, index) => second.act(2 + index, soft)).flat();
  t.deepEqual(done, ['released one', 'warn one'], 'left alone in its cool-down');
  t.deepEqual(second.act(31, soft), ['refuse one'], 'SIGTERM would be due, but one container a minute is the rate');
  t.deepEqual(second.act(32, [{ id: 'two', mib: 500 }]), ['warn two']);
  t.deepEqual(second.act(33, [{ id: 'two', mib: 500 }]), ['refuse two']);
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
  act(0, rogue);
  t.deepEqual(act(1, rogue), ['kill one']);
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
