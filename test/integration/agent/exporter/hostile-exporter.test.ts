// What either of the agent's halves may do to the other one: nothing. A peer of the node half may send garbage, read
// nothing, or come a thousand times; a node half that is none makes no page.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer as createHttpServer, type RequestListener } from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import { CLIENT_LIMITS, type ClientOptions, createSnapshotClient } from '../../../../src/agent/snapshot/ipc/client.ts';
import { LIMITS, type ServeOptions, serveSnapshots } from '../../../../src/agent/snapshot/ipc/server.ts';
import { createLocalSource, type NodeData } from '../../../../src/agent/snapshot/source.ts';
import type { Reviewed } from '../../../../src/kube/token-review.ts';
import { residentMib } from '../../../bench/agent/process.ts';
import { describeWatch, isWithin, startWatch } from '../../../support/machine/scheduling-delays.ts';
import { eventually, startNode, type Teardown, temporaryFolder } from '../../../support/native/node.ts';
import { CHART_ENV, startAgent } from '../../../support/product/agent.ts';
import { startExporterHalf } from '../../../support/product/node-and-exporter.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';

async function serving(t: Teardown, more: Partial<ServeOptions> = {}, data: Partial<NodeData> = {}) {
  const path = join(temporaryFolder(t), 'snapshots.sock');
  const problems: string[] = [];
  const source = createLocalSource({
    snapshot: () => exampleSnapshot,
    history: createRecorder().history,
    own: async () => '[]',
    ...data,
  });
  const { close } = await serveSnapshots(source, {
    path,
    user: 0,
    log: { warn: (text) => void problems.push(text) },
    ...more,
  });
  t.teardown(() => close());
  return { path, problems };
}

async function peerOf(t: Teardown, path: string): Promise<Socket> {
  const peer = connect(path);
  t.teardown(() => void peer.destroy());
  peer.on('error', () => {});
  await once(peer, 'connect');
  return peer;
}

const clientOf = (path: string, more: Partial<ClientOptions> = {}) =>
  createSnapshotClient({ path, reviews: false, ...more });

const requestOf = (path: string, more = '') => `GET ${path} HTTP/1.1\r\nHost: agent\r\n${more}\r\n`;

test('the node half refuses invalid requests and serves others', async (t) => {
  const { path } = await serving(t);
  const good = clientOf(path);
  const large = 'x'.repeat(20_000);
  const wrong: readonly (readonly [Buffer | string, RegExp])[] = [
    [randomBytes(60_000).fill(0, 0, 1), /^HTTP\/1\.1 400 /],
    [requestOf('/metrics'), /^HTTP\/1\.1 404 [\s\S]*no such path: \/metrics\n/],
    [requestOf('//'), /^HTTP\/1\.1 (404|503) /],
    [requestOf('/status').replace('GET', 'DELETE'), /^HTTP\/1\.1 405 [\s\S]*only GET is allowed\n/],
    [requestOf('/status', `X-Large: ${large}\r\n`), /^HTTP\/1\.1 431 /],
    [requestOf(`/${large}`), /^HTTP\/1\.1 431 /],
    [
      requestOf('/review?path=/metrics', 'Authorization: Bearer x\r\n'),
      /^HTTP\/1\.1 404 [\s\S]*page\.statusTokens are off\n/,
    ],
    // A body that is announced and never sent.
    [requestOf('/history', 'Content-Length: 1000000000\r\n'), /^HTTP\/1\.1 200 /],
  ];
  for (const [bytes, words] of wrong) {
    const peer = await peerOf(t, path);
    peer.write(bytes);
    t.regex(await text(peer), words);
    t.true((await good.status()).length > 0);
  }
});

test('the node half serves one request per connection', async (t) => {
  const { path } = await serving(t);
  const peer = await peerOf(t, path);
  peer.write(requestOf('/status').repeat(1000));
  t.is(await text(peer).catch(() => ''), '', 'further requests end the connection before its answer');
  t.true((await clientOf(path).status()).length > 0);
});

test.serial('the node half limits connections and drops those without a request', async (t) => {
  const { path } = await serving(t, { limits: { ...LIMITS, requestMs: 500 } });
  // More than wait at once to be taken are refused by the kernel.
  const tried = await Promise.allSettled(Array.from({ length: 1000 }, () => peerOf(t, path)));
  const peers = tried.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  t.true(peers.length > 10 * LIMITS.connections);
  for (const peer of peers) peer.resume();
  const good = clientOf(path);
  await eventually(() => good.status().catch(() => undefined), 'a client with a request gets in');
  await eventually(() => peers.every(({ destroyed }) => destroyed) || undefined, 'no other is left');
  t.true((await good.status()).length > 0);
});

test('the node half answers a bounded number of requests a second', async (t) => {
  const { path } = await serving(t, { limits: { ...LIMITS, answersPerSecond: 5 } });
  const client = clientOf(path);
  const began = performance.now();
  for (let count = 0; count < 11; count += 1) t.true((await client.health()).up);
  t.true(performance.now() - began >= 1900, `${performance.now() - began} ms`);
});

/** Of a listening socket, by the kernel's table: number, references, protocol, flags, type, state (3: connected),
 * inode, path. */
const connectionsOf = (path: string) =>
  readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[7] === path && fields[5] === '03').length;

// Before the others, whose own answers it would delay in this process.
test.serial('the node half withstands a client that floods it and does not read', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const socket = join(temporaryFolder(t), 'snapshots.sock');
  const settings = { calibrate: false, intervalMs: 250, 'page.socket': socket };
  const agent = await startAgent(t, node, { settings, env: CHART_ENV });
  const exporter = await startExporterHalf(t, socket);
  const up = () => eventually(async () => (await exporter.metric('cotenant_up')) === 1 || undefined, 'the page');
  await up();
  const pid = agent.child.pid ?? 0;
  const before = residentMib(pid);
  // Each comes again when it is sent away: four with one request, one with all that it can send, which it does not
  // read.
  let isOver = false;
  const flood = async (times: number) => {
    const requests = requestOf('/status').repeat(times);
    while (!isOver) {
      const peer = connect(socket);
      peer.on('error', () => {});
      const closed = new Promise((resolve) => peer.once('close', resolve));
      if (times === 1) peer.resume();
      peer.write(requests);
      await closed;
    }
  };
  const floods = [1, 1, 1, 1, 50_000].map(flood);
  let most = 0;
  const end = performance.now() + LIMITS.answerMs / 2;
  while (performance.now() < end) {
    const watch = startWatch([process.pid, pid, exporter.child.pid ?? 0]);
    await up();
    const taken = watch();
    t.true(isWithin(5000, taken), `a page ${describeWatch(taken)}`);
    most = Math.max(most, residentMib(pid));
    await delay(100);
  }
  t.true(most - before < 30, `${before} MiB before, ${most} MiB at most`);
  isOver = true;
  await Promise.all(floods);
  await eventually(() => connectionsOf(socket) === 0 || undefined, 'all are sent away');
  await up();
});

test('the node half disconnects a client that does not read its answer', async (t) => {
  const recent = Array.from({ length: 20_000 }, (_, atMs) => ({ atMs }) as (typeof exampleSnapshot.recent)[number]);
  const { path, problems } = await serving(
    t,
    { limits: { ...LIMITS, answerMs: 500 } },
    { snapshot: () => ({ ...exampleSnapshot, recent }) },
  );
  const peer = await peerOf(t, path);
  peer.pause().write(requestOf('/status'));
  await eventually(() => problems[0], 'the limit of time');
  t.is(problems[0], `${path}: the client does not read its answer and is disconnected`);
  await eventually(() => connectionsOf(path) === 0 || undefined, 'it is sent away');
  t.true((await clientOf(path).status()).length > 250_000);
});

test('the node half reviews tokens for the exporter half', async (t) => {
  const asked: string[] = [];
  const review = (token: string, path: string): Promise<Reviewed> => {
    asked.push(`${token} ${path}`);
    if (token === 'broken') return Promise.reject(new Error('the API server is away'));
    return Promise.resolve(token === 'good' ? 'allowed' : 'forbidden');
  };
  const { path } = await serving(t, {}, { review });
  const ask = (token: string, of = '/metrics', at = path) =>
    clientOf(at, { reviews: true }).review?.(token, of) ?? Promise.reject(new Error('unreachable'));
  t.is(await ask('good'), 'allowed');
  t.is(await ask('bad', '/status.json'), 'forbidden');
  await t.throwsAsync(ask('broken'), { message: 'the API server is away' });
  await t.throwsAsync(ask('two words'), { message: 'expected a path and a bearer token' });
  await t.throwsAsync(ask('x', 'no-path'), { message: 'expected a path and a bearer token' });
  t.deepEqual(asked, ['good /metrics', 'bad /status.json', 'broken /metrics']);
  const unreviewed = await serving(t);
  await t.throwsAsync(ask('good', '/metrics', unreviewed.path), {
    message: /page\.tokenReview and page\.statusTokens are off$/,
  });
});

async function imposter(t: Teardown, handler: RequestListener): Promise<string> {
  const path = join(temporaryFolder(t), 'snapshots.sock');
  const server = createHttpServer(handler).listen(path);
  await once(server, 'listening');
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  return path;
}
/** Its snapshot is healthy; `material` is the answer to all other requests. */
const answering =
  (material: string, status = 200): RequestListener =>
  ({ url }, response) =>
    void (url === '/health' ? response.end('{"up":true,"number":1}') : response.writeHead(status).end(material));

test('an invalid node half yields no page, and the log has the reason', async (t) => {
  t.timeout(180_000);
  const wrong: readonly (readonly [RequestListener, RegExp])[] = [
    [({ socket }) => void socket.end('cotenant snapshots 1\n'), /the node half does not answer: Parse Error/],
    [({ socket }) => void socket.destroy(), /the node half does not answer: socket hang up/],
    [(_, response) => void response.end('{"up":1}'), /invalid snapshot health: expected up and number/],
    [
      (_, response) => void response.end('x'.repeat(CLIENT_LIMITS.answerBytes + 1)),
      /the node half does not answer: more than 16777216 bytes/,
    ],
    [
      answering(JSON.stringify({ own: '', snapshot: { ...exampleSnapshot, kills: 3 } })),
      /the metrics cannot be rendered: Error: the node half sent an invalid snapshot: snapshot\.kills: expected a list/,
    ],
    [answering('cotenant_up 1'), /the metrics cannot be rendered: SyntaxError/],
    [answering('{"own":"[7]"}'), /the metrics cannot be rendered: /],
    [answering('not today', 503), /the metrics cannot be rendered: Error: not today/],
  ];
  for (const [handler, words] of wrong) {
    const exporter = await startExporterHalf(t, await imposter(t, handler));
    await eventually(async () => {
      t.is(await exporter.metric('cotenant_up'), 0);
      return exporter.log.some((line) => words.test(line)) || undefined;
    }, String(words));
    await exporter.stop();
  }
});

test('a node half that does not answer times out', async (t) => {
  const limits = { ...CLIENT_LIMITS, answerMs: 50, pageMs: 60 };
  const mute = clientOf(await imposter(t, () => {}), { limits });
  await t.throwsAsync(mute.status(), { message: 'the node half does not answer: not within 0.05 s' });
  await t.throwsAsync(mute.material(false), { message: 'the node half does not answer: not within 0.06 s' });
  const slow = clientOf(await imposter(t, (_, response) => void response.write('{')), { limits });
  await t.throwsAsync(
    slow.health(),
    { message: 'the node half does not answer: not within 0.05 s' },
    'within an answer',
  );
});
