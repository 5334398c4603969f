// An API server that has as many requests as it takes: its 429 keeps a Lease and a Binding from being written, and once it
// has time again, they are.
import { createServer, request } from 'node:http';
import { createServer as createSilentServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { KubeConfig } from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import { statusOf } from '../../../src/kube/api-error.ts';
import { callApi } from '../../../src/kube/call.ts';
import { buildBinding, createBindingWriter } from '../../../src/scheduler/allocations/binding-writer.ts';
import { holdLease } from '../../../src/scheduler/leadership/leader-election.ts';
import { selfSigned } from '../../../src/serving/x509.ts';
import { loggerTo } from '../../support/product/logger.ts';
import type { LoneApiServer } from '../bed/api-server.ts';
import { eventually } from '../bed/eventually.ts';
import { startRelay } from './relay.ts';

const USER = 'scheduler-of-the-test';
const SILENT_PORT = 9440;
/** The longest that a webhook may have (kubernetes/pkg/apis/admissionregistration/validation). */
const HELD_S = 30;
const BUSY = 'status 429: Too many requests, please try again later.';

/** The server must have one place for requests that write. */
export async function checkBusy(t: ExecutionContext, { api, namespaces, socket }: LoneApiServer): Promise<void> {
  const config = await relay(t, socket);
  const make = async (path: string, body: object) => {
    const { status, body: made } = await api.ask('POST', path, body);
    t.is(status, 201, JSON.stringify(made));
    return made as { readonly metadata: { readonly uid: string } };
  };
  await make('/apis/rbac.authorization.k8s.io/v1/clusterrolebindings', {
    metadata: { name: USER },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'cluster-admin' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: USER }],
  });
  const { metadata } = await make('/api/v1/namespaces/default/pods', {
    metadata: { name: 'busy' },
    spec: { containers: [{ name: 'main', image: 'x' }] },
  });
  const silent = await startSilent(t);
  await startRelay(t, namespaces, { inside: SILENT_PORT, outside: silent.port });
  await make('/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations', {
    metadata: { name: 'silent' },
    webhooks: [
      {
        name: 'silent.example.com',
        clientConfig: { url: `https://127.0.0.1:${SILENT_PORT}/`, caBundle: silent.caBundle },
        rules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['configmaps'] }],
        admissionReviewVersions: ['v1'],
        sideEffects: 'None',
        failurePolicy: 'Ignore',
        timeoutSeconds: HELD_S,
      },
    ],
  });

  const logger = loggerTo([]);
  const closed = new AbortController();
  const writer = createBindingWriter({ config, landsMs: 60_000, closed: closed.signal, logger });
  const binding = { podName: 'busy', podNamespace: 'default', podUid: metadata.uid, node: 'n' };
  const write = () => writer.write(binding, buildBinding(binding, 0, []));
  const probe = { method: 'POST', path: '/api/v1/namespaces/default/secrets', query: { dryRun: 'All' } } as const;
  // Each would hold the only place until the webhook answers. The first may come before the webhook is called, or while
  // the place is taken, when the administrator is served without one.
  const holding: Promise<unknown>[] = [];
  const isBusy = async () => {
    const status = await callApi(config, { ...probe, body: { metadata: { name: 'probe' } } }).then(() => 201, statusOf);
    if (status === 429) return silent.calls() > 0 || undefined; // and not for another's moment
    holding.push(make('/api/v1/namespaces/default/configmaps', { metadata: { generateName: 'held-' } }));
    return undefined;
  };
  await eventually(isBusy, 'the server is busy');
  t.deepEqual(await write(), { kind: 'not-written', because: `the binding failed: ${BUSY}` });
  const problems: string[] = [];
  const leadership = holdLease(config, { namespace: 'default', name: 'l' }, 'me', (text) => problems.push(text));
  t.teardown(() => leadership.close());
  await eventually(() => problems[0], 'the Lease is refused');
  t.is(problems[0], `cannot acquire or renew the Lease default/l: ${BUSY}`);
  t.false(leadership.state().leads);

  silent.letGo();
  await Promise.all(holding);
  await eventually(() => leadership.state().leads || undefined, 'the Lease is acquired');
  await eventually(async () => ((await write()).kind === 'written' ? true : undefined), 'the pod is bound');
  await leadership.close();
}

/** A webhook that answers nothing, and whose failure is ignored, until it lets go. */
async function startSilent(t: ExecutionContext) {
  const certificate = selfSigned(['127.0.0.1'], new Date());
  let calls = 0;
  const server = createSilentServer(certificate, (incoming) => {
    calls += 1;
    incoming.resume();
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  const letGo = () => {
    server.close();
    server.closeAllConnections();
  };
  t.teardown(letGo);
  return {
    port: (server.address() as AddressInfo).port,
    caBundle: Buffer.from(certificate.cert).toString('base64'),
    calls: () => calls,
    letGo,
  };
}

/** The API server as to a user who is not the administrator. */
async function relay(t: ExecutionContext, socketPath: string): Promise<KubeConfig> {
  const server = createServer((incoming, response) => {
    const headers = { ...incoming.headers, host: 'localhost', 'impersonate-user': USER };
    const outgoing = request({ socketPath, method: incoming.method, path: incoming.url, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(response);
    });
    outgoing.on('error', () => response.destroy());
    incoming.pipe(outgoing);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const config = new KubeConfig();
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  config.loadFromClusterAndUser({ name: 'c', server: url, skipTLSVerify: true }, { name: 'u' });
  return config;
}
