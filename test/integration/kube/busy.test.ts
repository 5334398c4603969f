// What a busy API server refused is asked for again after the pause that it asks for.
import test from 'ava';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { buildBinding, createBindingWriter } from '../../../src/scheduler/allocations/binding-writer.ts';
import { holdLease } from '../../../src/scheduler/leadership/leader-election.ts';
import { eventually } from '../../support/native/node.ts';
import { loggerTo } from '../../support/product/logger.ts';
import { answer, answerList, refuse, startApiServer } from '../../support/services/api-server.ts';

test('a Lease that a busy API server refuses is asked for again after its pause', async (t) => {
  const asked: number[] = [];
  const { config } = await startApiServer(t, (_, response) => {
    asked.push(performance.now());
    return refuse(response.setHeader('Retry-After', '4'), 429, 'too many requests');
  });
  const problems: string[] = [];
  const leadership = holdLease(config, { namespace: 'ns', name: 'l' }, 'me', (text) => problems.push(text));
  await eventually(() => asked.length > 1 || undefined, 'it is asked for again');
  await leadership.close();
  t.true((asked[1] ?? 0) - (asked[0] ?? 0) >= 4000);
  t.is(problems[0], 'cannot acquire or renew the Lease ns/l: status 429: too many requests');
  t.false(leadership.state().leads);
});

test('a leader tries again before its Lease is lost, whatever pause is asked for', async (t) => {
  let lease: object | undefined;
  let refusals = 0;
  const { config } = await startApiServer(t, async ({ method, body }, response) => {
    if (method === 'GET' && lease === undefined) return refuse(response, 404);
    if (method === 'GET' && refusals < 1) {
      refusals += 1;
      return refuse(response.setHeader('Retry-After', '60'), 429, 'too many requests');
    }
    if (method !== 'GET') lease = (await body()) as object;
    return answer(response, 200, lease ?? {});
  });
  const leadership = holdLease(config, { namespace: 'ns', name: 'l' }, 'me', () => undefined);
  const written = new Set<object | undefined>();
  await eventually(() => {
    written.add(lease);
    // It leads from the first write on, without a gap.
    if (refusals > 0) t.true(leadership.state().leads);
    return (refusals > 0 && written.size > 2) || undefined;
  }, 'it is renewed');
  await leadership.close();
});

test('whether a pod was bound is asked of a busy API server after its pause', async (t) => {
  const request = { podName: 'p', podNamespace: 'team', podUid: 'uid', node: 'a' };
  const body = buildBinding(request, 0, []);
  const asked: number[] = [];
  const { config } = await startApiServer(t, ({ method }, response) => {
    // Carried out, without an answer.
    if (method === 'POST') return response.destroy();
    if (asked.push(performance.now()) === 1) return refuse(response.setHeader('Retry-After', '3'), 429);
    const { annotations } = body.metadata ?? {};
    return answer(response, 200, { metadata: { uid: 'uid', annotations }, spec: { nodeName: 'a' } });
  });
  const closed = new AbortController();
  t.teardown(() => closed.abort());
  const logger = loggerTo([]);
  const writer = createBindingWriter({ config, landsMs: 60_000, closed: closed.signal, logger });
  t.deepEqual(await writer.write(request, body), { kind: 'written' });
  t.true((asked[1] ?? 0) - (asked[0] ?? 0) >= 3000);
});

test('a watch that breaks after it was served is begun anew at once', async (t) => {
  const begun: number[] = [];
  let brokenMs = Number.NaN;
  const REFUSED = 9;
  const { config } = await startApiServer(t, ({ isWatch }, response) => {
    if (!isWatch) return answerList(response, []);
    if (begun.push(performance.now()) <= REFUSED) return refuse(response, 503);
    response.writeHead(200, { 'Content-Type': 'application/json' }).flushHeaders();
    if (begun.length > REFUSED + 1) return;
    setTimeout(() => {
      brokenMs = performance.now();
      response.destroy();
    }, 1200);
  });
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep: (node: object) => node,
    onList: () => {},
    onChange: () => {},
    onGone: () => {},
    onProblem: () => {},
    // After nine failures in a row the next pause is 2.5 s at least; after one it is 10 ms.
    pauseMs: { firstMs: 10, mostMs: 60_000 },
  });
  t.teardown(() => following.close());
  const again = await eventually(() => begun[REFUSED + 1], 'it is begun anew');
  t.true(again - brokenMs < 2500, `${again - brokenMs} ms`);
});
