// The node half's socket for the exporter half: tells of each new snapshot, and hands out the newest when it is asked to. Whoever is on
// the other side serves a network and counts as hostile: nothing that it says changes anything here, and nothing that it does or
// leaves undone holds this half up or makes it grow beyond LIMITS.
import { once } from 'node:events';
import { chmodSync, chownSync, rmSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import type { Snapshot } from '../snapshot.ts';
import { healthOf, type LocalSource, materialOf, NO_SAMPLE, type SnapshotHealth } from '../source.ts';
import { createFrameParser, type Frame, frameOf } from './frames.ts';
import { ASK, encoded, GREETING, HELLO, LIMITS, type Limits, REPLY, textOf } from './protocol.ts';

export type SnapshotServer = {
  /** To be called when there is a newer snapshot. */
  publish(snapshot: Snapshot): void;
  /** To be called each second or so. */
  beat(): void;
  close(): Promise<void>;
};

export type ServeOptions = LocalSource & {
  readonly path: string;
  /** Who may connect besides root and the agent's own user; 0: nobody. */
  readonly user: number;
  readonly onProblem: (text: string) => void;
  readonly limits?: Limits;
};

type Peer = { readonly socket: Socket; greeted: boolean; behind: boolean };

/** Rejects where the socket cannot be made. What lies at its path is replaced. */
export async function serveSnapshots(options: ServeOptions): Promise<SnapshotServer> {
  const { snapshot, history, own, review, onProblem, path, limits = LIMITS } = options;
  const peers = new Set<Peer>();
  /** Of the newest snapshot: made when somebody asks, and once, however often that is. */
  const made = new Map<number, Promise<string>>();
  let newest: SnapshotHealth | undefined;
  let toldAtMs = performance.now();
  let reviews = 0;

  const bodyOf = async (kind: number): Promise<string> => {
    const now = snapshot();
    if (kind === ASK.status) return JSON.stringify(now ?? null);
    if (kind === ASK.history) return JSON.stringify(history());
    if (!now) throw new Error(NO_SAMPLE);
    return encoded(materialOf(now, await own(), kind === ASK.pageWithProcesses));
  };
  const madeOnce = (kind: number): Promise<string> => {
    if (kind === ASK.own) return own();
    const body = made.get(kind) ?? bodyOf(kind);
    made.set(kind, body);
    return body;
  };
  const answerTo = async (kind: number, id: number): Promise<Buffer> => {
    try {
      const body = await madeOnce(kind);
      const bytes = Buffer.byteLength(body);
      if (bytes > limits.answerBytes)
        throw new Error(`the answer has ${bytes} bytes, and the exporter half reads ${limits.answerBytes} at most`);
      return frameOf(REPLY.answer, id, body);
    } catch (error) {
      return frameOf(REPLY.refusal, id, (error as Error).message);
    }
  };

  const health = (now: SnapshotHealth): Buffer => {
    const problem = now.problem?.slice(0, limits.problemLetters);
    return frameOf(REPLY.health, 0, JSON.stringify(problem === undefined ? { up: now.up } : { up: now.up, problem }));
  };
  /** Resolves when the kernel has it all. Who was told nothing meanwhile is told of the newest snapshot then. */
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
      onProblem(`${path}: whoever is connected does not read what it asked for; it is sent away`);
      peer.socket.destroy();
    }, limits.stallMs);
    await send(peer, bytes);
    clearTimeout(timer);
  };
  const tellAll = (bytes: Buffer) => {
    toldAtMs = performance.now();
    for (const peer of peers) {
      if (!peer.greeted) continue;
      // One that does not read gets nothing more until it has read what is there.
      if (peer.socket.writableLength > 0) peer.behind = true;
      else void send(peer, bytes);
    }
  };

  const judge = async (peer: Peer, { id, payload }: Frame): Promise<void> => {
    const text = textOf(payload);
    const end = text.indexOf('\n');
    const refuse = (why: string) => send(peer, frameOf(REPLY.refusal, id, why));
    if (!review) return refuse('the node half has nobody to ask: page.tokenReview is off there');
    if (!/^\/[\x21-\x7e]*\n[\x21-\x7e]+$/.test(text)) return refuse('want a path, a line feed and a token');
    if (reviews >= limits.reviews) return refuse('too many tokens are being reviewed at once');
    reviews += 1;
    try {
      const said = await review(text.slice(end + 1), text.slice(0, end));
      await send(peer, frameOf(REPLY.answer, id, said));
    } catch (error) {
      await refuse((error as Error).message);
    } finally {
      reviews -= 1;
    }
  };

  /** Reads no further while an answer is under way: what is asked meanwhile waits in the kernel, and then in whoever asks. */
  const attend = async (peer: Peer): Promise<string | undefined> => {
    const cutter = createFrameParser(limits.requestBytes);
    let second = { fromMs: performance.now(), answers: 0 };
    for await (const piece of peer.socket) {
      const { frames, wrong } = cutter.push(piece as Buffer);
      for (const frame of frames) {
        if (!peer.greeted) {
          if (frame.kind !== HELLO || textOf(frame.payload) !== GREETING) return 'no greeting';
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
        if (frame.kind === ASK.review) void judge(peer, frame);
        else if (frame.kind >= ASK.page && frame.kind < ASK.review) {
          if (frame.payload.byteLength > 0) return `a request of kind ${frame.kind} with something in it`;
          await sendInTime(peer, await answerTo(frame.kind, frame.id));
        } else return `a request of kind ${frame.kind}`;
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
    attend(peer)
      .then((wrong) => {
        if (wrong !== undefined) onProblem(`${path}: whoever is connected says what no exporter half says: ${wrong}`);
      })
      .catch(() => {}) // it went away
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
    throw new Error(`${path} cannot be given to user ${options.user} (page.socketUser): ${(error as Error).message}`);
  }

  return {
    publish(now) {
      newest = healthOf(now);
      made.clear();
      tellAll(health(newest));
    },
    beat() {
      if (performance.now() - toldAtMs >= limits.beatMs) tellAll(frameOf(REPLY.beat, 0));
    },
    async close() {
      const closed = once(server, 'close');
      server.close();
      for (const { socket } of peers) socket.destroy();
      await closed;
    },
  };
}
