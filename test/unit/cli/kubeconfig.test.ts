// Kubeconfigs as kubectl takes them: several files, incomplete ones, credentials by a program, proxies of the environment.
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { delimiter, join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { connect } from '../../../src/cli/cluster/api-client.ts';
import { proxyFor } from '../../../src/cli/cluster/proxy.ts';
import { temporaryFolder } from '../../support/native/node.ts';

type Entry = { readonly name: string } & Readonly<Record<string, unknown>>;
type Config = {
  readonly clusters?: readonly Entry[];
  readonly users?: readonly Entry[];
  readonly contexts?: readonly Entry[];
  readonly 'current-context'?: string;
};

const cluster = (server: string, name = 'c'): Entry => ({ name, cluster: { server } });
const CONTEXT: Entry = { name: 'x', context: { cluster: 'c', user: 'u' } };

/** Writes kubeconfigs into a folder of its own, and gives their paths. */
function written(t: ExecutionContext, ...configs: readonly (Config | string)[]): readonly string[] {
  const folder = temporaryFolder(t);
  return configs.map((config, index) => {
    const file = join(folder, `config-${index}`);
    const head = { apiVersion: 'v1', kind: 'Config' };
    writeFileSync(file, typeof config === 'string' ? config : JSON.stringify({ ...head, ...config }));
    return file;
  });
}

async function server(t: ExecutionContext, onRequest: (request: IncomingMessage) => void = () => {}): Promise<string> {
  const listening = createServer((request, response) => {
    onRequest(request);
    response.end('{}');
  });
  t.teardown(() => listening.close());
  await new Promise<void>((resolve) => {
    listening.listen(0, '127.0.0.1', resolve);
  });
  return `http://127.0.0.1:${(listening.address() as AddressInfo).port}`;
}

/** With KUBECONFIG set. */
async function connectBy(files: readonly string[]): ReturnType<typeof connect> {
  const before = process.env.KUBECONFIG;
  process.env.KUBECONFIG = files.join(delimiter);
  try {
    return await connect(undefined, undefined);
  } finally {
    if (before === undefined) delete process.env.KUBECONFIG;
    else process.env.KUBECONFIG = before;
  }
}

test.serial('of several files the first to name an entry wins, and missing ones are skipped', async (t) => {
  const url = await server(t);
  const [first = '', second = '', empty = ''] = written(
    t,
    { clusters: [cluster(url)], 'current-context': 'x' },
    { clusters: [cluster('http://127.0.0.1:1')], contexts: [CONTEXT], 'current-context': 'y', users: [] },
    '',
  );
  const connected = await connectBy([`${first}-missing`, empty, first, second]);
  t.is(connected.server, url);
  t.deepEqual(await connected.get('/'), { ok: true, value: {} });
  const missing = [`${first}-missing`, `${second}-missing`];
  await t.throwsAsync(connectBy(missing), { message: /-missing: there is no such file; name a kubeconfig/ });
});

test.serial('an incomplete entry keeps no other one from being used', async (t) => {
  const url = await server(t);
  const stray = [{ name: 'none' }, { name: 'half', context: {} }];
  const [file = ''] = written(t, {
    clusters: [cluster(url), { name: 'none' }],
    contexts: [...stray, CONTEXT],
    'current-context': 'x',
  });
  t.is((await connectBy([file])).server, url);
});

test('a kubeconfig may come through a pipe', (t) => {
  const [file = ''] = written(t, {
    clusters: [cluster('https://127.0.0.1:1')],
    contexts: [CONTEXT],
    'current-context': 'x',
  });
  const program = join(import.meta.dirname, '../../../src/cli/main.ts');
  const script = '"$0" "$1" inspect --kubeconfig <(cat "$2")';
  const { stderr } = spawnSync('bash', ['-c', script, process.execPath, program, file], { encoding: 'utf8' });
  t.regex(stderr, /^cotenant: no API server answers at https:\/\/127\.0\.0\.1:1 \(ECONNREFUSED\)/);
});

test('a server of plain HTTP is asked without credentials', async (t) => {
  const sent: (string | undefined)[] = [];
  const url = await server(t, ({ headers }) => sent.push(headers.authorization));
  const [file] = written(t, {
    clusters: [cluster(url)],
    users: [{ name: 'u', user: { token: 'secret' } }],
    contexts: [CONTEXT],
    'current-context': 'x',
  });
  const connected = await connect(file, undefined);
  t.deepEqual(await connected.get('/'), { ok: true, value: {} });
  t.deepEqual(sent, [undefined]);
});

const shell = (script: string) => ({ exec: { command: 'sh', args: ['-c', script] } });
for (const [what, user, message] of [
  [
    'that is not there',
    { exec: { command: 'no-such-plugin' } },
    /no-such-plugin: there is no such program; install it/,
  ],
  ['that fails', shell('printf "\\nlog in first\\nagain\\n" >&2; exit 3'), /sh: log in first$/],
  ['that fails silently', shell('exit 3'), /sh: it failed and said nothing$/],
  ['that answers text', shell('echo hello'), /sh: its answer is no ExecCredential$/],
  ['that answers another object', shell('echo {}'), /sh: its answer is no ExecCredential$/],
  [
    'of an older kind',
    { 'auth-provider': { name: 'gcp' } },
    /auth-provider gcp has no token; configure an exec plugin$/,
  ],
] as const)
  test(`a credential plugin ${what} is named with the reason`, async (t) => {
    const [file] = written(t, {
      clusters: [cluster('https://127.0.0.1:1')],
      users: [{ name: 'u', user }],
      contexts: [CONTEXT],
      'current-context': 'x',
    });
    await t.throwsAsync(connect(file, undefined), { message });
  });

test('a credential plugin finds in its environment what it is asked for', async (t) => {
  const [file = ''] = written(t, {
    clusters: [cluster('https://127.0.0.1:1')],
    users: [
      {
        name: 'u',
        user: {
          exec: {
            apiVersion: 'client.authentication.k8s.io/v1beta1',
            command: 'sh',
            args: ['-c', 'echo "$GREETING $KUBERNETES_EXEC_INFO" >&2; exit 1'],
            env: [{ name: 'GREETING', value: 'hello' }],
          },
        },
      },
    ],
    contexts: [CONTEXT],
    'current-context': 'x',
  });
  const { message } = await t.throwsAsync(connect(file, undefined));
  const [, request = ''] = /: sh: hello (\{.*\})$/.exec(message) ?? [];
  t.deepEqual(JSON.parse(request), {
    apiVersion: 'client.authentication.k8s.io/v1beta1',
    kind: 'ExecCredential',
    spec: { interactive: false },
  });
});

// As golang.org/x/net/http/httpproxy documents it.
for (const [address, env, proxy] of [
  ['https://api.example.com', {}, undefined],
  ['https://api.example.com', { HTTPS_PROXY: 'http://proxy:3128' }, 'http://proxy:3128'],
  ['https://api.example.com', { https_proxy: 'proxy:3128' }, 'http://proxy:3128'],
  ['https://api.example.com', { HTTP_PROXY: 'http://proxy' }, undefined],
  ['http://api.example.com', { http_proxy: 'socks5://proxy' }, 'socks5://proxy'],
  ['https://localhost:6443', { HTTPS_PROXY: 'http://proxy' }, undefined],
  ['https://127.0.0.1:6443', { HTTPS_PROXY: 'http://proxy' }, undefined],
  ['https://[::1]:6443', { HTTPS_PROXY: 'http://proxy' }, undefined],
] as const)
  test(`to ${address} by ${JSON.stringify(env)}`, (t) => t.is(proxyFor(address, env), proxy));

for (const [entry, direct, proxied] of [
  ['*', ['https://a.b', 'https://10.1.2.3'], []],
  ['example.com', ['https://example.com', 'https://api.Example.com:6443'], ['https://notexample.com']],
  ['.example.com', ['https://api.example.com'], ['https://example.com']],
  ['*.example.com', ['https://api.example.com'], ['https://example.com']],
  ['a.b, example.com:6443', ['https://example.com:6443'], ['https://example.com']],
  ['10.0.0.0/8', ['https://10.1.2.3:6443'], ['https://11.1.2.3', 'https://10.example.com']],
  ['10.1.2.3', ['https://10.1.2.3'], ['https://10.1.2.33', 'https://10.1.2.3.example.com']],
  ['fd00::/8', ['https://[fd00::1]:6443'], ['https://[fe80::1]', 'https://10.1.2.3']],
  ['10.0.0.0/99,,', [], ['https://10.1.2.3']],
] as const)
  test(`NO_PROXY ${entry}`, (t) => {
    const env = { HTTPS_PROXY: 'http://proxy', NO_PROXY: entry };
    for (const address of direct) t.is(proxyFor(address, env), undefined, address);
    for (const address of proxied) t.is(proxyFor(address, env), 'http://proxy', address);
  });

test('requests pass through the proxy that the environment names', async (t) => {
  const passed: string[] = [];
  const proxy = createServer().on('connect', ({ url = '' }, socket) => {
    passed.push(url);
    socket.end('HTTP/1.1 403 Forbidden\r\n\r\n');
  });
  t.teardown(() => proxy.close());
  await new Promise<void>((resolve) => {
    proxy.listen(0, '127.0.0.1', resolve);
  });
  const before = process.env.HTTPS_PROXY;
  process.env.HTTPS_PROXY = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  t.teardown(() => {
    if (before === undefined) delete process.env.HTTPS_PROXY;
    else process.env.HTTPS_PROXY = before;
  });
  const [file] = written(t, {
    clusters: [cluster('https://api.example.com')],
    users: [{ name: 'u', user: { token: 'secret' } }],
    contexts: [CONTEXT],
    'current-context': 'x',
  });
  const connected = await connect(file, undefined);
  await t.throwsAsync(connected.get('/'), { message: /^no API server answers at https:\/\/api\.example\.com/ });
  t.deepEqual(passed, ['api.example.com:443']);
});
