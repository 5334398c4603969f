// Who may read the data of the status page: clients with a token that was made for it, whatever else is open.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { createLocalSource } from '../../../src/agent/snapshot/source.ts';
import { STATUS_AUDIENCE, STATUS_PATHS, STATUS_TOKEN_HEADER } from '../../../src/api/names.ts';
import { createExporter } from '../../../src/exporter/routes.ts';
import { guardsOf } from '../../../src/exporter/start.ts';
import type { ApiConfig } from '../../../src/kube/config.ts';
import { createTokenReviewer, type ReviewCall } from '../../../src/kube/token-review.ts';
import { startHttpServer } from '../../../src/serving/http-server.ts';
import { exampleSnapshot } from '../../support/product/snapshots.ts';

const PAGE = { certFile: '', keyFile: '', bearerTokenFile: '', socket: '', socketUser: 0 };

async function served(t: ExecutionContext, settings: { tokenReview: boolean; statusTokens: boolean }) {
  const asked: string[] = [];
  const review: ReviewCall = async (token, path) => {
    asked.push(`${token} ${path}`);
    return token === 'good' ? 'allowed' : token === 'known' ? 'forbidden' : 'unauthenticated';
  };
  const guards = await guardsOf({ page: { ...PAGE, ...settings } }, review, { warn: t.log });
  const history = () => ({ everyMs: 1, untilMs: 0, gpus: {}, containers: {} }) as never;
  const source = createLocalSource({ snapshot: () => exampleSnapshot, history, own: async () => '' });
  const app = createExporter({ ...source, scrape: async () => 'nothing' }, guards);
  const { port, close } = await startHttpServer(app, { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(() => close());
  const get = async (path: string, headers: Record<string, string> = {}) =>
    (await fetch(`http://127.0.0.1:${port}${path}`, { headers })).status;
  return { get, asked };
}

test('the data of the status page needs a token, the metrics do not', async (t) => {
  const { get, asked } = await served(t, { tokenReview: false, statusTokens: true });
  for (const path of ['/metrics', '/', '/livez', '/readyz']) t.is(await get(path), 200, path);
  t.deepEqual(asked, []);
  for (const path of STATUS_PATHS) {
    t.is(await get(path), 401, path);
    t.is(await get(path, { authorization: 'Bearer stranger' }), 401, path);
    t.is(await get(path, { [STATUS_TOKEN_HEADER]: 'known' }), 403, path);
    t.is(await get(path, { [STATUS_TOKEN_HEADER]: 'good' }), 200, path);
    t.is(await get(path, { authorization: 'Bearer good' }), 200, path);
    t.is(await get(path, { [STATUS_TOKEN_HEADER]: 'two words' }), 401, path);
    // Other spellings are other paths, and no way around the guard.
    for (const other of [path.toUpperCase(), `${path}/`, `/${path}`, path.replace('s', '%73'), `${path}%2f`])
      t.true([401, 404].includes(await get(other)), other);
  }
  t.false(
    asked.some((one) => / (?!\/(status|history)\.json$)/.test(one)),
    asked.join(),
  );
});

test('with tokenReview the metrics need a token as well', async (t) => {
  const { get } = await served(t, { tokenReview: true, statusTokens: false });
  for (const path of ['/metrics', '/', '/nowhere', ...STATUS_PATHS]) t.is(await get(path), 401, path);
  t.is(await get('/metrics', { authorization: 'Bearer good' }), 200);
  t.is(await get('/readyz'), 200);
});

test('each setting needs a cluster', async (t) => {
  for (const name of ['tokenReview', 'statusTokens'] as const) {
    const page = { ...PAGE, tokenReview: false, statusTokens: false, [name]: true };
    await t.throwsAsync(guardsOf({ page }, undefined, { warn: t.log }), {
      message: `page.${name}: needs a cluster (kubernetes.enabled)`,
    });
  }
});

// TokenReview: "a token is valid for at least one of the audiences in this list"; "if audiences are empty [in the answer]
// where status.authenticated is true, the token is valid against the audience of the Kubernetes API server"
// (k8s.io/api/authentication/v1/types.go).
test('only a token that was made for the status page opens its data', async (t) => {
  const specs: unknown[] = [];
  const server = createServer(async (request, response) => {
    const { spec } = (await json(request)) as { spec: { token?: string; audiences?: string[] } };
    specs.push(spec);
    const user = { username: 'reader' };
    const audiences = { made: [STATUS_AUDIENCE], unaware: undefined, other: ['https://other'] }[spec.token ?? ''];
    const status = request.url?.includes('tokenreviews')
      ? { authenticated: true, user, ...(audiences && { audiences }) }
      : { allowed: true };
    response.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify({ status }));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const config: ApiConfig = {
    getCurrentCluster: () => ({ server: at }),
    applySecurityAuthentication: async () => {},
    createDispatcherOptions: () => ({ type: 'agent' }),
  };
  // A busy machine may take longer than a scrape may wait.
  const review = createTokenReviewer(config, 60_000);
  t.is(await review('made', '/status.json'), 'allowed');
  t.deepEqual(specs.splice(0)[0], { token: 'made', audiences: [STATUS_AUDIENCE] });
  t.is(await review('unaware', '/history.json'), 'unauthenticated');
  t.is(await review('other', '/status.json'), 'unauthenticated');
  specs.splice(0);
  t.is(await review('unaware', '/metrics'), 'allowed');
  t.deepEqual(specs[0], { token: 'unaware' });
});
