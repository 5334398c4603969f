// Calls to an API server over TLS share connections for as long as the credentials stay the same.
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { TLSSocket } from 'node:tls';
import { KubeConfig, type V1Node } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { callApi } from '../../../src/kube/call.ts';
import { type ApiConfig, fromPlainKubeconfig } from '../../../src/kube/config.ts';
import { listAndWatch } from '../../../src/kube/list-watch.ts';
import { temporaryFolder } from '../../support/native/node.ts';
import { answerList, startApiServer } from '../../support/services/api-server.ts';

/** Serves empty lists over HTTPS, and does not answer while `silent`. */
async function startSecureApi(t: ExecutionContext) {
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  const makeAuthority = (name: string) => {
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', at(`${name}.key`)];
    const names = ['-subj', `/CN=${name}`, '-addext', 'subjectAltName=IP:127.0.0.1'];
    execFileSync('openssl', ['req', '-x509', ...key, ...names, '-out', at(`${name}.crt`)], { stdio: 'pipe' });
    return { key: readFileSync(at(`${name}.key`)), cert: readFileSync(at(`${name}.crt`)) };
  };
  const first = makeAuthority('first');
  const second = makeAuthority('second');
  copyFileSync(at('first.crt'), at('ca.crt'));
  const api = { connections: 0, requests: 0, silent: false };
  const sockets = new Set<TLSSocket>();
  const server = createServer(first, (_, response) => {
    api.requests += 1;
    if (!api.silent) answerList(response, []);
  });
  server.on('secureConnection', (socket: TLSSocket) => {
    api.connections += 1;
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const config = new KubeConfig();
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  config.loadFromClusterAndUser({ name: 'c', server: url, caFile: at('ca.crt'), skipTLSVerify: false }, { name: 'u' });
  return {
    config,
    api,
    sockets,
    renew() {
      server.setSecureContext(second);
      copyFileSync(at('second.crt'), at('ca.crt'));
    },
  };
}

const listNodes = (config: ApiConfig, withinMs?: number) =>
  callApi(config, { method: 'GET', path: '/api/v1/nodes', ...(withinMs !== undefined && { withinMs }) });

test('consecutive calls of all clients share one connection', async (t) => {
  const { config, api } = await startSecureApi(t);
  for (let call = 0; call < 100; call += 1) {
    await listNodes(config);
    await listNodes(config, 20_000);
  }
  t.is(api.requests, 200);
  // A call may begin before the connection of the one before is free again.
  t.true(api.connections <= 2, String(api.connections));
});

test('calls without the client library carry its token, over TLS and without', async (t) => {
  const { config, api } = await startSecureApi(t);
  const seen: (string | undefined)[] = [];
  const plain = await startApiServer(t, ({ headers }, response) => {
    seen.push(headers.authorization);
    answerList(response, []);
  });
  for (const { server = '' } of [config.getCurrentCluster() ?? {}, plain.config.getCurrentCluster() ?? {}]) {
    const text = new KubeConfig();
    text.loadFromClusterAndUser({ name: 'c', server, skipTLSVerify: true }, { name: 'u', token: 'secret' });
    const own = fromPlainKubeconfig(text.exportConfig());
    if (!own) return t.fail();
    await listNodes(own);
  }
  t.is(api.requests, 1);
  t.deepEqual(seen, ['Bearer secret']);
});

test('a call without an answer does not pass its connection on to the next call', async (t) => {
  const { config, api } = await startSecureApi(t);
  await listNodes(config);
  api.silent = true;
  await t.throwsAsync(listNodes(config, 1000), { message: /no answer within 1 s/ });
  api.silent = false;
  await listNodes(config);
  t.is(api.connections, 2);
});

test('a new certificate authority opens a new connection and closes the old one', async (t) => {
  const { config, api, sockets, renew } = await startSecureApi(t);
  await listNodes(config);
  const [old] = sockets;
  if (!old || sockets.size > 1) return t.fail();
  const closed = once(old, 'close');
  renew();
  await listNodes(config);
  await listNodes(config);
  await closed;
  t.false(sockets.has(old));
  t.true(api.connections === 2 || api.connections === 3, String(api.connections));
});

// The kernel's own account of the timer: a peer that is gone is noticed though a watch may be silent for a minute.
test('TCP probes a silent watch within 15 s', async (t) => {
  const { config, sockets } = await startSecureApi(t);
  const following = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep: (node: V1Node) => node,
    onList: () => {},
    onChange: () => {},
    onGone: () => {},
    onProblem: t.log,
  });
  t.teardown(() => following.close());
  await following.ready;
  const ports = [...sockets].map(({ remotePort }) => remotePort);
  t.true(ports.length > 0);
  for (const port of ports) {
    const line = execFileSync('ss', ['-tnoH', 'sport', '=', `:${port}`], { encoding: 'utf8' });
    // `14sec`, or `9.872ms` for less than ten seconds.
    t.regex(line, /timer:\(keepalive,(1[0-5]sec|[\d.]+ms),/, line);
  }
});
