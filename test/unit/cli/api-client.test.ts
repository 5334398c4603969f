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
