// A long list arrives in pages, of which only what the caller needs stays in memory; a list that is cut is read again.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { V1Node } from '@kubernetes/client-node';
import test from 'ava';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { eventually } from '../../support/native/node.ts';
import { answer, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';

const PAGES = 4;
const nodeOf = (name: string, value: string) => ({
  metadata: { name, resourceVersion: '8', annotations: { keep: value, drop: 'x'.repeat(1000) } },
});

test('a list is taken in as it arrives, and what was kept of an object is freed', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const kept: WeakRef<object>[] = [];
  const taken: string[] = [];
  /** At the time of each request of a page. */
  const asked: [taken: number, inMemory: number][] = [];
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    if (isWatch) return response.writeHead(200).flushHeaders();
    collect();
    asked.push([taken.length, kept.filter((one) => one.deref() !== undefined).length]);
    const page = Number(url.searchParams.get('continue') ?? 0);
    const metadata = { resourceVersion: '7', ...(page + 1 < PAGES && { continue: String(page + 1) }) };
    answer(response, 200, { metadata, items: [nodeOf(`a${page}`, 'one'), nodeOf(`b${page}`, 'two')] });
  });
  const { promise: listed, resolve } = Promise.withResolvers<readonly string[]>();
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep({ metadata }: V1Node) {
      const node = { name: metadata?.name ?? '' };
      kept.push(new WeakRef(node));
      return node;
    },
    onListed({ name }) {
      taken.push(name);
      return name;
    },
    onList: resolve,
    onChange: () => t.fail(),
    onGone: () => t.fail(),
    onProblem: (text) => t.fail(text),
  });
  t.teardown(() => following.close());
  t.deepEqual(await listed, taken);
  t.is(taken.length, 2 * PAGES);
  t.deepEqual(
    asked.map(([count]) => count),
    [0, 2, 4, 6],
  );
  t.true(
    asked.every(([, inMemory]) => inMemory <= 1),
    JSON.stringify(asked),
  );
});

test('the objects of a page are freed before the next page is requested', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const open = watchers();
  const listed: WeakRef<V1Node>[] = [];
  /** At the time of each request of a page: how many objects were kept so far, and how many are still in memory. */
  const asked: [kept: number, inMemory: number][] = [];
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    if (isWatch) return open.add(response);
    collect();
    asked.push([seen.kept, listed.filter((node) => node.deref() !== undefined).length]);
    const page = Number(url.searchParams.get('continue') ?? 0);
    const metadata = { resourceVersion: '7', ...(page + 1 < PAGES && { continue: String(page + 1) }) };
    const items = [nodeOf(`a${page}`, 'one'), nodeOf(`b${page}`, 'two')];
    answer(response, 200, { kind: 'NodeList', apiVersion: 'v1', metadata, items });
  });
  const seen = { kept: 0, lists: [] as (readonly string[])[], changed: [] as string[], gone: [] as string[] };
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep(node: V1Node) {
      const { metadata } = node;
      seen.kept += 1;
      listed.push(new WeakRef(node));
      return `${metadata?.name} ${metadata?.annotations?.keep}`;
    },
    onList: (items) => seen.lists.push(items),
    onChange: (item) => seen.changed.push(item),
    onGone: (item) => seen.gone.push(item),
    onProblem: (text) => t.fail(text),
  });
  t.teardown(() => following.close());
  await following.ready;
  t.deepEqual(seen.lists, [['a0 one', 'b0 two', 'a1 one', 'b1 two', 'a2 one', 'b2 two', 'a3 one', 'b3 two']]);
  t.deepEqual(
    asked.map(([kept]) => kept),
    [0, 2, 4, 6],
  );
  t.true(
    asked.every(([, inMemory]) => inMemory <= 1),
    JSON.stringify(asked),
  );
  await eventually(() => open.open.size > 0 || undefined, 'a watch');
  open.send('MODIFIED', nodeOf('a0', 'three'));
  open.send('DELETED', nodeOf('b3', 'two'));
  await eventually(() => seen.gone.length > 0 || undefined, 'the changes');
  t.deepEqual([seen.changed, seen.gone], [['a0 three'], ['b3 two']]);
});

test('a list that is cut, or whose next page has expired, is read again', async (t) => {
  const open = watchers();
  const asked: string[] = [];
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    if (isWatch) return open.add(response);
    const from = url.searchParams.get('continue') ?? '';
    asked.push(from);
    if (from === '')
      return answer(response, 200, {
        metadata: { resourceVersion: '7', continue: 'second' },
        items: [nodeOf('a', 'one')],
      });
    const tries = asked.filter((page) => page === 'second').length;
    if (tries === 1) return refuse(response, 410, 'the continue token has expired');
    const text = JSON.stringify({
      metadata: { resourceVersion: '7' },
      items: [nodeOf('b', 'two'), { metadata: { name: 'c' } }],
    });
    if (tries > 3) return response.end(text);
    response.writeHead(200).write(text.slice(0, -100), () => (tries === 2 ? response.destroy() : response.end()));
  });
  const lists: (readonly string[])[] = [];
  const problems: string[] = [];
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep: ({ metadata }: V1Node) => metadata?.name ?? '',
    mentions: '"keep"',
    onList: (items) => lists.push(items),
    onChange: () => {},
    onGone: () => {},
    onProblem: (text) => problems.push(text),
    pauseMs: { firstMs: 1, mostMs: 1 },
  });
  t.teardown(() => following.close());
  await following.ready;
  t.deepEqual(lists, [['a', 'b']]);
  t.deepEqual(asked, ['', 'second', '', 'second', '', 'second', '', 'second']);
  t.is(problems[0], 'status 410: the continue token has expired');
  t.is(problems[2], 'the list ended too early');
  t.is(problems.length, 3);
});

test('a list and a watch are tried again no sooner than the API server asks for', async (t) => {
  const open = watchers();
  const atMs: number[] = [];
  const { config } = await startApiServer(t, ({ isWatch }, response) => {
    if (!isWatch) return answer(response, 200, { metadata: { resourceVersion: '7' }, items: [] });
    atMs.push(performance.now());
    if (atMs.length > 1) return open.add(response);
    response.setHeader('Retry-After', '1');
    refuse(response, 429, 'too many requests');
  });
  const problems: string[] = [];
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep: (node: V1Node) => node,
    onList: () => {},
    onChange: () => {},
    onGone: () => {},
    onProblem: (text) => problems.push(text),
    pauseMs: { firstMs: 1, mostMs: 1 },
  });
  t.teardown(() => following.close());
  const [first = 0, second = 0] = await eventually(() => (atMs.length > 1 ? atMs : undefined), 'a second watch');
  t.true(second - first >= 1000, `${second - first} ms`);
  t.deepEqual(problems, ['status 429: too many requests']);
});
