// A long list arrives in pages, of which only what the caller needs stays in memory.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { CoreV1Api, type V1Node } from '@kubernetes/client-node';
import test from 'ava';
import { createApiClient } from '../../../src/kube/client.ts';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { eventually } from '../../support/native/node.ts';
import { answer, startApiServer, watchers } from '../../support/services/api-server.ts';

const PAGES = 4;
const nodeOf = (name: string, value: string) => ({
  metadata: { name, resourceVersion: '8', annotations: { keep: value, drop: 'x'.repeat(1000) } },
});

test('the objects of a page are freed before the next page but one is requested', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const open = watchers();
  const { config } = await startApiServer(t, ({ url, isWatch }, response) => {
    if (isWatch) return open.add(response);
    const page = Number(url.searchParams.get('continue') ?? 0);
    const metadata = { resourceVersion: '7', ...(page + 1 < PAGES && { continue: String(page + 1) }) };
    const items = [nodeOf(`a${page}`, 'one'), nodeOf(`b${page}`, 'two')];
    answer(response, 200, { kind: 'NodeList', apiVersion: 'v1', metadata, items });
  });
  const client = createApiClient(config, CoreV1Api);
  const listed: WeakRef<V1Node>[] = [];
  /** At the time of each request of a page: how many objects were kept so far, and how many are still in memory. */
  const asked: [kept: number, inMemory: number][] = [];
  const seen = { kept: 0, lists: [] as (readonly string[])[], changed: [] as string[], gone: [] as string[] };
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    async list(limit, from) {
      collect();
      asked.push([seen.kept, listed.filter((node) => node.deref() !== undefined).length]);
      const page = await client.listNode({ limit, ...(from !== undefined && { _continue: from }) });
      for (const node of page.items) listed.push(new WeakRef(node));
      return page;
    },
    keep({ metadata }: V1Node) {
      seen.kept += 1;
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
    asked.every(([, inMemory]) => inMemory <= 2),
    JSON.stringify(asked),
  );
  await eventually(() => open.open.size > 0 || undefined, 'a watch');
  open.send('MODIFIED', nodeOf('a0', 'three'));
  open.send('DELETED', nodeOf('b3', 'two'));
  await eventually(() => seen.gone.length > 0 || undefined, 'the changes');
  t.deepEqual([seen.changed, seen.gone], [['a0 three'], ['b3 two']]);
});
