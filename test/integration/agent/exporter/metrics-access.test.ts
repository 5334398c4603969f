// The page over HTTPS and for bearers of a token alone, as Prometheus and strangers meet it, while its files change.
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { TLSSocket } from 'node:tls';
import test from 'ava';
import { configurationOf } from '../../../../src/cli/daemons/agent-settings.ts';
import { type Certificate, makeAuthority, selfSigned, signedBy } from '../../../../src/serving/x509.ts';
import { testUnless } from '../../../support/gate.ts';
import { eventually, startNode, type Teardown, temporaryFolder } from '../../../support/native/node.ts';
import { seriesOf, startAgent } from '../../../support/product/agent.ts';
import { type Answered, prometheusReason, startPrometheus } from '../../../support/services/prometheus.ts';

const TOKEN = 'a-token-that-opens-the-page';
const OTHER = 'another-token-that-opens-it';

type Files = { readonly certFile: string; readonly keyFile: string; readonly tokenFile: string; readonly ca: string };

/** An authority, a pair of it for loopback and a token, as files. */
function filesOf(t: Teardown): Files & { renew(pair?: Certificate): string } {
  const folder = temporaryFolder(t);
  const authority = makeAuthority('of the test', new Date(), 2);
  const at = (name: string) => join(folder, name);
  const renew = (pair = signedBy(authority, ['127.0.0.1'], new Date(), 1)) => {
    writeFileSync(at('tls.key'), pair.key);
    writeFileSync(at('tls.crt'), pair.cert);
    return new X509Certificate(pair.cert).serialNumber;
  };
  renew();
  writeFileSync(at('ca.crt'), authority.cert);
  writeFileSync(at('token'), `${TOKEN}\n`, { mode: 0o600 });
  return { certFile: at('tls.crt'), keyFile: at('tls.key'), tokenFile: at('token'), ca: authority.cert, renew };
}

async function ask(url: string, ca: string, token?: string) {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const outgoing = request(url, { ca, headers, agent: false });
  outgoing.end();
  const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
  const { serialNumber } = (answer.socket as TLSSocket).getPeerCertificate();
  return { status: answer.statusCode, headers: answer.headers, body: await text(answer), serialNumber };
}

testUnless(prometheusReason())('Prometheus scrapes over HTTPS with a bearer token only', async (t) => {
  const { certFile, keyFile, tokenFile, ca } = filesOf(t);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, {
    settings: { 'page.certFile': certFile, 'page.keyFile': keyFile, 'page.bearerTokenFile': tokenFile },
  });
  t.regex(agent.url, /^https:/);
  const wrong = join(temporaryFolder(t), 'wrong');
  writeFileSync(wrong, OTHER);
  const job = (name: string, more: object) => ({
    job_name: name,
    scheme: 'https',
    static_configs: [{ targets: [new URL(agent.url).host] }],
    ...more,
  });
  const tls = { tls_config: { ca_file: join(certFile, '../ca.crt') } };
  const bearer = (file: string) => ({ authorization: { credentials_file: file } });
  const prometheus = await startPrometheus(t, {
    configuration: {
      global: { scrape_interval: '1s' },
      scrape_configs: [
        job('right', { ...tls, ...bearer(tokenFile) }),
        job('wrong-token', { ...tls, ...bearer(wrong) }),
        job('no-token', tls),
        job('no-authority', bearer(tokenFile)),
      ],
    },
  });
  // A scrape has a second, which a machine that is held up may not give it: the right one comes to be up, the others
  // never are.
  const ofJobs = (found: readonly Answered[]): Record<string, number> =>
    Object.fromEntries(found.map(({ metric, value }) => [metric.job, value]));
  await eventually(async () => {
    const up = ofJobs(await prometheus.query('up'));
    return (Object.keys(up).length === 4 && up.right === 1) || undefined;
  }, 'all four were tried, and the right one is up');
  t.deepEqual(ofJobs(await prometheus.query('max_over_time(up[1h])')), {
    right: 1,
    'wrong-token': 0,
    'no-token': 0,
    'no-authority': 0,
  });
  const up = await prometheus.query('max_over_time(cotenant_up[1h])');
  t.deepEqual(
    up.map(({ metric, value }) => [metric.job, value]),
    [['right', 1]],
  );

  for (const path of ['/metrics', '/', '/status.json', '/history.json', '/nowhere']) {
    const refused = await ask(`${agent.url}${path}`, ca);
    t.is(refused.status, 401, path);
    t.is(refused.headers['www-authenticate'], 'Bearer realm="cotenant"');
    t.is(refused.body, 'want a valid bearer token\n');
    t.is((await ask(`${agent.url}${path}`, ca, `${TOKEN}x`)).status, 401, path);
    t.is((await ask(`${agent.url}${path}`, ca, TOKEN)).status, path === '/nowhere' ? 404 : 200, path);
  }
  // A kubelet has no token.
  for (const path of ['/livez', '/readyz']) t.is((await ask(`${agent.url}${path}`, ca)).status, 200, path);

  // Another token in the file, then none.
  writeFileSync(tokenFile, OTHER);
  await eventually(
    async () => (await ask(`${agent.url}/metrics`, ca, OTHER)).status === 200 || undefined,
    'it opens the page',
  );
  t.is((await ask(`${agent.url}/metrics`, ca, TOKEN)).status, 401);
  writeFileSync(tokenFile, '');
  await eventually(
    async () => (await ask(`${agent.url}/metrics`, ca, OTHER)).status === 503 || undefined,
    'an empty token file lets no request in',
  );
  await eventually(
    () => agent.log.some((line) => line.includes(`${tokenFile}: want one token`)) || undefined,
    'the log says why',
  );
});

test('a new certificate is used, and an invalid one is not', async (t) => {
  const { certFile, keyFile, ca, renew } = filesOf(t);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { 'page.certFile': certFile, 'page.keyFile': keyFile } });
  const served = async () => (await ask(`${agent.url}/metrics`, ca)).serialNumber;
  const next = renew();
  await eventually(async () => (await served()) === next || undefined, 'the new certificate');

  writeFileSync(keyFile, selfSigned(['127.0.0.1'], new Date()).key);
  await eventually(
    () =>
      agent.log.some((line) =>
        /certificate .* cannot serve: the key belongs to another certificate; the previous TLS certificate/.test(line),
      ) || undefined,
    'the log says why',
  );
  t.is(await served(), next);
  const last = renew();
  await eventually(async () => (await served()) === last || undefined, 'the next good one');
  t.is(seriesOf((await ask(`${agent.url}/metrics`, ca)).body, 'cotenant_up'), 1);
});

test('settings that cannot be applied stop the start with a reason', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const { certFile, keyFile } = filesOf(t);
  const start = (settings: Record<string, string | boolean>) => startAgent(t, node, { settings });
  writeFileSync(keyFile, selfSigned(['127.0.0.1'], new Date()).key);
  await t.throwsAsync(start({ 'page.certFile': certFile, 'page.keyFile': keyFile }), {
    message: /cannot serve: the key belongs to another certificate/,
  });
  await t.throwsAsync(start({ 'page.bearerTokenFile': '/nowhere/token' }), { message: /ENOENT.*\/nowhere\/token/ });
  t.throws(() => configurationOf(undefined, [`page.certFile=${certFile}`]), { message: /page\.keyFile: is missing/ });
  t.throws(() => configurationOf(undefined, ['page.tokenReview=true']), {
    message: /page\.tokenReview: true needs the API server/,
  });
});
