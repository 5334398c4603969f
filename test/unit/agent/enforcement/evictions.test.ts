// Which stops count for an eviction, how often the API server is asked, and what is reported of it.
import { setImmediate as settled } from 'node:timers/promises';
import test from 'ava';
import type { ActionRecord } from '../../../../src/agent/enforcement/action-record.ts';
import { createEvictions } from '../../../../src/agent/enforcement/evictions.ts';

const START = 1_760_000_000_000;

function setUp(earlier: readonly ActionRecord[] = []) {
  let second = 0;
  let refusal: string | undefined;
  const asked: string[] = [];
  const actions: ActionRecord[] = [];
  const begun: ActionRecord[] = [];
  const evictions = createEvictions({
    policy: { evictAfterStops: 2, evictWindowSeconds: 60 },
    async evict({ namespace, name, uid }) {
      asked.push(`${namespace}/${name} ${uid}`);
      if (refusal !== undefined) throw new Error(refusal);
    },
    clocks: { now: () => START + second * 1000, steady: () => second * 1000 },
    earlier,
    report: (record) => (record.result === 'asked' ? begun : actions).push(record),
  });
  return {
    asked,
    actions,
    begun,
    refuse: (why?: string) => {
      refusal = why;
    },
    async see(at: number, ...records: readonly ActionRecord[]) {
      second = at;
      evictions.see(records);
      await settled();
      return asked.splice(0);
    },
  };
}

const record = (action: ActionRecord['action'], result = 'sent', more: Partial<ActionRecord> = {}): ActionRecord =>
  ({
    atMs: START,
    action,
    grantId: 'one',
    namespace: 'team',
    pod: 'rogue',
    container: 'main',
    podUid: 'uid-1',
    reason: 'bypass',
    result,
    processes: [],
    message: '',
    ...more,
  }) as unknown as ActionRecord;
const kill = (more: Partial<ActionRecord> = {}) => record('kill', 'sent', more);

test('an eviction is requested once, at the second stop in the window, by name and UID', async (t) => {
  const { see, actions } = setUp();
  t.deepEqual(await see(0, kill()), []);
  t.deepEqual(await see(61, kill()), [], 'the first is past');
  t.deepEqual(await see(62, kill({ podUid: 'uid-2' })), [], 'another pod');
  t.deepEqual(await see(63, kill({ container: 'other' })), ['team/rogue uid-1'], 'any container of it');
  t.deepEqual(await see(64, kill()), [], 'it is on its way out');
  t.is(actions.length, 1);
  t.like(actions[0], { action: 'evict', result: 'sent', podUid: 'uid-1', atMs: START + 63_000 });
  t.is(actions[0]?.message, 'the agent stopped containers of team/rogue 2 times within 1 min; the pod is evicted');
});

test('only stops of pods count', async (t) => {
  const { see } = setUp();
  const others = [
    record('terminate'),
    record('warn', 'done'),
    record('kill', 'none-left'),
    record('kill', 'refused'),
    kill({ podUid: '' }),
    kill({ podUid: '' }),
  ];
  t.deepEqual(await see(0, ...others, kill()), []);
  t.deepEqual(await see(1, record('kill', 'interrupted')), ['team/rogue uid-1']);
});

test('a refused eviction is recorded, and the next stop requests it again', async (t) => {
  const { see, actions, refuse } = setUp();
  refuse('status 429: it would violate the budget');
  t.is((await see(0, kill(), kill())).length, 1);
  t.like(actions[0], {
    result: 'refused',
    refusal: 'eviction',
    detail: 'status 429: it would violate the budget',
  });
  t.regex(actions[0]?.message ?? '', /the API server refused its eviction$/);
  t.deepEqual(await see(5), [], 'not by itself');
  refuse();
  t.deepEqual(await see(10, kill()), ['team/rogue uid-1']);
  t.is(actions[1]?.result, 'sent');
});

test('stops from before a restart count until their window ends', async (t) => {
  t.is((await setUp([kill({ atMs: START - 50_000 })]).see(0, kill())).length, 1);
  t.is((await setUp([kill({ atMs: START - 60_000 })]).see(0, kill())).length, 0);
  t.is((await setUp([kill({ atMs: START + 3_600_000 })]).see(0, kill())).length, 0, 'a clock that is behind');
});

test('an interrupted stop of an earlier agent counts once', async (t) => {
  const interrupted = record('kill', 'interrupted');
  const { see } = setUp([interrupted]);
  t.deepEqual(await see(1, interrupted), []);
  t.deepEqual(await see(2, kill({ atMs: START + 2000 })), ['team/rogue uid-1']);
});

test('the request is recorded first; the next agent repeats one without an answer', async (t) => {
  const first = setUp();
  await first.see(0, kill());
  const asking = first.see(1, kill());
  t.is(first.begun.length, 1);
  t.regex(
    first.begun[0]?.message ?? '',
    /stopped containers of team\/rogue 2 times within 1 min; the agent requests its eviction$/,
  );
  t.is(first.actions.length, 0, 'no answer yet');
  t.deepEqual(await asking, ['team/rogue uid-1']);
  const [question] = first.begun as [ActionRecord];
  const [answer] = first.actions as [ActionRecord];

  const next = setUp([kill(), kill(), question]);
  t.deepEqual(await next.see(5), ['team/rogue uid-1'], 'with its first sample');
  t.like(next.actions[0], { action: 'evict', result: 'sent', podUid: 'uid-1', atMs: START + 5000 });
  t.deepEqual(await next.see(6, kill()), [], 'once');
  const answered = setUp([kill(), kill(), question, answer]);
  t.deepEqual(await answered.see(5), [], 'it was answered');
  t.deepEqual(await answered.see(6, kill()), [], 'it is on its way out');
  const refused = { ...answer, result: 'refused', refusal: 'eviction', detail: 'status 429' } as const;
  t.deepEqual(await setUp([kill(), question, refused]).see(5), [], 'that, too, is an answer');
});
