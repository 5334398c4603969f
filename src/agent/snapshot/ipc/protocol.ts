// Protocol of the socket between the agent's two halves. The exporter half sends the requests listed here; the node half answers them
// and announces each new snapshot. Both run the same version in one pod: an incompatible change needs another GREETING. Snapshots are
// JSON: measured on 80 containers with 10 processes each, writing took 0.5 ms and parsing 0.9 ms; V8's serializer took 0.6 and 1.4 ms.

import { isObject } from '../../../common/json.ts';
import type { Reviewed } from '../../../kube/token-review.ts';
import type { Encoded, Material, SnapshotHealth } from '../source.ts';

/** The first frame in each direction; its payload is GREETING. */
export const HELLO = 1;
export const GREETING = 'cotenant snapshots 1';

/** Requests; only the last one has a payload. */
export const ASK = {
  page: 2,
  pageWithProcesses: 3,
  status: 4,
  history: 5,
  own: 6,
  /** Path, line feed, token. */
  review: 7,
} as const;
export type AskKind = (typeof ASK)[keyof typeof ASK];

export const REPLY = {
  /** Announces a new snapshot; payload: its health as JSON. */
  health: 16,
  /** Heartbeat without news: silence then means that the node half hangs. */
  beat: 17,
  answer: 18,
  /** Instead of an answer; payload: the reason. */
  refusal: 19,
} as const;

export const LIMITS = {
  /** Of a request: the longest one holds a token, and the HTTP server accepts no longer header. */
  requestBytes: 20_000,
  /** Of an answer: a hundred times the snapshot of 800 processes. */
  answerBytes: 16 << 20,
  /** A client without a greeting after this time is disconnected. */
  helloMs: 5000,
  /** A client that does not read its answer within this time is disconnected. */
  stallMs: 10_000,
  peers: 8,
  /** Per client; further requests wait. One scrape per second and two status pages need a tenth of it. */
  answersPerSecond: 50,
  reviews: 8,
  /** Interval of heartbeats, and the silence after which the node half counts as hung. */
  beatMs: 5000,
  silenceMs: 15_000,
  /** Timeouts of an answer, and of a page's snapshot: longer than a scrape waits, which then reports that the page is late. */
  answerMs: 8000,
  pageMs: 20_000,
  problemChars: 1000,
} as const;
export type Limits = { readonly [K in keyof typeof LIMITS]: number };

export const textOf = (bytes: Uint8Array): string =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString();

const LISTS = [
  'devices',
  'containers',
  'assigned',
  'foreign',
  'containerTotals',
  'assignedTotals',
  'foreignTotals',
  'xids',
  'kills',
  'errors',
  'recent',
] as const;

/** The first invalid field of a snapshot; undefined: none. Does not check the content of list entries. */
export function wrongWithSnapshot(snapshot: unknown): string | undefined {
  if (!isObject(snapshot)) return 'snapshot: expected an object';
  for (const name of ['atMs', 'cudaVersion', 'unknownDevices'])
    if (typeof snapshot[name] !== 'number') return `snapshot.${name}: expected a number`;
  if (typeof snapshot.driverVersion !== 'string') return 'snapshot.driverVersion: expected a string';
  for (const name of LISTS) {
    const list = snapshot[name];
    if (!Array.isArray(list)) return `snapshot.${name}: expected a list`;
    const stray = list.findIndex((entry) => !isObject(entry));
    if (stray >= 0) return `snapshot.${name}[${stray}]: expected an object`;
  }
  if (!isObject(snapshot.self) || typeof snapshot.self.up !== 'boolean')
    return 'snapshot.self.up: expected true or false';
  return undefined;
}

export const encoded = (material: Material): string => JSON.stringify(material);

/** Throws an error that names the invalid field. */
export function materialFrom(bytes: Encoded): Material {
  const value: unknown = JSON.parse(textOf(bytes));
  const wrong = !isObject(value)
    ? 'expected an object with snapshot and own'
    : typeof value.own !== 'string'
      ? 'own: expected a string'
      : wrongWithSnapshot(value.snapshot);
  if (wrong !== undefined) throw new Error(`the node half sent an invalid snapshot: ${wrong}`);
  return value as unknown as Material;
}

export function parseHealth(bytes: Uint8Array): SnapshotHealth {
  const value: unknown = JSON.parse(textOf(bytes));
  if (!isObject(value) || typeof value.up !== 'boolean') throw new Error('up: expected true or false');
  return typeof value.problem === 'string' ? { up: value.up, problem: value.problem } : { up: value.up };
}

const REVIEWED: readonly string[] = ['allowed', 'unauthenticated', 'forbidden'] satisfies readonly Reviewed[];

export function reviewedFrom(bytes: Uint8Array): Reviewed {
  const result = textOf(bytes);
  if (!REVIEWED.includes(result))
    throw new Error(`the node half sent an unknown result of a token review: ${JSON.stringify(result.slice(0, 40))}`);
  return result as Reviewed;
}
