import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { KubeConfig } from '@kubernetes/client-node';
import test from 'ava';
import { type ApiConfig, fromPlainKubeconfig, inCluster, loadApiConfig } from '../../../src/kube/config.ts';
import { temporaryFolder } from '../../support/native/node.ts';

const SERVER = 'https://10.0.0.1:6443';

async function credentialsOf(config: ApiConfig) {
  const headers: Record<string, string> = {};
  const made: unknown[] = [];
  const calling = Object.create(config, {
    createDispatcher: { value: (...args: unknown[]) => void made.push(args[1]) },
  }) as ApiConfig;
  const setHeaderParam = (name: string, value: string) => {
    headers[name] = value;
  };
  await calling.applySecurityAuthentication({ setHeaderParam, setDispatcher: () => {} });
  return { authorization: headers.Authorization, tls: made[0] };
}

test('a pod uses the files of its service account as they are at each call', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'ca.crt'), 'first authority');
  writeFileSync(join(folder, 'token'), 'first\n');
  const config = inCluster({ KUBERNETES_SERVICE_HOST: 'fd00::1', KUBERNETES_SERVICE_PORT: '443' }, folder);
  t.is(config.getCurrentCluster()?.server, 'https://[fd00::1]:443');
  t.deepEqual(await credentialsOf(config), {
    authorization: 'Bearer first',
    tls: { ca: Buffer.from('first authority') },
  });
  writeFileSync(join(folder, 'token'), 'second');
  writeFileSync(join(folder, 'ca.crt'), 'second authority');
  t.deepEqual(await credentialsOf(config), {
    authorization: 'Bearer second',
    tls: { ca: Buffer.from('second authority') },
  });
  t.throws(() => inCluster({}, folder), { message: /KUBERNETES_SERVICE_HOST/ });
});

/** As the client library writes it. */
function exported(cluster: object, user: object): string {
  const config = new KubeConfig();
  config.loadFromClusterAndUser({ name: 'c', server: SERVER, ...cluster } as never, { name: 'u', ...user } as never);
  return config.exportConfig();
}

test('a kubeconfig with an address and a token needs no client library', async (t) => {
  const config = fromPlainKubeconfig(exported({ skipTLSVerify: true }, { token: 'secret' }));
  if (!config) return t.fail();
  t.is(config.getCurrentCluster()?.server, SERVER);
  t.deepEqual(await credentialsOf(config), { authorization: 'Bearer secret', tls: { rejectUnauthorized: false } });
  const verified = fromPlainKubeconfig(exported({ skipTLSVerify: false }, {}));
  t.deepEqual(verified && (await credentialsOf(verified)), { authorization: undefined, tls: {} });
});

test('KUBECONFIG may name several files', async (t) => {
  const folder = temporaryFolder(t);
  const files = ['one', 'two'].map((name) => join(folder, name));
  const [first = '', second = ''] = files;
  writeFileSync(first, exported({ skipTLSVerify: true }, { token: 'secret' }));
  writeFileSync(second, JSON.stringify({ clusters: [], users: [], contexts: [] }));
  process.env.KUBECONFIG = files.join(':');
  t.teardown(() => delete process.env.KUBECONFIG);
  t.is((await loadApiConfig()).getCurrentCluster()?.server, SERVER);
});

// Credentials that were passed over would make calls anonymous, and a name that is not compared would trust any server.
test('a kubeconfig with anything else is left to the client library', (t) => {
  for (const [cluster, user] of [
    [{}, { certData: 'eA==', keyData: 'eA==' }],
    [{}, { exec: { command: 'login', apiVersion: 'client.authentication.k8s.io/v1', interactiveMode: 'Never' } }],
    [{}, { username: 'a', password: 'b' }],
    [{}, { authProvider: { name: 'tokenFile', config: { tokenFile: '/token' } } }],
    [{}, { impersonateUser: 'b' }],
    [{ caData: 'eA==' }, {}],
    [{ server: 'http://10.0.0.1:8080' }, {}],
    [{ tlsServerName: 'other' }, {}],
    [{ proxyUrl: 'http://proxy:3128' }, {}],
  ] as const)
    t.is(fromPlainKubeconfig(exported(cluster, user)), undefined, JSON.stringify([cluster, user]));
  t.is(fromPlainKubeconfig('apiVersion: v1\nkind: Config\n'), undefined);
  t.is(fromPlainKubeconfig('{"clusters":[]}'), undefined);
});
