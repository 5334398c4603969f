// The API server from the CLI's side, against a server of HTTP that answers as one would.
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import test from 'ava';
import { connect } from '../../../src/cli/cluster/api-client.ts';
import { temporaryFolder } from '../../support/native/node.ts';

test('a text of others is read up to 8 MiB and refused beyond', async (t) => {
  const MIB = 2 ** 20;
  const server = createServer((request, response) => {
    response.end('x'.repeat(Number(request.url?.slice(1))));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const kubeconfig = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'c',
    clusters: [{ name: 'c', cluster: { server: url, 'insecure-skip-tls-verify': true } }],
    users: [{ name: 'u', user: {} }],
    contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
  };
  const file = join(temporaryFolder(t), 'config');
  writeFileSync(file, JSON.stringify(kubeconfig));
  const cluster = await connect(file, undefined);
  const read = await cluster.text(`/${8 * MIB}`);
  t.is(read.ok && read.value.length, 8 * MIB);
  t.deepEqual(await cluster.text(`/${8 * MIB + 1}`), {
    ok: false,
    status: 0,
    message: 'its answer is longer than 8 MiB',
  });
});

test('options of kubectl choose the cluster, the user to act as and the time to wait', async (t) => {
  const asked: (readonly [string | undefined, string | string[] | undefined, string | undefined])[] = [];
  const server = createServer((request, response) => {
    const { authorization } = request.headers;
    asked.push([authorization, request.headers['impersonate-group'], request.headersDistinct['impersonate-user']?.[0]]);
    if (request.url !== '/late') response.end('{}');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const kubeconfig = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'c',
    clusters: [
      { name: 'gone', cluster: { server: 'http://127.0.0.1:1' } },
      { name: 'here', cluster: { server: url, 'insecure-skip-tls-verify': true } },
    ],
    users: [{ name: 'u', user: { token: 'secret' } }],
    contexts: [{ name: 'c', context: { cluster: 'gone', user: 'u', namespace: 'team' } }],
  };
  const file = join(temporaryFolder(t), 'config');
  writeFileSync(file, JSON.stringify(kubeconfig));
  const as = { user: 'ann', groups: ['dev', 'ops'] };
  const cluster = await connect(file, undefined, { cluster: 'here', as, timeoutMs: 0 });
  t.is(cluster.namespace, 'team');
  t.deepEqual(await cluster.get('/soon'), { ok: true, value: {} });
  t.deepEqual(asked, [['Bearer secret', 'dev, ops', 'ann']]);
  const hasty = await connect(file, undefined, { cluster: 'here', timeoutMs: 200 });
  await t.throwsAsync(hasty.get('/late'), { message: /^no API server answers at \S+ \(no answer within 0.2 s\)/ });
  await t.throwsAsync(connect(file, undefined, { cluster: 'other' }), {
    message: /: no cluster other; there are gone, here$/,
  });
});
