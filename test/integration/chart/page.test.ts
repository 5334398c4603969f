// The chart's settings of who may read the page: each reaches the container that needs it and no other, its right is there
// only with it, and what Prometheus is told fits.
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import { request } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { TLSSocket } from 'node:tls';
import test from 'ava';
import { startRelay } from '../../../charts/cotenant/exporter/exporter.ts';
import { agent } from '../../../src/cli/agent.ts';
import { parse } from '../../../src/cli/command.ts';
import { configurationOf } from '../../../src/cli/settings.ts';
import { makeAuthority, selfSigned, signedBy } from '../../../src/tls/certificate.ts';
import { eventually, temporaryFolder } from '../../support/node.ts';
import { ALL, CHART, find, helm, type Json, list, NAMESPACE, objectsOf, testWithHelm } from './chart.ts';

const exporterOf = (exporter: object) => ({ ...ALL, agent: { exporter } });
const TLS = { tls: { secretName: 'page-tls' } };
const BEARER = { bearerToken: { secretName: 'page-token', key: 'secret' } };
const REVIEW = { tokenReview: true };

const podOf = (objects: readonly Json[]) => find(objects, 'DaemonSet', 'cotenant-agent').spec?.template?.spec;
const endpointOf = (objects: readonly Json[]) => find(objects, 'ServiceMonitor', 'cotenant-agent').spec?.endpoints?.[0];
const mountsOf = (container: Json | undefined) => list(container?.volumeMounts).map(({ name }) => String(name));
const isReview = ({ resources }: Json) => /reviews$/.test(String(list(resources)[0]));

testWithHelm('nothing of it is there where it is not asked for, nor with values that do not know of it', (t) => {
  const older = { tls: null, bearerToken: null, tokenReview: null };
  for (const objects of [objectsOf(t, ALL), objectsOf(t, exporterOf(older), '--skip-schema-validation')]) {
    const [node, exporter] = list(podOf(objects)?.containers);
    t.false([...list(node?.args), ...list(exporter?.command)].some((word) => /page\.|--cert/.test(String(word))));
    t.false(mountsOf(node).includes('page'));
    t.deepEqual(mountsOf(exporter), ['configuration']);
    for (const probe of [exporter?.readinessProbe, exporter?.livenessProbe]) t.is(probe?.httpGet?.scheme, undefined);
    t.false(list(find(objects, 'ClusterRole', 'cotenant-agent').rules).some(isReview));
    t.false(objects.some(({ metadata }) => String(metadata?.name) === 'cotenant-metrics-reader'));
    const { scheme, tlsConfig, authorization, bearerTokenFile } = endpointOf(objects) ?? {};
    t.deepEqual([scheme, tlsConfig, authorization, bearerTokenFile], [undefined, undefined, undefined, undefined]);
  }
});

testWithHelm(
  'the certificate goes to the container with the port alone, and its probes and Prometheus know of it',
  (t) => {
    const objects = objectsOf(t, exporterOf(TLS));
    const [node, exporter] = list(podOf(objects)?.containers);
    t.deepEqual([mountsOf(node).includes('tls'), mountsOf(exporter).includes('tls')], [false, true]);
    const command = list(exporter?.command).map(String);
    t.deepEqual(command.slice(-2), ['--cert=/etc/cotenant/tls/tls.crt', '--key=/etc/cotenant/tls/tls.key']);
    for (const probe of [exporter?.readinessProbe, exporter?.livenessProbe])
      t.is(String(probe?.httpGet?.scheme), 'HTTPS');
    t.deepEqual(endpointOf(objects)?.tlsConfig as unknown, {
      ca: { secret: { name: 'page-tls', key: 'ca.crt' } },
      serverName: `cotenant-agent.${NAMESPACE}.svc`,
    });
    t.is(String(endpointOf(objects)?.scheme), 'https');
    const own = { insecureSkipVerify: true };
    const chosen = objectsOf(t, { ...exporterOf(TLS), serviceMonitor: { enabled: true, tlsConfig: own } });
    t.deepEqual(endpointOf(chosen)?.tlsConfig as unknown, own);
  },
);

testWithHelm('the token goes to the container that judges, and to Prometheus', (t) => {
  const objects = objectsOf(t, exporterOf(BEARER));
  const pod = podOf(objects);
  const [node, exporter] = list(pod?.containers);
  t.deepEqual([mountsOf(node).includes('page'), mountsOf(exporter).includes('page')], [true, false]);
  const volume = list(pod?.volumes).find(({ name }) => String(name) === 'page');
  t.deepEqual(volume?.secret as unknown, {
    secretName: 'page-token',
    defaultMode: 0o400,
    items: [{ key: 'secret', path: 'token' }],
  });
  t.deepEqual(endpointOf(objects)?.authorization as unknown, { credentials: { name: 'page-token', key: 'secret' } });
  t.is(endpointOf(objects)?.scheme, undefined);
});

testWithHelm('reviews bring their two rights, and a role for whoever may read', (t) => {
  const objects = objectsOf(t, exporterOf(REVIEW));
  t.deepEqual(list(find(objects, 'ClusterRole', 'cotenant-agent').rules).filter(isReview) as unknown, [
    { apiGroups: ['authentication.k8s.io'], resources: ['tokenreviews'], verbs: ['create'] },
    { apiGroups: ['authorization.k8s.io'], resources: ['subjectaccessreviews'], verbs: ['create'] },
  ]);
  t.deepEqual(find(objects, 'ClusterRole', 'cotenant-metrics-reader').rules as unknown, [
    { nonResourceURLs: ['/metrics'], verbs: ['get'] },
  ]);
  t.regex(String(endpointOf(objects)?.bearerTokenFile), /serviceaccount\/token$/);
  const [node] = list(podOf(objectsOf(t, exporterOf({ ...BEARER, ...REVIEW })))?.containers);
  const args = list(node?.args).map((arg) => String(arg).replace('$(NODE_NAME)', 'node-a'));
  const parsed = parse(agent, args.slice(1));
  if (parsed === 'help') return t.fail();
  t.deepEqual(configurationOf(undefined, parsed.values.set as string[]).page, {
    certFile: '',
    keyFile: '',
    bearerTokenFile: '/etc/cotenant/page/token',
    tokenReview: true,
  });
});

testWithHelm('the agent may evict pods only where it is told to', (t) => {
  const mayEvict = (enforcement: object) =>
    list(find(objectsOf(t, { agent: { configuration: { enforcement } } }), 'ClusterRole', 'cotenant-agent').rules).some(
      ({ resources, verbs }) => `${list(resources)}: ${list(verbs)}` === 'pods/eviction: create',
    );
  t.deepEqual([mayEvict({}), mayEvict({ evictAfterStops: 0 }), mayEvict({ evictAfterStops: 3 })], [false, false, true]);
});

testWithHelm('whoever installs it is told who may read, and when tokens can be overheard', (t) => {
  const notes = (...switches: readonly string[]) => {
    const words = switches.flatMap((each) => ['--set', `agent.exporter.${each}`]);
    const { ok, text: told } = helm([
      'install',
      'cotenant',
      CHART,
      '--namespace',
      NAMESPACE,
      '--dry-run=client',
      ...words,
    ]);
    t.true(ok, told);
    return told.split('NOTES:')[1] ?? '';
  };
  t.notRegex(notes(), /its metrics are for/);
  t.regex(notes('tokenReview=true'), /ClusterRole cotenant-metrics-reader; OVER PLAIN HTTP/);
  const both = notes('tokenReview=true', 'bearerToken.secretName=one', 'tls.secretName=two');
  t.regex(both, /bearers of the token in the Secret one, and whoever is bound to .*-metrics-reader$/m);
});

test('the exporter container serves HTTPS, follows its pair, and hands the token on to who judges', async (t) => {
  const folder = temporaryFolder(t);
  const files = { certFile: join(folder, 'tls.crt'), keyFile: join(folder, 'tls.key') };
  const authority = makeAuthority('of the test', new Date(), 2);
  const renew = () => {
    const { cert, key } = signedBy(authority, ['127.0.0.1'], new Date(), 1);
    writeFileSync(files.keyFile, key);
    writeFileSync(files.certFile, cert);
  };
  t.throws(() => startRelay({ listen: 0, from: 1, tls: files }), { message: /cannot serve: ENOENT/ });
  renew();
  const upstream = createServer(({ headers: { authorization = 'nobody' } }, answer) => {
    answer.writeHead(401, { 'www-authenticate': 'Bearer realm="x"' }).end(authorization);
  }).listen(0, '127.0.0.1');
  await once(upstream, 'listening');
  const from = (upstream.address() as AddressInfo).port;
  const relay = startRelay({ listen: 0, from, tls: files, readEveryMs: 20 });
  await once(relay, 'listening');
  t.teardown(() => {
    for (const server of [relay, upstream]) {
      server.close();
      server.closeAllConnections();
    }
  });
  const { port } = relay.address() as AddressInfo;
  const ask = async (token?: string) => {
    const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const outgoing = request(`https://127.0.0.1:${port}/metrics`, { ca: authority.cert, headers, agent: false });
    outgoing.end();
    const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
    const { serialNumber } = (answer.socket as TLSSocket).getPeerCertificate();
    return { status: answer.statusCode, headers: answer.headers, body: await text(answer), serialNumber };
  };
  const first = await ask('a-token');
  t.like(first, { status: 401, body: 'Bearer a-token' });
  t.is(first.headers['www-authenticate'], 'Bearer realm="x"');
  t.is((await ask()).body, 'nobody');
  renew();
  const second = await eventually(async () => {
    const { serialNumber } = await ask();
    return serialNumber === first.serialNumber ? undefined : serialNumber;
  }, 'the next certificate');
  const said: string[] = [];
  const { error } = console;
  console.error = (line: string) => said.push(line);
  t.teardown(() => {
    console.error = error;
  });
  writeFileSync(files.keyFile, selfSigned(['127.0.0.1'], new Date()).key);
  await eventually(() => said.length > 0 || undefined, 'it says what is wrong');
  t.regex(said[0] ?? '', /^certificate .*tls\.crt with key .*tls\.key cannot serve: .*; the old one stays in use$/);
  t.is((await ask()).serialNumber, second);
  t.is(said.length, 1, 'once');
});
