// The exporter half's end of the socket: stays connected to the node half, knows how it stands with the newest snapshot, and asks for it
// when somebody wants it. What comes is bounded and its shape is checked, for a page of nonsense would be believed.
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
  /** Undefined: the node half is away, or has no snapshot yet. */
  readonly onHealth: (health: SnapshotHealth | undefined) => void;
  /** Where the node half is asked about tokens. */
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
  let isHere = false;
  let health: SnapshotHealth | undefined;
  let away = 'it was not reached yet';
  let told: string | undefined;
  let lastId = 0;
  let waitMs = LEAST_WAIT_MS;
  let again: NodeJS.Timeout | undefined;
  let closed = false;

  const awayError = () => new Error(`the node half does not answer: ${away}`);
  const begin = () => {
    const mine = connect(path);
    socket = mine;
    let why: string | undefined;
    const cutter = createFrameParser(limits.answerBytes);
    const fail = (reason: string) => {
      why ??= reason;
      mine.destroy();
    };
    // Not the socket's own: that one would count what this half writes, too.
    const silence = setTimeout(() => fail(`it has said nothing for ${limits.silenceMs / 1000} s`), limits.silenceMs);
    mine.on('connect', () => mine.write(frameOf(HELLO, 0, GREETING)));
    mine.on('data', (piece) => {
      silence.refresh();
      const { frames, wrong } = cutter.push(piece as Buffer);
      for (const frame of frames) {
        const problem = take(frame);
        if (problem !== undefined) return fail(problem);
      }
      if (wrong !== undefined) fail(wrong);
    });
    mine.on('error', ({ message }) => {
      why ??= message;
    });
    mine.on('close', () => {
      clearTimeout(silence);
      leave(why ?? 'it closed the connection');
    });
  };
  /** What is wrong with the frame. */
  const take = ({ kind, id, payload }: Frame): string | undefined => {
    if (!isHere) {
      if (kind !== HELLO || textOf(payload) !== GREETING)
        return `${path} is no socket of the node half of this version`;
      isHere = true;
      waitMs = LEAST_WAIT_MS;
      if (told !== undefined) log('the node half is back');
      told = undefined;
      return undefined;
    }
    if (kind === REPLY.beat) return undefined;
    if (kind === REPLY.health) {
      try {
        health = parseHealth(payload);
      } catch (error) {
        return `how it stands cannot be read: ${(error as Error).message}`;
      }
      onHealth(health);
      return undefined;
    }
    if (kind !== REPLY.answer && kind !== REPLY.refusal) return `a frame of kind ${kind}`;
    // Nobody waits any more for an answer that was late.
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
  const leave = (why: string) => {
    socket = undefined;
    away = why;
    isHere = false;
    for (const [id, { reject }] of asked) {
      forget(id);
      reject(awayError());
    }
    if (health) onHealth(undefined);
    health = undefined;
    if (closed) return;
    if (why !== told) log(`${awayError().message}; it is tried again`);
    told = why;
    again = setTimeout(begin, waitMs);
    waitMs = Math.min(2 * waitMs, MOST_WAIT_MS);
  };

  const ask = (kind: AskKind, payload = ''): Promise<Encoded> => {
    const { promise, resolve, reject } = Promise.withResolvers<Encoded>();
    if (!socket || !isHere) {
      reject(awayError());
      return promise;
    }
    lastId = (lastId % 0xffffffff) + 1;
    const id = lastId;
    const ms = kind === ASK.page || kind === ASK.pageWithProcesses ? limits.pageMs : limits.answerMs;
    const timer = setTimeout(() => {
      forget(id);
      reject(new Error(`the node half has not answered within ${ms / 1000} s`));
    }, ms);
    asked.set(id, { resolve, reject, timer });
    socket.write(frameOf(kind, id, payload));
    return promise;
  };
  const review: ReviewCall = async (token, path) => reviewedFrom(await ask(ASK.review, `${path}\n${token}`));

  begin();
  return {
    health: () => health,
    // Read in the page's thread.
    material: (withProcesses) => ask(withProcesses ? ASK.pageWithProcesses : ASK.page),
    async status() {
      const bytes = await ask(ASK.status);
      const value: unknown = JSON.parse(textOf(bytes));
      const wrong = value === null ? undefined : wrongWithSnapshot(value);
      if (wrong !== undefined) throw new Error(`what the node half sent is no snapshot: ${wrong}`);
      return bytes;
    },
    async history() {
      const bytes = await ask(ASK.history);
      const value: unknown = JSON.parse(textOf(bytes));
      if (!isObject(value) || !Array.isArray(value.atMs) || !isObject(value.gpus) || !isObject(value.containers))
        throw new Error('what the node half sent is no history: want atMs, GPUs and containers');
      return bytes;
    },
    own: async () => (isHere ? textOf(await ask(ASK.own)) : ''),
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
