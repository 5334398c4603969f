// What a real API server makes of a webhook that fails, as the creator of a pod sees it, with the times and policies of the
// chart. The webhook is a stand-in that fails as it is asked to. What is right is Kubernetes' own source:
// apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go (policies, deadline, the error) and client-go/rest/
// with_retry.go (checkWait: 429 and 5xx are tried again if they have Retry-After; errors of a connection are not).
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { parse } from 'yaml';
import { selfSigned } from '../../src/serving/x509.ts';
import { testUnless } from '../support/gate.ts';
import type { Teardown } from '../support/native/node.ts';
import { startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { register } from './support/registration.ts';
import { startRelay } from './support/relay.ts';

const PORT = 9443;
const PODS = '/api/v1/namespaces/default/pods?dryRun=All';
const VALUES = join(import.meta.dirname, '../../charts/cotenant/values.yaml');
const { webhook: CHART } = parse(readFileSync(VALUES, 'utf8')) as { webhook: { mutateTimeoutSeconds: number } };
const FAIL_S = CHART.mutateTimeoutSeconds;
/** Of the webhook that only warns (charts/cotenant/templates/webhook/registration.yaml). */
const IGNORE_S = 1;
/** A call that its own deadline did not end would last for the longest that a webhook may have, 30 s
 * (kubernetes/pkg/apis/admissionregistration/validation), or for the 60 s of a request (apiserver's
 * --request-timeout). Up to half of the first a busy machine may take for all around the call. */
const ENDED_S = 15;

type Way = {
  /** `none`: no answer; `cut`: the connection is closed in its place. */
  readonly answer: number | 'none' | 'cut';
  readonly retryAfter?: string;
  /** Of the calls, before it works. */
  readonly times: number;
};

const tools = bedTools(console.log, false);

testUnless(tools.ok ? undefined : tools.reason)('a webhook that fails does to pods what its page says', async (t) => {
  t.timeout(600_000);
  if (!tools.ok) return;
  const { api, namespaces } = await startLoneApiServer(t, tools);
  const stand = await startStandIn(t);
  await startRelay(t, namespaces, { inside: PORT, outside: stand.port });
  const clientConfig = { url: `https://127.0.0.1:${PORT}/review`, caBundle: stand.caBundle };
  const forLabel = (policy: string) => ({ objectSelector: { matchLabels: { policy } } });
  await register(api, (path) =>
    path === 'mutate'
      ? { clientConfig, timeoutSeconds: FAIL_S, ...forLabel('Fail') }
      : { clientConfig, timeoutSeconds: IGNORE_S, failurePolicy: 'Ignore', ...forLabel('Ignore') },
  );
  await api.ask('POST', '/api/v1/namespaces/default/serviceaccounts', { metadata: { name: 'default' } });
  const create = async (policy: 'Fail' | 'Ignore', way: Way) => {
    stand.fail(way);
    const begunMs = performance.now();
    const { status, body } = await api.ask('POST', PODS, podOf(policy));
    const seconds = (performance.now() - begunMs) / 1000;
    const { message = '', reason } = body as { message?: string; reason?: string };
    const atMs = stand.calls();
    /** From each call to the next. */
    const pauses = atMs.slice(1).map((ms, index) => (ms - (atMs[index] ?? ms)) / 1000);
    return { status, message, reason, seconds, calls: atMs.length, pauses };
  };
  const works = async () => {
    const { status, calls } = await create('Fail', { answer: 200, times: 0 });
    return (status === 201 && calls === 1) || undefined;
  };
  await eventually(works, 'the webhook is called');

  const always = Number.POSITIVE_INFINITY;
  for (const answer of [429, 503]) {
    const once = await create('Fail', { answer, retryAfter: '1', times: 1 });
    t.like(
      once,
      { status: 201, calls: 2 },
      `${answer} once: the call is repeated after the time that the answer names`,
    );
    t.true(once.seconds >= 1, `${once.seconds} s`);
    const bare = await create('Fail', { answer, times: always });
    t.like(bare, { status: 500, reason: 'InternalError', calls: 1 }, `${answer} without a time: not repeated`);
    t.regex(bare.message, /^Internal error occurred: failed calling webhook "mutate\.cotenant\.io": failed to call/);
    const all = await create('Fail', { answer, retryAfter: '1', times: always });
    t.like(all, { status: 500, reason: 'InternalError' });
    // As often as the deadline has room for the time that the answer names, and for what the machine takes of it.
    t.true(all.calls > 2 && all.calls <= FAIL_S + 1, `${answer} always: ${all.calls} calls`);
    t.true(
      all.pauses.every((pause) => pause > 0.99),
      `${answer} always: ${all.pauses} s between the calls`,
    );
    t.true(all.seconds >= FAIL_S - 1 && all.seconds < ENDED_S, `within the deadline: ${all.seconds} s`);
    t.log(`${answer}: ${bare.message} | with Retry-After: ${all.message}`);
  }
  const hung = await create('Fail', { answer: 'none', times: always });
  t.like(hung, { status: 500, reason: 'InternalError', calls: 1 });
  t.regex(
    hung.message,
    /"mutate\.cotenant\.io": failed to call webhook: Post .*\?timeout=\d+s": context deadline exceeded/,
  );
  t.true(hung.seconds >= FAIL_S && hung.seconds < ENDED_S, `${hung.seconds} s`);
  const cut = await create('Fail', { answer: 'cut', times: 1 });
  t.like(cut, { status: 500, reason: 'InternalError', calls: 1 }, 'a closed connection is not tried again');
  t.regex(cut.message, /"mutate\.cotenant\.io": failed to call webhook: Post .*: EOF$/);
  t.log(`hung: ${hung.message} | closed: ${cut.message}`);

  for (const way of [
    { answer: 503 },
    { answer: 503, retryAfter: '1' },
    { answer: 'none' },
    { answer: 'cut' },
  ] as const) {
    const ignored = await create('Ignore', { ...way, times: always });
    t.is(ignored.status, 201, `${JSON.stringify(way)}: the pod is created`);
    t.true(ignored.seconds < ENDED_S, `${ignored.seconds} s`);
  }
  t.like(await create('Fail', { answer: 200, times: 0 }), { status: 201, calls: 1 }, 'and all is well after it');
});

const podOf = (policy: string) => ({
  metadata: { name: 'x', labels: { policy } },
  spec: { containers: [{ name: 'main', image: 'x' }] },
});

/** Serves until the test ends. */
async function startStandIn(t: Teardown) {
  const certificate = selfSigned(['127.0.0.1'], new Date());
  let [calls, way]: [number[], Way] = [[], { answer: 200, times: 0 }];
  const server = createServer(certificate, async (request, response) => {
    calls.push(performance.now());
    const { answer, retryAfter } =
      calls.length <= way.times ? way : ({ answer: 200 } as Partial<Way> & Pick<Way, 'answer'>);
    const { uid } = (JSON.parse(await text(request)) as { request: { uid: string } }).request;
    if (answer === 'none') return;
    if (answer === 'cut') return void request.socket.destroy();
    if (retryAfter !== undefined) response.setHeader('Retry-After', retryAfter);
    const review = { apiVersion: 'admission.k8s.io/v1', kind: 'AdmissionReview', response: { uid, allowed: true } };
    response.writeHead(answer, { 'content-type': 'application/json' }).end(JSON.stringify(review));
  });
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  return {
    port: (server.address() as AddressInfo).port,
    caBundle: Buffer.from(certificate.cert).toString('base64'),
    fail(next: Way) {
      [calls, way] = [[], next];
    },
    /** When each was made. */
    calls: () => calls,
  };
}
