// The certificate that replicas issue themselves, against a small API server with the Secret and both webhook
// configurations.
import { X509Certificate } from 'node:crypto';
import type { KubeConfig } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import type { ServerCertificate } from '../../../src/serving/http-server.ts';
import { fromSecret } from '../../../webhook/certificates/secret.ts';
import { eventually } from '../../support/native/node.ts';
import { answer, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';

type Secret = { data: Record<string, string>; metadata: { resourceVersion: string } };
type Registration = {
  metadata: { name: string; resourceVersion: string };
  webhooks: { name: string; clientConfig: { caBundle?: string } }[];
};
type Operation = { op: string; path: string; value: string };

const OPTIONS = { namespace: 'ns', secret: 'tls', service: 'webhook', registration: 'cotenant' };

async function startApi(t: ExecutionContext, busy = false) {
  let version = 1;
  const asked: number[] = [];
  let secret: Secret | undefined;
  const registration = (): Registration => ({
    metadata: { name: 'cotenant', resourceVersion: String(version++) },
    webhooks: ['one', 'two'].map((name) => ({ name, clientConfig: {} })),
  });
  const registrations = { mutating: registration(), validating: registration() };
  const watched = { secrets: watchers(), mutating: watchers(), validating: watchers() };
  const { config } = await startApiServer(t, async ({ url, isWatch, body, method }, response) => {
    const { pathname } = url;
    const kind = pathname.includes('/secrets') ? 'secrets' : pathname.includes('/mutating') ? 'mutating' : 'validating';
    if (isWatch) return watched[kind].add(response);
    if (pathname.endsWith('/services/webhook')) return answer(response, 200, { metadata: { uid: 'service-uid' } });
    if (kind === 'secrets') {
      asked.push(performance.now());
      if (busy && asked.length === 1) return refuse(response.setHeader('Retry-After', '7'), 429, 'too many requests');
      if (method === 'PATCH') {
        const { data, metadata } = (await body()) as Secret;
        if (secret && metadata.resourceVersion !== secret.metadata.resourceVersion)
          return refuse(response, 409, 'conflict');
        secret = { data, metadata: { resourceVersion: String(version++) } };
        watched.secrets.send('MODIFIED', secret);
      }
      return secret ? answer(response, 200, secret) : refuse(response, 404, 'no such secret');
    }
    const object = registrations[kind];
    if (method === 'PATCH') {
      const [guard, ...changes] = (await body()) as Operation[];
      if (guard?.value !== object.metadata.resourceVersion) return refuse(response, 422, 'the test failed');
      for (const { path, value } of changes) {
        const webhook = object.webhooks[Number(/^\/webhooks\/(\d+)\/clientConfig\/caBundle$/.exec(path)?.[1])];
        if (webhook) webhook.clientConfig.caBundle = value;
      }
      object.metadata.resourceVersion = String(version++);
      watched[kind].send('MODIFIED', object);
    }
    return answer(response, 200, object);
  });
  const bundles = () =>
    Object.values(registrations).flatMap(({ webhooks }) => webhooks.map(({ clientConfig }) => clientConfig.caBundle));
  const damage = () => {
    if (!secret) throw new Error('there is no Secret yet');
    secret = { data: { ...secret.data, 'tls.crt': '' }, metadata: { resourceVersion: String(version++) } };
    watched.secrets.send('MODIFIED', secret);
  };
  return { config, bundles, damage, asked };
}

async function startReplica(config: KubeConfig) {
  const lines: string[] = [];
  const later: ServerCertificate[] = [];
  const log = (line: string) => lines.push(line);
  const { certificate, close } = await fromSecret(
    config,
    OPTIONS,
  )({
    onCertificate: (next) => later.push(next),
    onRejected: log,
    logger: { info: log, warn: log },
  });
  return { certificate, later, lines, close };
}

test('replicas issue one certificate, which both webhook configurations trust', async (t) => {
  const api = await startApi(t);
  const replicas = await Promise.all([startReplica(api.config), startReplica(api.config)]);
  const [{ certificate }] = replicas;
  t.is(replicas[1].certificate.cert, certificate.cert);
  t.is(replicas.flatMap(({ lines }) => lines.filter((line) => line.startsWith('issued a certificate'))).length, 1);
  const bundles = api.bundles();
  t.is(bundles.length, 4);
  for (const bundle of bundles) {
    const authority = new X509Certificate(Buffer.from(bundle ?? '', 'base64'));
    t.true(new X509Certificate(certificate.cert).verify(authority.publicKey));
  }
  t.is(new X509Certificate(certificate.cert).checkHost('webhook.ns.svc'), 'webhook.ns.svc');
  await Promise.all(replicas.map(({ close }) => close()));
});

test('a busy API server is asked again after its pause', async (t) => {
  const { config, asked } = await startApi(t, true);
  const { close, lines } = await startReplica(config);
  await close();
  const [first = 0, second = 0] = asked;
  t.true(second - first >= 7000, `${second - first} ms`);
  t.is(lines[0], 'cannot check or renew the certificate, and retries: status 429: too many requests');
});

test('a damaged Secret is replaced, and the former authority stays trusted', async (t) => {
  const api = await startApi(t);
  const replica = await startReplica(api.config);
  const [before] = api.bundles();
  api.damage();
  await eventually(() => replica.later[0], 'a new certificate');
  t.true(replica.lines.includes('the Secret tls cannot serve and is replaced'));
  t.not(replica.later[0]?.cert, replica.certificate.cert);
  const [after] = api.bundles();
  const text = (bundle: string | undefined) => Buffer.from(bundle ?? '', 'base64').toString();
  t.true(text(after).endsWith(text(before)) && text(after).length > text(before).length);
  await replica.close();
});
