// Events as the API server gets them: a repeated one counts up the first, and a busy API server gets its pause.
import test from 'ava';
import type { PodEvent } from '../../../src/kube/event-correlator.ts';
import { createEventWriter } from '../../../src/kube/events.ts';
import { eventually } from '../../support/native/node.ts';
import { answer, refuse, startApiServer } from '../../support/services/api-server.ts';

type Sent = {
  readonly method: string;
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly ms: number;
};

const event = (more: Partial<PodEvent> = {}): PodEvent => ({
  ...{ namespace: 'team', pod: 'one', podUid: 'u1', reason: 'Warned', type: 'Warning', message: 'm', atMs: 0 },
  by: { component: 'agent', instance: 'node-a' },
  ...more,
});

test('a repeated Event counts up the first, or is created again where that is gone', async (t) => {
  const sent: Sent[] = [];
  let gone = false;
  const { config } = await startApiServer(t, async ({ method, url, body }, response) => {
    sent.push({ method, path: url.pathname, body: (await body()) as Sent['body'], ms: performance.now() });
    if (method === 'PATCH' && gone) return refuse(response, 404, 'no such Event');
    return answer(response, 200, {});
  });
  const problems: string[] = [];
  const report = createEventWriter(config, (text) => problems.push(text));
  await Promise.all([report(event()), report(event({ atMs: 1000 }))]);
  gone = true;
  await report(event({ atMs: 2000 }));
  t.deepEqual(problems, []);
  t.deepEqual(
    sent.map(({ method, body }) => [method, body.count]),
    [
      ['POST', 1],
      ['PATCH', 2],
      ['PATCH', 3],
      ['POST', 3],
    ],
  );
  const { name = '' } = (sent[0]?.body.metadata ?? {}) as { name?: string };
  t.regex(name, /^one\.cotenant-[0-9a-f]{12}$/);
  t.is(sent[1]?.path, `/api/v1/namespaces/team/events/${name}`);
  t.is(sent[1]?.body.lastTimestamp, '1970-01-01T00:00:01.000Z');
  t.is(sent[3]?.body.firstTimestamp, '1970-01-01T00:00:00.000Z');
});

test('an Event that a busy API server refuses is tried again after its pause', async (t) => {
  const sent: number[] = [];
  const { config } = await startApiServer(t, (_, response) => {
    sent.push(performance.now());
    response.setHeader('Retry-After', '1');
    return refuse(response, 429, 'too many requests');
  });
  const problems: string[] = [];
  const writer = createEventWriter(config, (text) => problems.push(text), {
    firstMs: 1,
    mostMs: 1,
    tries: 2,
    mostPending: 9,
  });
  await writer(event());
  t.is(sent.length, 2);
  t.true((sent[1] ?? 0) - (sent[0] ?? 0) >= 1000);
  t.deepEqual(problems, ['cannot write the Event for team/one: status 429: too many requests']);
});

// As client-go's recorder, which tries again what got no answer: tools/record/event.go, recordEvent.
test('an Event without an answer is tried again, and is there once', async (t) => {
  const created: string[] = [];
  const FAULTS = ['cut before', 'broken', 'cut after'];
  const { config } = await startApiServer(t, async ({ body }, response) => {
    const { metadata } = (await body()) as { metadata: { name: string } };
    const fault = FAULTS.shift();
    if (fault === 'broken') return refuse(response, 500, 'etcdserver: leader changed');
    if (fault === 'cut before') return response.destroy();
    if (created.includes(metadata.name)) return refuse(response, 409, 'already exists');
    created.push(metadata.name);
    return fault ? response.destroy() : answer(response, 201, {});
  });
  const problems: string[] = [];
  await createEventWriter(config, (text) => problems.push(text), { firstMs: 1, mostMs: 1, tries: 4, mostPending: 9 })(
    event(),
  );
  t.deepEqual(FAULTS, []);
  t.is(created.length, 1);
  t.deepEqual(problems, []);
});

test('an Event that is not allowed is not tried again', async (t) => {
  let asked = 0;
  const { config } = await startApiServer(t, (_, response) => {
    asked += 1;
    return refuse(response, 403);
  });
  const problems: string[] = [];
  await createEventWriter(config, (text) => problems.push(text))(event());
  t.is(asked, 1);
  t.deepEqual(problems, ['cannot write the Event for team/one: status 403: on purpose']);
});

test('of many Events that get no answer only so many wait', async (t) => {
  const asked: string[] = [];
  const { config } = await startApiServer(t, async ({ body }) => {
    asked.push(((await body()) as { involvedObject: { name: string } }).involvedObject.name);
  });
  const problems: string[] = [];
  const retry = { firstMs: 1, mostMs: 1, tries: 2, mostPending: 2 };
  const report = createEventWriter(config, (text) => problems.push(text), retry);
  const waiting = ['one', 'two'].map((pod) => report(event({ pod })));
  await report(event({ pod: 'three' }));
  t.deepEqual(problems, ['cannot write the Event for team/three: 2 others wait for the API server']);
  await Promise.all(waiting);
  t.deepEqual(asked.toSorted(), ['one', 'one', 'two', 'two']);
  void report(event({ pod: 'four' }));
  await eventually(() => asked.includes('four') || undefined, 'the next one is tried');
});
