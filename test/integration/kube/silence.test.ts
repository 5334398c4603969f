// An API server that accepts requests and does not answer, or only in part: calls time out, report it, and are retried.
import type { ServerResponse } from 'node:http';
import type { V1Node } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { listAt } from '../../../src/common/json.ts';
import { describeApiError } from '../../../src/kube/api-error.ts';
import { callApi } from '../../../src/kube/call.ts';
import { createEventWriter } from '../../../src/kube/events.ts';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { holdLease } from '../../../src/scheduler/leadership/leader-election.ts';
import { eventually } from '../../support/native/node.ts';
import { answerList, startApiServer } from '../../support/services/api-server.ts';

const ONE_TRY = { firstMs: 0, mostMs: 0, tries: 1, mostPending: 9 };

type Kind = 'list' | 'watch' | 'other';

async function startApi(t: ExecutionContext) {
  const api = {
    /** Taken, and never answered. */
    silent: new Set<Kind>(),
    /** Of answers only the beginning is sent. */
    half: false,
    halves: 0,
    lists: 0,
    /** How often all was listed before each watch. */
    listsBefore: [] as number[],
    onWatch: (_response: ServerResponse, _number: number): void => {},
  };
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    const kind = isWatch ? 'watch' : url.pathname.endsWith('/nodes') ? 'list' : 'other';
    if (kind === 'list') api.lists += 1;
    if (kind === 'watch') api.listsBefore.push(api.lists);
    if (api.silent.has(kind)) return;
    if (kind === 'watch' || api.half) {
      response.writeHead(200, { 'Content-Type': 'application/json' }).flushHeaders();
      if (kind === 'watch') return api.onWatch(response, api.listsBefore.length);
      api.halves += 1;
      response.write('{');
      return;
    }
    answerList(response, [{ metadata: { name: 'a' } }], '7');
  });
  return Object.assign(api, { config });
}

type Api = Awaited<ReturnType<typeof startApi>>;

function followNodes(t: ExecutionContext, api: Api, times: { answerMs: number; quietMs: number }, pageMs = 30_000) {
  const seen = { problems: [] as string[] };
  const following = listAndWatch(api.config, {
    path: '/api/v1/nodes',
    keep: (node: V1Node) => node,
    onList: () => {},
    onChange: () => {},
    onGone: () => {},
    onProblem: (text) => seen.problems.push(text),
    times: { ...times, pageMs },
  });
  t.teardown(() => following.close());
  return { seen, following };
}

const watched = (api: Api, count: number) =>
  eventually(() => (api.listsBefore.length >= count ? true : undefined), `${count} watches`);

test('a call without an answer, or with half of one, times out and is reported', async (t) => {
  const api = await startApi(t);
  api.silent.add('other');
  const read = (path: string, withinMs: number) => callApi(api.config, { method: 'GET', path, withinMs });
  const error = await t.throwsAsync(read('/apis/coordination.k8s.io/v1/namespaces/ns/leases/l', 100));
  t.is(describeApiError(error), 'no answer within 0.1 s');
  api.half = true;
  // On a busy machine the time of the first may be over before the server has its request.
  while (api.halves === 0) {
    const half = await t.throwsAsync(read('/api/v1/nodes', 100));
    t.is(describeApiError(half), 'no answer within 0.1 s');
  }
  api.half = false;
  t.is(listAt(await read('/api/v1/nodes', 60_000), 'items').length, 1);

  const problems: string[] = [];
  const report = createEventWriter(api.config, (text) => problems.push(text), ONE_TRY);
  const by = { component: 'agent' as const, instance: 'n' };
  await report({ namespace: 'team', pod: 'one', podUid: 'u', reason: 'R', type: 'Normal', message: 'm', atMs: 0, by });
  t.deepEqual(problems, ['cannot write the Event for team/one: no answer within 5 s']);
});

test('a Lease is held although one call gets no answer, which is reported', async (t) => {
  const api = await startApi(t);
  api.silent.add('other');
  const problems: string[] = [];
  const leadership = holdLease(api.config, { namespace: 'ns', name: 'l' }, 'me', (text) => problems.push(text));
  t.teardown(() => leadership.close());
  await eventually(() => problems[0], 'it is reported');
  t.is(problems[0], 'cannot acquire or renew the Lease ns/l: no answer within 3 s');
  api.silent.clear();
  await eventually(() => leadership.state().leads || undefined, 'it leads');
});

test('a watch without an answer is reported, and everything is listed again', async (t) => {
  const api = await startApi(t);
  api.silent.add('watch');
  const { seen, following } = followNodes(t, api, { answerMs: 200, quietMs: 20_000 });
  await following.ready;
  await eventually(() => (api.lists >= 2 ? true : undefined), 'it is listed again');
  t.is(seen.problems[0], 'no answer to the watch within 0.2 s');
  const answered = new Promise<void>((resolve) => {
    api.onWatch = () => resolve();
  });
  api.silent.clear();
  await answered;
  await following.close();
  // A relist does not wait for a watch that waits for its answer.
  api.silent.add('watch');
  const slow = followNodes(t, api, { answerMs: 60_000, quietMs: 60_000 });
  const before = api.listsBefore.length;
  await watched(api, before + 1);
  await slow.following.relist();
  await watched(api, before + 2);
  await slow.following.close();
  t.deepEqual(slow.seen.problems, []);
});

test('a quiet watch is renewed silently, and after four everything is listed once', async (t) => {
  const api = await startApi(t);
  // Any word, a bookmark included, says that the connection lives.
  const bookmark = { type: 'BOOKMARK', object: { metadata: { resourceVersion: '8' } } };
  api.onWatch = (response, number) => void (number === 2 && response.write(`${JSON.stringify(bookmark)}\n`));
  // Longer than what counts as a failure.
  const { seen } = followNodes(t, api, { answerMs: 60_000, quietMs: 1050 });
  await watched(api, 6);
  t.deepEqual(api.listsBefore.slice(0, 6), [1, 1, 1, 1, 1, 2]);
  t.deepEqual(seen.problems, []);
});

test('a list without an answer is reported, retried, and does not delay closing', async (t) => {
  const api = await startApi(t);
  api.silent.add('list');
  const short = followNodes(t, api, { answerMs: 10_000, quietMs: 10_000 }, 100);
  await eventually(() => short.seen.problems[0], 'it is reported');
  t.is(short.seen.problems[0], 'no answer within 0.1 s');
  await eventually(() => (api.lists >= 2 ? true : undefined), 'it is asked again');
  const long = followNodes(t, api, { answerMs: 10_000, quietMs: 10_000 }, 60_000);
  const lists = api.lists;
  await eventually(() => (api.lists > lists ? true : undefined), 'it asks');
  await long.following.close();
  t.deepEqual(long.seen.problems, []);
});
