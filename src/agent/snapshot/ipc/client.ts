// The exporter half's client of the snapshot socket: stays connected to the node half, knows the health of the latest snapshot, and
// requests the snapshot for each scrape. Checks the size and shape of answers, so that invalid data never becomes a metric.
import { connect, type Socket } from 'node:net';
import { isObject } from '../../../common/json.ts';
import type { ReviewCall } from '../../../kube/token-review.ts';
import type { Encoded, SnapshotHealth, Source } from '../source.ts';
import { createFrameParser, type Frame, frameOf } from './frames.ts';
import {
  ASK,
  type AskKind,
  GREETING,
  HELLO,
  LIMITS,
  type Limits,
  parseHealth,
  REPLY,
  reviewedFrom,
  textOf,
  wrongWithSnapshot,
} from './protocol.ts';

export type SnapshotClient = Source & { close(): Promise<void> };

export type FollowOptions = {
  readonly path: string;
  /** Undefined: the node half does not answer, or has no snapshot yet. */
  readonly onHealth: (health: SnapshotHealth | undefined) => void;
  /** Let the node half review tokens. */
  readonly reviews: boolean;
  readonly log: (text: string) => void;
  readonly limits?: Limits;
};

const LEAST_WAIT_MS = 100;
const MOST_WAIT_MS = 2000;

type PendingRequest = { resolve(payload: Encoded): void; reject(error: Error): void; readonly timer: NodeJS.Timeout };

export function followSnapshots({ path, onHealth, reviews, log, limits = LIMITS }: FollowOptions): SnapshotClient {
  const asked = new Map<number, PendingRequest>();
  let socket: Socket | undefined;
  let isConnected = false;
  let health: SnapshotHealth | undefined;
  let disconnectReason = 'the socket was not reached yet';
  let loggedReason: string | undefined;
  let lastId = 0;
  let waitMs = LEAST_WAIT_MS;
  let again: NodeJS.Timeout | undefined;
  let closed = false;

  const disconnectedError = () => new Error(`the node half does not answer: ${disconnectReason}`);
  const begin = () => {
    const mine = connect(path);
    socket = mine;
    let why: string | undefined;
    const cutter = createFrameParser(limits.answerBytes);
    const fail = (reason: string) => {
      why ??= reason;
      mine.destroy();
    };
    // Not the socket's own timeout, which writes by this half would reset, too.
    const silence = setTimeout(() => fail(`no data for ${limits.silenceMs / 1000} s`), limits.silenceMs);
    mine.on('connect', () => mine.write(frameOf(HELLO, 0, GREETING)));
    mine.on('data', (piece) => {
      silence.refresh();
      const { frames, wrong } = cutter.push(piece as Buffer);
      for (const frame of frames) {
        const problem = handleFrame(frame);
        if (problem !== undefined) return fail(problem);
      }
      if (wrong !== undefined) fail(wrong);
    });
    mine.on('error', ({ message }) => {
      why ??= message;
    });
    mine.on('close', () => {
      clearTimeout(silence);
      disconnected(why ?? 'the node half closed the connection');
    });
  };
  /** Handles a frame; returns why it is invalid. */
  const handleFrame = ({ kind, id, payload }: Frame): string | undefined => {
    if (!isConnected) {
      if (kind !== HELLO || textOf(payload) !== GREETING)
        return `${path} does not belong to a node half of this version`;
      isConnected = true;
      waitMs = LEAST_WAIT_MS;
      if (loggedReason !== undefined) log('the node half answers again');
      loggedReason = undefined;
      return undefined;
    }
    if (kind === REPLY.beat) return undefined;
    if (kind === REPLY.health) {
      try {
        health = parseHealth(payload);
      } catch (error) {
        return `invalid snapshot health: ${(error as Error).message}`;
      }
      onHealth(health);
      return undefined;
    }
    if (kind !== REPLY.answer && kind !== REPLY.refusal) return `a frame of unknown kind ${kind}`;
    // Undefined if the answer came after the request's timeout.
    const waiting = asked.get(id);
    forget(id);
    if (kind === REPLY.answer) waiting?.resolve(payload);
    else waiting?.reject(new Error(textOf(payload)));
    return undefined;
  };
  const forget = (id: number) => {
    clearTimeout(asked.get(id)?.timer);
    asked.delete(id);
  };
  const disconnected = (why: string) => {
    socket = undefined;
    disconnectReason = why;
    isConnected = false;
    for (const [id, { reject }] of asked) {
      forget(id);
      reject(disconnectedError());
    }
    if (health) onHealth(undefined);
    health = undefined;
    if (closed) return;
    if (why !== loggedReason) log(`${disconnectedError().message}; connecting again`);
    loggedReason = why;
    again = setTimeout(begin, waitMs);
    waitMs = Math.min(2 * waitMs, MOST_WAIT_MS);
  };

  const ask = (kind: AskKind, payload = ''): Promise<Encoded> => {
    const { promise, resolve, reject } = Promise.withResolvers<Encoded>();
    if (!socket || !isConnected) {
      reject(disconnectedError());
      return promise;
    }
    lastId = (lastId % 0xffffffff) + 1;
    const id = lastId;
    const ms = kind === ASK.page || kind === ASK.pageWithProcesses ? limits.pageMs : limits.answerMs;
    const timer = setTimeout(() => {
      forget(id);
      reject(new Error(`the node half did not answer within ${ms / 1000} s`));
    }, ms);
    asked.set(id, { resolve, reject, timer });
    socket.write(frameOf(kind, id, payload));
    return promise;
  };
  const review: ReviewCall = async (token, path) => reviewedFrom(await ask(ASK.review, `${path}\n${token}`));

  begin();
  return {
    health: () => health,
    // Parsed in the thread that renders the page.
    material: (withProcesses) => ask(withProcesses ? ASK.pageWithProcesses : ASK.page),
    async status() {
      const bytes = await ask(ASK.status);
      const value: unknown = JSON.parse(textOf(bytes));
      const wrong = value === null ? undefined : wrongWithSnapshot(value);
      if (wrong !== undefined) throw new Error(`the node half sent an invalid snapshot: ${wrong}`);
      return bytes;
    },
    async history() {
      const bytes = await ask(ASK.history);
      const value: unknown = JSON.parse(textOf(bytes));
      if (!isObject(value) || !Array.isArray(value.atMs) || !isObject(value.gpus) || !isObject(value.containers))
        throw new Error('the node half sent an invalid history: expected atMs, gpus and containers');
      return bytes;
    },
    own: async () => (isConnected ? textOf(await ask(ASK.own)) : ''),
    ...(reviews && { review }),
    async close() {
      closed = true;
      clearTimeout(again);
      if (!socket) return;
      const ended = new Promise((resolve) => socket?.once('close', resolve));
      socket.destroy();
      await ended;
    },
  };
}
