// The node half's server of the snapshot socket: announces each new snapshot and sends the latest one on request. The exporter half
// serves the network, so its requests count as hostile: none of them changes the node half's state, delays it, or makes it use more
// memory than LIMITS allow.
import { once } from 'node:events';
import { chmodSync, chownSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import type { Snapshot } from '../snapshot.ts';
import { healthOf, type LocalSource, materialOf, NO_SAMPLE, type SnapshotHealth } from '../source.ts';
import { createFrameParser, type Frame, frameOf } from './frames.ts';
import { ASK, encoded, GREETING, HELLO, LIMITS, type Limits, REPLY, textOf } from './protocol.ts';

export type SnapshotServer = {
  /** Called with each new snapshot. */
  publish(snapshot: Snapshot): void;
  /** Called about once per second. */
  beat(): void;
  close(): Promise<void>;
};

export type ServeOptions = LocalSource & {
  readonly path: string;
  /** User that may connect besides root and the agent's own user; 0: no other user. */
  readonly user: number;
  readonly onProblem: (text: string) => void;
  readonly limits?: Limits;
};

type Peer = { readonly socket: Socket; greeted: boolean; behind: boolean };

/** Rejects if the socket cannot be created. Replaces a file at its path. */
export async function serveSnapshots(options: ServeOptions): Promise<SnapshotServer> {
  const { snapshot, history, own, review, onProblem, path, limits = LIMITS } = options;
  const peers = new Set<Peer>();
  /** Answers from the latest snapshot by kind: created by the first request and reused by later ones. */
  const answers = new Map<number, Promise<string>>();
  let newest: SnapshotHealth | undefined;
  let lastSentMs = performance.now();
  let reviews = 0;

  const bodyOf = async (kind: number): Promise<string> => {
    const now = snapshot();
    if (kind === ASK.status) return JSON.stringify(now ?? null);
    if (kind === ASK.history) return JSON.stringify(history());
    if (!now) throw new Error(NO_SAMPLE);
    return encoded(materialOf(now, await own(), kind === ASK.pageWithProcesses));
  };
  const cachedBodyOf = (kind: number): Promise<string> => {
    if (kind === ASK.own) return own();
    const body = answers.get(kind) ?? bodyOf(kind);
    answers.set(kind, body);
    return body;
  };
  const answerTo = async (kind: number, id: number): Promise<Buffer> => {
    try {
      const body = await cachedBodyOf(kind);
      const bytes = Buffer.byteLength(body);
      if (bytes > limits.answerBytes)
        throw new Error(`the answer has ${bytes} bytes; the exporter half reads at most ${limits.answerBytes}`);
      return frameOf(REPLY.answer, id, body);
    } catch (error) {
      return frameOf(REPLY.refusal, id, (error as Error).message);
    }
  };

  const health = (now: SnapshotHealth): Buffer => {
    const problem = now.problem?.slice(0, limits.problemChars);
    return frameOf(REPLY.health, 0, JSON.stringify(problem === undefined ? { up: now.up } : { up: now.up, problem }));
  };
  /** Resolves when the kernel has all bytes. A client that missed announcements meanwhile gets the latest one then. */
  const send = (peer: Peer, bytes: Buffer): Promise<void> =>
    new Promise((resolve) => {
      peer.socket.write(bytes, () => {
        if (peer.behind && newest && peer.socket.writableLength === 0) {
          peer.behind = false;
          void send(peer, health(newest));
        }
        resolve();
      });
    });
  const sendInTime = async (peer: Peer, bytes: Buffer): Promise<void> => {
    const timer = setTimeout(() => {
      onProblem(`${path}: the client does not read its answer and is disconnected`);
      peer.socket.destroy();
    }, limits.stallMs);
    await send(peer, bytes);
    clearTimeout(timer);
  };
  const sendToAll = (bytes: Buffer) => {
    lastSentMs = performance.now();
    for (const peer of peers) {
      if (!peer.greeted) continue;
      // A client that does not read gets nothing more until it has read what was sent.
      if (peer.socket.writableLength > 0) peer.behind = true;
      else void send(peer, bytes);
    }
  };

  const reviewToken = async (peer: Peer, { id, payload }: Frame): Promise<void> => {
    const text = textOf(payload);
    const end = text.indexOf('\n');
    const refuse = (why: string) => send(peer, frameOf(REPLY.refusal, id, why));
    if (!review) return refuse('the node half reviews no tokens: its setting page.tokenReview is off');
    if (!/^\/[\x21-\x7e]*\n[\x21-\x7e]+$/.test(text)) return refuse('expected a path, a line feed and a token');
    if (reviews >= limits.reviews) return refuse('too many tokens are being reviewed at once');
    reviews += 1;
    try {
      const result = await review(text.slice(end + 1), text.slice(0, end));
      await send(peer, frameOf(REPLY.answer, id, result));
    } catch (error) {
      await refuse((error as Error).message);
    } finally {
      reviews -= 1;
    }
  };

  /** Reads no further request until the answer is sent: later requests wait in the kernel, then in the client. Returns what is wrong. */
  const serveClient = async (peer: Peer): Promise<string | undefined> => {
    const cutter = createFrameParser(limits.requestBytes);
    let second = { fromMs: performance.now(), answers: 0 };
    for await (const piece of peer.socket) {
      const { frames, wrong } = cutter.push(piece as Buffer);
      for (const frame of frames) {
        if (!peer.greeted) {
          if (frame.kind !== HELLO || textOf(frame.payload) !== GREETING) return 'it sent no greeting of this version';
          await send(peer, frameOf(HELLO, 0, GREETING));
          peer.greeted = true;
          if (newest) await send(peer, health(newest));
          continue;
        }
        const now = performance.now();
        if (now - second.fromMs >= 1000) second = { fromMs: now, answers: 0 };
        if (second.answers >= limits.answersPerSecond)
          await delay(1000 - (now - second.fromMs), undefined, { ref: false });
        second.answers += 1;
        if (frame.kind === ASK.review) void reviewToken(peer, frame);
        else if (frame.kind >= ASK.page && frame.kind < ASK.review) {
          if (frame.payload.byteLength > 0) return `a request of kind ${frame.kind} must have no payload`;
          await sendInTime(peer, await answerTo(frame.kind, frame.id));
        } else return `a request of unknown kind ${frame.kind}`;
        if (peer.socket.destroyed) return undefined;
      }
      if (wrong !== undefined) return wrong;
    }
    return undefined;
  };

  const server = createServer((socket) => {
    const peer: Peer = { socket, greeted: false, behind: false };
    peers.add(peer);
    socket.on('error', () => {});
    socket.on('close', () => peers.delete(peer));
    const unknown = setTimeout(() => {
      if (!peer.greeted) socket.destroy();
    }, limits.helloMs);
    serveClient(peer)
      .then((wrong) => {
        if (wrong !== undefined) onProblem(`${path}: disconnected a client that sent an invalid request: ${wrong}`);
      })
      .catch(() => {}) // the client closed the connection
      .finally(() => {
        clearTimeout(unknown);
        socket.destroy();
      });
  });
  server.maxConnections = limits.peers;
  server.on('error', (error) => onProblem(`${path}: ${error.message}`));
  rmSync(path, { force: true });
  server.listen(path);
  await once(server, 'listening');
  try {
    if (options.user !== 0) chownSync(path, options.user, options.user);
    chmodSync(path, 0o600);
  } catch (error) {
    server.close();
    throw new Error(`cannot give ${path} to user ${options.user} (page.socketUser): ${(error as Error).message}`);
  }

  return {
    publish(now) {
      newest = healthOf(now);
      answers.clear();
      sendToAll(health(newest));
    },
    beat() {
      if (performance.now() - lastSentMs >= limits.beatMs) sendToAll(frameOf(REPLY.beat, 0));
    },
    async close() {
      const closed = once(server, 'close');
      server.close();
      for (const { socket } of peers) socket.destroy();
      await closed;
    },
  };
}
