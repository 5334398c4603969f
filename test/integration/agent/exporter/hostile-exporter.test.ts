// What either of the agent's halves may do to the other one: nothing. A peer of the node half may send garbage, read nothing, or
// come a thousand times; a node half that is none makes no page.
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import { followSnapshots } from '../../../../src/agent/snapshot/ipc/client.ts';
import { createFrameParser, type Frame, frameOf } from '../../../../src/agent/snapshot/ipc/frames.ts';
import {
  ASK,
  GREETING,
  HELLO,
  LIMITS,
  type Limits,
  parseHealth,
  REPLY,
} from '../../../../src/agent/snapshot/ipc/protocol.ts';
import { type ServeOptions, serveSnapshots } from '../../../../src/agent/snapshot/ipc/server.ts';
import type { SnapshotHealth } from '../../../../src/agent/snapshot/source.ts';
import type { Reviewed } from '../../../../src/kube/token-review.ts';
import { residentMib } from '../../../bench/agent/process.ts';
import { eventually, startNode, type Teardown, temporaryFolder } from '../../../support/native/node.ts';
import { CHART_ENV, startAgent } from '../../../support/product/agent.ts';
import { startExporterHalf } from '../../../support/product/node-and-exporter.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';

const HI = frameOf(HELLO, 0, GREETING);

async function serving(t: Teardown, more: Partial<ServeOptions> = {}) {
  const path = join(temporaryFolder(t), 'snapshots.sock');
  const problems: string[] = [];
  const snapshots = await serveSnapshots({
    path,
    user: 0,
    snapshot: () => exampleSnapshot,
    history: createRecorder().history,
    own: async () => 'own 1\n',
    onProblem: (text) => problems.push(text),
    ...more,
  });
  t.teardown(snapshots.close);
  snapshots.publish(exampleSnapshot);
  return { path, problems, ...snapshots };
}

async function peerOf(t: Teardown, path: string): Promise<Socket> {
  const peer = connect(path);
  t.teardown(() => void peer.destroy());
  peer.on('error', () => {});
  await once(peer, 'connect');
  return peer;
}

function following(t: Teardown, path: string, more: { reviews?: boolean; limits?: Limits } = {}) {
  const log: string[] = [];
  const standings: (SnapshotHealth | undefined)[] = [];
  const source = followSnapshots({
    path,
    reviews: false,
    log: (line) => log.push(line),
    onHealth: (one) => standings.push(one),
    ...more,
  });
  t.teardown(source.close);
  return { ...source, log, standings };
}

test('the node half disconnects invalid clients and serves others', async (t) => {
  const { path, problems } = await serving(t);
  const good = following(t, path);
  await eventually(() => good.health(), 'it has received the snapshot');
  const wrong: readonly (readonly [Buffer, RegExp])[] = [
    [randomBytes(60_000).fill(0, 0, 1), /no greeting of this version|a frame of \d+ bytes/],
    [Buffer.from('GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n'), /a frame of 1195725856 bytes/],
    [frameOf(HELLO, 0, 'cotenant snapshots 2'), /no greeting of this version/],
    [frameOf(ASK.page, 1), /no greeting of this version/],
    [Buffer.concat([HI, frameOf(99, 1)]), /a request of unknown kind 99/],
    [Buffer.concat([HI, frameOf(REPLY.health, 0, '{"up":true}')]), /a request of unknown kind 16/],
    [Buffer.concat([HI, frameOf(ASK.page, 1, 'x')]), /a request of kind 2 must have no payload/],
    [
      Buffer.concat([HI, frameOf(ASK.review, 1, 'x'.repeat(LIMITS.requestBytes + 1))]),
      /a frame of 20001 bytes; the limit is 20000/,
    ],
  ];
  for (const [bytes, words] of wrong) {
    const peer = await peerOf(t, path);
    const closed = once(peer.resume(), 'close');
    peer.write(bytes);
    await closed;
    t.regex(problems.at(-1) ?? '', words);
    t.true((await good.status()).length > 0);
  }
  t.is(problems.length, wrong.length);
});

test('the node half limits connections and drops those without a greeting', async (t) => {
  const { path } = await serving(t, { limits: { ...LIMITS, helloMs: 500 } });
  // More than wait at once to be taken are refused by the kernel.
  const tried = await Promise.allSettled(Array.from({ length: 1000 }, () => peerOf(t, path)));
  const peers = tried.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  t.true(peers.length > 10 * LIMITS.peers);
  for (const peer of peers) peer.resume();
  const good = following(t, path);
  await eventually(() => good.health(), 'a client with a greeting gets in');
  await eventually(() => peers.every(({ destroyed }) => destroyed) || undefined, 'no other is left');
  t.truthy(good.health());
});

test('a client that does not read gets the newest snapshot when it reads again', async (t) => {
  const { path, publish } = await serving(t);
  const peer = await peerOf(t, path);
  let bytes = 0;
  const received: SnapshotHealth[] = [];
  const cutter = createFrameParser(LIMITS.answerBytes);
  const take = (piece: Buffer) => {
    bytes += piece.length;
    for (const { kind, payload } of cutter.push(piece).frames)
      if (kind === REPLY.health) received.push(parseHealth(payload));
  };
  peer.on('data', take);
  peer.write(HI);
  await eventually(() => received[0], 'it has received the first snapshot');
  peer.pause();
  const problem = 'x'.repeat(2000);
  for (let count = 0; count < 20_000; count += 1) {
    publish({ ...exampleSnapshot, self: { ...exampleSnapshot.self, up: false, problem } });
    if (count % 100 === 0) await delay(0);
  }
  publish({ ...exampleSnapshot, self: { ...exampleSnapshot.self, problem: 'the last one' } });
  peer.resume();
  await eventually(() => received.find((one) => one.problem === 'the last one'), 'the newest');
  t.is(received[1]?.problem?.length, LIMITS.problemChars);
  t.true(bytes < 2 ** 20, `${bytes} bytes of 20 MB`);
});

/** Of a listening socket, by the kernel's table: number, references, protocol, flags, type, state (3: connected), inode, path. */
const connectionsOf = (path: string) =>
  readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[7] === path && fields[5] === '03').length;

test('the node half withstands a client that floods it and does not read', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const socket = join(temporaryFolder(t), 'snapshots.sock');
  const settings = { calibrate: false, intervalMs: 250, 'page.socket': socket };
  const agent = await startAgent(t, node, { settings, env: CHART_ENV });
  const exporter = await startExporterHalf(t, socket);
  const up = () => eventually(async () => (await exporter.metric('cotenant_up')) === 1 || undefined, 'the page');
  await up();
  const pid = agent.child.pid ?? 0;
  const before = residentMib(pid);
  const asking = Buffer.concat([HI, ...Array.from({ length: 50_000 }, (_, id) => frameOf(ASK.status, id))]);
  const peers = await Promise.all(Array.from({ length: 5 }, () => peerOf(t, socket)));
  for (const peer of peers) {
    peer.pause();
    peer.write(asking);
  }
  let most = 0;
  const end = performance.now() + LIMITS.stallMs / 2;
  while (performance.now() < end) {
    const began = performance.now();
    await up();
    t.true(performance.now() - began < 5000);
    most = Math.max(most, residentMib(pid));
    await delay(100);
  }
  t.true(most - before < 30, `${before} MiB before, ${most} MiB at most`);
  await eventually(() => connectionsOf(socket) === 1 || undefined, 'all are sent away but one', 3 * LIMITS.stallMs);
  t.true(agent.log.some((line) => /the client does not read its answer and is disconnected/.test(line)));
  await up();
});

test('the node half reviews a bounded number of tokens at once', async (t) => {
  const asked: string[] = [];
  const waiting: ((said: Reviewed) => void)[] = [];
  const review = (token: string, path: string): Promise<Reviewed> => {
    asked.push(`${token} ${path}`);
    if (token === 'broken') return Promise.reject(new Error('the API server is away'));
    if (token === 'slow') return new Promise((resolve) => waiting.push(resolve));
    return Promise.resolve(token === 'good' ? 'allowed' : 'forbidden');
  };
  const { path } = await serving(t, { review });
  const good = following(t, path, { reviews: true });
  await eventually(() => good.health(), 'it is there');
  const ask = (token: string, of = '/metrics') => good.review?.(token, of) ?? Promise.reject(new Error('nobody'));
  t.is(await ask('good'), 'allowed');
  t.is(await ask('bad', '/status.json'), 'forbidden');
  await t.throwsAsync(ask('broken'), { message: 'the API server is away' });
  await t.throwsAsync(ask('two words'), { message: 'expected a path, a line feed and a token' });
  await t.throwsAsync(ask('x', 'no-path'), { message: 'expected a path, a line feed and a token' });
  const slow = Array.from({ length: LIMITS.reviews }, () => ask('slow'));
  await t.throwsAsync(ask('good'), { message: 'too many tokens are being reviewed at once' });
  t.true((await good.status()).length > 0, 'others need not wait for them');
  for (const resolve of waiting) resolve('unauthenticated');
  t.deepEqual(new Set(await Promise.all(slow)), new Set(['unauthenticated']));
  t.is(await ask('good'), 'allowed');
  t.deepEqual(asked.slice(0, 3), ['good /metrics', 'bad /status.json', 'broken /metrics']);

  const unreviewed = await serving(t);
  const other = following(t, unreviewed.path, { reviews: true });
  await eventually(() => other.health(), 'it is there');
  await t.throwsAsync(other.review?.('good', '/metrics') ?? Promise.resolve(), {
    message: /page\.tokenReview is off$/,
  });
});

/** A server that answers each frame by what `say` gives. */
async function imposter(t: Teardown, say: (frame: Frame) => readonly Buffer[]): Promise<string> {
  const path = join(temporaryFolder(t), 'snapshots.sock');
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    const cutter = createFrameParser(LIMITS.requestBytes);
    socket.on('data', (piece) => {
      for (const frame of cutter.push(piece as Buffer).frames) for (const bytes of say(frame)) socket.write(bytes);
    });
  }).listen(path);
  await once(server, 'listening');
  t.teardown(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return path;
}
const HERE = [HI, frameOf(REPLY.health, 0, '{"up":true}')];

test('an invalid node half yields no page, and the log has the reason', async (t) => {
  t.timeout(90_000);
  const wrong: readonly (readonly [(frame: Frame) => readonly Buffer[], RegExp])[] = [
    [() => [Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n')], /a frame of 1213486160 bytes; the limit is 16777216/],
    [
      () => [frameOf(HELLO, 0, 'cotenant snapshots 2')],
      /snapshots\.sock does not belong to a node half of this version/,
    ],
    [() => [HI, frameOf(REPLY.health, 0, '{"up":1}')], /invalid snapshot health: up: expected true or false/],
    [() => [HI, frameOf(77, 0)], /a frame of unknown kind 77/],
    [
      ({ kind, id }) =>
        kind === HELLO
          ? HERE
          : [frameOf(REPLY.answer, id, JSON.stringify({ own: '', snapshot: { ...exampleSnapshot, kills: 3 } }))],
      /the metrics cannot be rendered: Error: the node half sent an invalid snapshot: snapshot\.kills: expected a list/,
    ],
    [
      ({ kind, id }) =>
        kind === HELLO ? HERE : [frameOf(REPLY.answer, id, kind === ASK.own ? '[7]' : 'cotenant_up 1')],
      /the metrics cannot be rendered: SyntaxError/,
    ],
    [
      ({ kind, id }) => (kind === HELLO ? HERE : [frameOf(REPLY.refusal, id, 'not today')]),
      /the metrics cannot be rendered: Error: not today/,
    ],
  ];
  for (const [say, words] of wrong) {
    const exporter = await startExporterHalf(t, await imposter(t, say));
    await eventually(async () => {
      t.is(await exporter.metric('cotenant_up'), 0);
      return exporter.log.some((line) => words.test(line)) || undefined;
    }, String(words));
    await exporter.stop();
  }
});

test('a node half that does not answer times out', async (t) => {
  const limits = { ...LIMITS, answerMs: 50, pageMs: 60, silenceMs: 400 };
  const mute = following(t, await imposter(t, ({ kind }) => (kind === HELLO ? HERE : [])), { limits });
  await eventually(() => mute.health(), 'it is there');
  await t.throwsAsync(mute.status(), { message: 'the node half did not answer within 0.05 s' });
  await t.throwsAsync(mute.material(false), { message: 'the node half did not answer within 0.06 s' });
  await eventually(() => mute.standings.includes(undefined) || undefined, 'it counts as away');
  t.regex(mute.log[0] ?? '', /^the node half does not answer: no data for 0\.4 s; connecting again$/);
  await eventually(() => mute.log[1], 'and is tried again');
  t.is(mute.log[1], 'the node half answers again');
});
