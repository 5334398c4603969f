// The real HTTPS server with real TLS clients: what an API server relies on beyond the answers themselves.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { selfSigned } from '../../../src/serving/x509.ts';
import { startWebhook, type Webhook, type WebhookOptions } from '../../../webhook/server.ts';
import { eventually } from '../../support/native/node.ts';
import { configured, creation, fixture, sharePod } from '../../unit/webhook/reviews.ts';
import { connectRaw, post, trusting } from './client.ts';

const SILENT = { info: () => {}, warn: () => {}, error: () => {} };
const BODY = JSON.stringify(creation(sharePod()));

async function started(t: ExecutionContext, options: Partial<WebhookOptions> = {}): Promise<Webhook> {
  const webhook = await startWebhook({
    configuration: () => configured(),
    host: 'localhost',
    logger: SILENT,
    ...options,
  });
  t.teardown(() => webhook.close());
  return webhook;
}

test('a review is answered over TLS 1.3 and HTTP/1.1', async (t) => {
  const webhook = await started(t);
  const agent = trusting(webhook.certificate);
  const reply = await post(webhook, agent, '/mutate', JSON.stringify(fixture('1.26-create-ack-deployment')));
  t.like(reply, { status: 200, httpVersion: '1.1' });
  t.is(reply.headers['content-type'], 'application/json');
  t.is(reply.headers['x-powered-by'], undefined);
  const answer = JSON.parse(reply.text);
  t.like(answer, { apiVersion: 'admission.k8s.io/v1', kind: 'AdmissionReview' });
  t.like(answer.response, { uid: '705ab4f5-6393-11e8-b7cc-42010a800002', allowed: true, patchType: 'JSONPatch' });
  agent.destroy();

  const raw = await connectRaw(webhook, { ALPNProtocols: ['h2', 'http/1.1'] });
  t.is(raw.socket.getProtocol(), 'TLSv1.3');
  t.is(raw.socket.alpnProtocol, 'http/1.1', 'a client that offers HTTP/2 gets HTTP/1.1');
  raw.socket.destroy();
});

test('older TLS is refused, and a client that trusts another CA does not connect', async (t) => {
  const webhook = await started(t);
  await t.throwsAsync(() => connectRaw(webhook, { maxVersion: 'TLSv1.2' }));
  const other = await started(t);
  const stranger = trusting(other.certificate);
  const error = await t.throwsAsync(() => post(webhook, stranger, '/mutate', BODY));
  t.is((error as NodeJS.ErrnoException | undefined)?.code, 'DEPTH_ZERO_SELF_SIGNED_CERT');
  stranger.destroy();
});

test('both routes answer, and others say where to go', async (t) => {
  const webhook = await started(t);
  const agent = trusting(webhook.certificate);
  t.like(JSON.parse((await post(webhook, agent, '/validate', BODY)).text).response, { allowed: false });
  t.like(await post(webhook, agent, '/elsewhere', BODY), { status: 404 });
  const get = await fetchRaw(webhook, 'GET /mutate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n');
  t.regex(get, /^HTTP\/1\.1 405 [\s\S]*allow: POST/i);
  agent.destroy();
});

async function fetchRaw(webhook: Webhook, request: string): Promise<string> {
  const raw = await connectRaw(webhook);
  raw.socket.write(request);
  await raw.ended;
  return raw.received();
}

test('a body that is not a review gets a plain 4xx text', async (t) => {
  const webhook = await started(t);
  const agent = trusting(webhook.certificate);
  const cases: [string | Buffer, number, RegExp, Record<string, string>?][] = [
    ['', 400, /the body is empty/],
    ['{', 400, /the body is not JSON/],
    ['"text"', 400, /request\.uid: is missing/],
    ['{"request": {}}', 400, /request\.uid: is missing/],
    [
      Buffer.concat([Buffer.from('{"a": "'), Buffer.from([0xc3, 0x28]), Buffer.from('"}')]),
      400,
      /the body is not UTF-8/,
    ],
    [Buffer.from([0xef, 0xbb, 0xbf, 0x7b, 0x7d]), 400, /the body is not JSON/],
    [BODY, 415, /unsupported/i, { 'content-encoding': 'gzip' }],
  ];
  for (const [body, status, message, headers] of cases) {
    const reply = await post(webhook, agent, '/mutate', body, headers);
    t.is(reply.status, status, String(message));
    const answer = JSON.parse(reply.text);
    t.is(answer.code, status);
    t.regex(answer.message, message);
    t.notRegex(reply.text, /node_modules|at .*\.ts/, 'no stack trace');
  }
  agent.destroy();
});

test('any content type is read, because only the body counts', async (t) => {
  const webhook = await started(t);
  const agent = trusting(webhook.certificate);
  for (const type of ['application/json; charset=utf-8', 'text/plain', 'application/x-www-form-urlencoded', '']) {
    const reply = await post(webhook, agent, '/mutate', BODY, type ? { 'content-type': type } : {});
    t.is(reply.status, 200, type);
  }
  agent.destroy();
});

test('a body of several MiB is read, one above 8 MiB is refused unread', async (t) => {
  const webhook = await started(t);
  const agent = trusting(webhook.certificate);
  const padded = (size: number) => JSON.stringify(creation({ ...sharePod(), padding: 'x'.repeat(size) }));
  t.like(await post(webhook, agent, '/mutate', padded(5_000_000)), { status: 200 });
  const refused = await post(webhook, agent, '/mutate', padded(9_000_000));
  t.is(refused.status, 413);
  t.is(JSON.parse(refused.text).message, 'the body is larger than 8388608 bytes');
  t.is(refused.headers.connection, 'close');
  t.like(await post(webhook, agent, '/mutate', BODY), { status: 200 }, 'the next one is served');
  agent.destroy();
});

test('too many large bodies at once are refused, usual ones are still read', async (t) => {
  const limits = { largestBytes: 1_000_000, freeBytes: 16_384, sharedBytes: 300_000 };
  const webhook = await started(t, { limits });
  const agent = trusting(webhook.certificate);
  const large = JSON.stringify(creation({ ...sharePod(), padding: 'x'.repeat(200_000) }));
  t.is((await post(webhook, agent, '/mutate', large)).status, 200);
  const begin = async () => {
    const raw = await connectRaw(webhook);
    raw.socket.write(`POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${large.length}\r\n\r\n`);
    raw.socket.write(large.slice(0, -1));
    return raw;
  };
  const both = [await begin(), await begin()];
  await Promise.race(both.map((one) => one.ended));
  const [lost, kept] = both[0]?.socket.destroyed ? both : both.toReversed();
  t.regex(lost?.received() ?? '', /^HTTP\/1\.1 503 [\s\S]*retry-after: 1[\s\S]*too many large bodies at once/i);
  t.like(await post(webhook, agent, '/mutate', large), { status: 503, headers: { connection: 'close' } });
  t.is((await post(webhook, agent, '/mutate', BODY)).status, 200);
  t.regex(await webhook.metrics(), /reviews_total\{route="mutate",outcome="overloaded"\} 2\n/);

  kept?.socket.write(large.slice(-1));
  await kept?.until('"allowed":true');
  t.is((await post(webhook, agent, '/mutate', large)).status, 200, 'what is answered is no longer held');
  for (let left = 0; left < 3; left += 1) {
    const gone = await begin();
    gone.socket.end();
    await gone.ended;
  }
  t.is((await post(webhook, agent, '/mutate', large)).status, 200, 'nor is what was cut off');
  agent.destroy();
});

test('connections are limited, and silent ones are closed', async (t) => {
  const webhook = await started(t, { limits: { connections: 2 }, timeouts: { requestMs: 3000 } });
  const silent = connect(webhook.port, '127.0.0.1');
  const ended = once(silent, 'close');
  await once(silent, 'connect');
  const used = await connectRaw(webhook);
  await t.throwsAsync(() => connectRaw(webhook), { code: 'ECONNRESET' });
  silent.resume();
  await ended;
  const next = await connectRaw(webhook);
  t.is(next.socket.getProtocol(), 'TLSv1.3');
  for (const { socket } of [used, next]) socket.destroy();
});

test('a burst as large as an API server’s is served on connections of its own', async (t) => {
  const webhook = await started(t);
  const raws: Awaited<ReturnType<typeof connectRaw>>[] = [];
  t.teardown(() => {
    for (const { socket } of raws) socket.destroy();
  });
  // 896 were seen, with 600 pods created at once.
  while (raws.length < 900) raws.push(...(await Promise.all(Array.from({ length: 30 }, () => connectRaw(webhook)))));
  for (const { socket } of raws) socket.write('GET /mutate HTTP/1.1\r\nhost: localhost\r\n\r\n');
  await Promise.all(raws.map(({ until }) => until('POST an AdmissionReview')));
  t.true(raws.every(({ received }) => received().startsWith('HTTP/1.1 405')));
});

test('a connection is reused after six idle seconds, beyond Node’s default', async (t) => {
  const webhook = await started(t, { timeouts: { requestMs: 1_000 } });
  const agent = trusting(webhook.certificate);
  const first = await post(webhook, agent, '/mutate', BODY);
  // The idle time itself is what is tested, so it has to pass.
  await new Promise((resolve) => setTimeout(resolve, 6_000));
  const second = await post(webhook, agent, '/mutate', BODY);
  t.is(second.status, 200);
  t.is(second.connection, first.connection);
  agent.destroy();
});

/** For a handshake, too, which takes a busy machine longer than one would think. */
const SHORT = { requestMs: 1500 };

test('a body that does not come is cut off in its time', async (t) => {
  const webhook = await started(t, { timeouts: SHORT });
  const raw = await connectRaw(webhook);
  raw.socket.write('POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"half":');
  await raw.ended;
  t.regex(raw.received(), /^HTTP\/1\.1 408 [\s\S]*the body took over 1500 ms/);
});

test('a client that goes away in the middle of its body does no harm', async (t) => {
  const webhook = await started(t);
  const raw = await connectRaw(webhook);
  raw.socket.write('POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"half":');
  raw.socket.destroy();
  await raw.ended;
  const agent = trusting(webhook.certificate);
  t.like(await post(webhook, agent, '/mutate', BODY), { status: 200 });
  agent.destroy();
});

test('very many reviews at once each get their own answer', async (t) => {
  const webhook = await started(t);
  const agents = Array.from({ length: 20 }, () => trusting(webhook.certificate));
  const replies = await Promise.all(
    Array.from({ length: 200 }, async (_, index) => {
      const agent = agents[index % agents.length] ?? trusting(webhook.certificate);
      const body = JSON.stringify(creation(sharePod({ name: `c${index}` }), { uid: `uid-${index}` }));
      const { text } = await post(webhook, agent, '/mutate', body);
      const { uid, patch } = JSON.parse(text).response;
      return uid === `uid-${index}` && Buffer.from(patch, 'base64').includes(`containers/c${index}/limits`);
    }),
  );
  t.is(replies.filter(Boolean).length, 200);
  for (const agent of agents) agent.destroy();
});

test('stopping answers the open request as the last one and accepts no other', async (t) => {
  const webhook = await started(t, { healthPort: 0 });
  const idle = await connectRaw(webhook);
  idle.socket.write(`POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`);
  await idle.until('AdmissionReview');
  const flight = await connectRaw(webhook);
  flight.socket.write(
    `POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY.slice(0, 50)}`,
  );
  // An answered request on the same server, after those bytes, shows that the server has seen them.
  const agent = trusting(webhook.certificate);
  await post(webhook, agent, '/mutate', BODY);
  agent.destroy();

  let stopped = false;
  const closing = webhook.close().then(() => {
    stopped = true;
  });
  await idle.ended;
  t.is(webhook.close(), webhook.close(), 'closing twice is closing once');
  t.false(stopped, 'the request in flight holds the server');
  await t.throwsAsync(() => connectRaw(webhook), { code: 'ECONNREFUSED' });
  const ready = await fetch(`http://localhost:${webhook.healthPort}/readyz`);
  t.is(ready.status, 503);
  await ready.text();

  flight.socket.write(BODY.slice(50));
  await flight.ended;
  t.regex(flight.received(), /^HTTP\/1\.1 200 [\s\S]*connection: close[\s\S]*"allowed":true/i);
  await closing;
});

test('while draining it answers every client, and each answer ends its connection', async (t) => {
  const webhook = await started(t, { healthPort: 0, timeouts: { drainMs: 4000 } });
  const used = trusting(webhook.certificate);
  t.is((await post(webhook, used, '/mutate', BODY)).headers.connection, 'keep-alive');
  const closing = webhook.close();
  const ready = await fetch(`http://localhost:${webhook.healthPort}/readyz`);
  t.is(ready.status, 503);
  await ready.text();
  const last = await post(webhook, used, '/mutate', BODY);
  t.like(last, { status: 200, headers: { connection: 'close' } });
  const newcomer = trusting(webhook.certificate);
  t.like(await post(webhook, newcomer, '/mutate', BODY), { status: 200, headers: { connection: 'close' } });
  await closing;
  await t.throwsAsync(() => connectRaw(webhook), { code: 'ECONNREFUSED' });
  for (const agent of [used, newcomer]) agent.destroy();
});

const REQUEST = `POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`;

test('a request on an idle connection is answered before, at and after the drain’s end', async (t) => {
  const webhook = await started(t, { timeouts: { drainMs: 500 } });
  const connections = await Promise.all(Array.from({ length: 40 }, () => connectRaw(webhook)));
  // Every second one has had a request before. Go's Transport keeps connections of both kinds.
  for (const raw of connections.filter((_, index) => index % 2 === 0)) {
    raw.socket.write(REQUEST);
    await raw.until('"allowed":true');
    t.regex(raw.received(), /connection: keep-alive/i);
  }
  let over = false;
  const closing = webhook.close().then(() => {
    over = true;
  });
  const begunMs = performance.now();
  for (const [index, raw] of connections.entries()) {
    t.false(over, `${connections.length - index} connections are open`);
    raw.socket.write(REQUEST);
    await raw.ended;
    t.regex(raw.received(), /connection: close[\s\S]*"allowed":true/i, `${performance.now() - begunMs} ms`);
    await delay(25); // so that they go on well past the drain's end
  }
  await closing;
});

test('a client that keeps its connection open delays the end of the drain for a time', async (t) => {
  const warnings: string[] = [];
  const logger = { ...SILENT, warn: (line: string) => warnings.push(line) };
  const webhook = await started(t, { logger, timeouts: { drainMs: 50, leaveMs: 300, graceMs: 50 } });
  const raw = await connectRaw(webhook);
  const begunMs = performance.now();
  await webhook.close();
  t.true(performance.now() - begunMs >= 350);
  t.deepEqual(warnings, ['stops with connections that clients have not closed: 1']);
  await raw.ended;
});

test('a connection without a request yet may have its first one late', async (t) => {
  const webhook = await started(t, { timeouts: SHORT });
  const [early, late] = [await connectRaw(webhook), await connectRaw(webhook)];
  // Each is over a time for requests later than the one before.
  early.socket.write(REQUEST.slice(0, -1));
  await early.ended;
  t.regex(early.received(), /^HTTP\/1\.1 408 [\s\S]*the body took over 1500 ms/);
  const next = await connectRaw(webhook);
  next.socket.write(REQUEST.slice(0, -1));
  await next.ended;
  late.socket.write(REQUEST);
  await late.until('"allowed":true');
  late.socket.destroy();
});

test('stopping ends in time while the certificate source hangs', async (t) => {
  const certificate = selfSigned(['localhost'], new Date());
  const stuck = async () => ({ certificate, close: () => new Promise<void>(() => {}) });
  const webhook = await started(t, { certificate: stuck, timeouts: { drainMs: 3000, graceMs: 200 } });
  const agent = trusting(webhook.certificate);
  const closing = webhook.close();
  t.like(await post(webhook, agent, '/mutate', BODY), { status: 200, headers: { connection: 'close' } });
  await eventually(async () => {
    try {
      (await connectRaw(webhook)).socket.destroy();
      return undefined;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === 'ECONNREFUSED' || undefined;
    }
  }, 'no other client connects');
  await closing;
  agent.destroy();
});

test('a request that never ends delays stopping by the grace time at most', async (t) => {
  const webhook = await started(t, { timeouts: { graceMs: 50 } });
  const raw = await connectRaw(webhook);
  raw.socket.write('POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{');
  const agent = trusting(webhook.certificate);
  await post(webhook, agent, '/mutate', BODY);
  agent.destroy();
  await webhook.close();
  await raw.ended;
  t.is(raw.received(), '');
});

test('probes and metrics are served beside, in plain HTTP', async (t) => {
  const webhook = await started(t, { healthPort: 0 });
  const agent = trusting(webhook.certificate);
  await post(webhook, agent, '/mutate', BODY);
  await post(webhook, agent, '/mutate', '{');
  agent.destroy();
  const get = async (path: string) => {
    const reply = await fetch(`http://localhost:${webhook.healthPort}${path}`);
    return { status: reply.status, text: await reply.text() };
  };
  t.deepEqual(await get('/healthz'), { status: 200, text: 'ok\n' });
  t.deepEqual(await get('/readyz'), { status: 200, text: 'ok\n' });
  t.is((await get('/mutate')).status, 404);
  const page = (await get('/metrics')).text;
  t.regex(page, /cotenant_webhook_reviews_total\{route="mutate",outcome="patched"\} 1\n/);
  t.regex(page, /cotenant_webhook_reviews_total\{route="mutate",outcome="malformed"\} 1\n/);
  t.regex(page, /cotenant_webhook_certificate_not_after_timestamp_seconds \d{10}\n/);
  // Those of the process change all the time.
  const own = (text: string) => text.split('\n').filter((line) => /^(# \w+ )?cotenant_/.test(line));
  t.deepEqual(own(page), own(await webhook.metrics()));
  t.regex(page, /^process_cpu_seconds_total [\d.]+$/m);
});

test('each decision on a pod is a line of the log, and a reason in the metrics', async (t) => {
  const lines: object[] = [];
  const decisions = { info: (message: string, keys: object = {}) => void lines.push({ message, ...keys }) };
  const webhook = await started(t, { decisions });
  const agent = trusting(webhook.certificate);
  const plain = { metadata: { name: 'plain' }, spec: { containers: [{ name: 'main' }] } };
  for (const pod of [sharePod(), plain, sharePod({}, { nodeName: 'n1' })])
    await post(webhook, agent, '/mutate', JSON.stringify(creation(pod)));
  agent.destroy();
  t.is(lines.length, 2);
  t.like(lines[0], { code: 'patched' });
  t.like(lines[1], { code: 'refused' });
  t.regex(JSON.stringify(lines[1]), /spec\.nodeName: /);
  t.regex(await webhook.metrics(), /cotenant_webhook_refusals_total\{kind="forbidden",field="nodeName"\} 1\n/);
});

test('a port that is taken is an error, and leaves nothing listening', async (t) => {
  const taken = createServer().listen(0, 'localhost');
  await once(taken, 'listening');
  t.teardown(() => taken.close());
  const { port } = taken.address() as { port: number };
  await t.throwsAsync(() => started(t, { port }), { code: 'EADDRINUSE' });
  await t.throwsAsync(() => started(t, { healthPort: port }), { code: 'EADDRINUSE' });
});
