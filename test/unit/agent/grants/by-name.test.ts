import test from 'ava';
import { createAdmin } from '../../../../src/agent/admin-api.ts';
import { grantNamed } from '../../../../src/agent/grants/by-name.ts';
import type { Node } from '../../../../src/agent/node-api.ts';
import type { Driver } from '../../../../src/agent/os/driver-handle.ts';
import { startHttpServer } from '../../../../src/serving/http-server.ts';
import { grantOf } from '../node.ts';

const of = (id: string, namespace: string, pod: string, container = 'main') =>
  grantOf(id, 1024, [0], { namespace, pod, container });
const GRANTS = [
  of('aaaaaa', 'local', 'trainer'),
  of('bbbbbb', 'team', 'serve', 'main'),
  of('cccccc', 'team', 'serve', 'side'),
  of('dddddd', 'local', 'both'),
  of('eeeeee', 'team', 'both'),
  of('ffffff', 'local', 'aaaaaa'),
];

test('a grant is found by its id, and by a name that no other grant has', (t) => {
  const cases: [name: string, id: string][] = [
    ['aaaaaa', 'aaaaaa'],
    ['trainer', 'aaaaaa'],
    ['local/trainer', 'aaaaaa'],
    ['cccccc', 'cccccc'],
    ['local/both', 'dddddd'],
    ['team/both', 'eeeeee'],
    ['local/aaaaaa', 'ffffff'],
  ];
  for (const [name, id] of cases) t.deepEqual(grantNamed(GRANTS, name), { ok: true, value: id }, name);
});

test('an unknown name and one of several grants are refused with a code', (t) => {
  t.deepEqual(grantNamed(GRANTS, 'serve'), {
    ok: false,
    error: {
      reason: 'ambiguous-name',
      error: '2 grants are named serve; use one of the ids bbbbbb, cccccc',
      ids: ['bbbbbb', 'cccccc'],
    },
  });
  t.like(grantNamed(GRANTS, 'both'), { ok: false, error: { reason: 'ambiguous-name' } });
  for (const name of ['', 'absent', 'other/trainer', 'main', 'aaaaa'])
    t.like(grantNamed(GRANTS, name), { ok: false, error: { reason: 'unknown-grant', ids: [] } }, name);
});

test('the admin API changes and removes a grant by a name before any sample', async (t) => {
  const released: string[] = [];
  const node: Partial<Node> = {
    snapshot: () => undefined,
    find: (name) => grantNamed(GRANTS, name),
    release: (id) => {
      released.push(id);
      return 'released';
    },
    change: (id) => ({ ok: false, error: { refused: `cannot change ${id}` } }),
    actionsOn: () => [],
    slices: { whereKept: () => undefined } as unknown as Node['slices'],
  };
  const app = createAdmin(node as Node, {} as Driver);
  const { port, close } = await startHttpServer(app, { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(close);
  const ask = async (method: string, path: string, body?: object) => {
    const init = { method, headers: { 'Content-Type': 'application/json' } };
    const answer = await fetch(`http://127.0.0.1:${port}${path}`, {
      ...init,
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    return [answer.status, text === '' ? undefined : JSON.parse(text)] as const;
  };
  const change = { memoryBytes: 2 ** 30 };
  t.deepEqual(await ask('PATCH', '/v1/grants/trainer', change), [409, { error: 'cannot change aaaaaa' }]);
  t.deepEqual(await ask('PATCH', '/v1/grants/team%2Fboth', change), [409, { error: 'cannot change eeeeee' }]);
  for (const [method, body] of [['PATCH', change], ['DELETE']] as const) {
    const [status, answer] = await ask(method, '/v1/grants/serve', body);
    t.deepEqual([status, answer.reason, answer.ids], [409, 'ambiguous-name', ['bbbbbb', 'cccccc']], method);
    const [missing, none] = await ask(method, '/v1/grants/absent', body);
    t.deepEqual([missing, none.reason, none.error], [404, 'unknown-grant', 'no grant absent on this node'], method);
  }
  t.is((await ask('DELETE', '/v1/grants/local%2Ftrainer'))[0], 204);
  t.deepEqual(released, ['aaaaaa']);
  t.deepEqual(await ask('GET', '/v1/actions?of=trainer'), [200, []]);
  t.deepEqual(await ask('GET', '/v1/actions?of=serve'), [200, []]);
  t.is((await ask('GET', '/v1/actions?of=absent'))[0], 404);
});
