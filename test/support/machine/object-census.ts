// What this process keeps after a garbage collection: objects in its heap, timers, sockets and descriptors. Between two
// equal states of a program there are as many, so that one object kept of each change is found however small it is.
import { readdirSync } from 'node:fs';
import { setImmediate as turn } from 'node:timers/promises';
import { queryObjects } from 'node:v8';
import { MIB } from '../../../src/common/quantity.ts';

export type Census = {
  /** By constructor; `Object` are all but those without a prototype. */
  readonly objects: Readonly<Record<string, number>>;
  readonly heapMib: number;
  readonly timers: number;
  readonly sockets: number;
  readonly descriptors: number;
};

const KINDS = [Object, Array, Map, Set, Promise, Function, ArrayBuffer];

/** Connections of both ends, and servers. */
export const openSockets = (): number =>
  process.getActiveResourcesInfo().filter((kind) => /^(TCPSocketWrap|TCPServerWrap|TLSWrap)$/.test(kind)).length;

export async function takeCensus(): Promise<Census> {
  // What ended in this turn is let go of in the next ones.
  for (let round = 0; round < 3; round += 1) await turn();
  // Counts after a full collection.
  const objects = Object.fromEntries(KINDS.map((kind) => [kind.name, queryObjects(kind, { format: 'count' })]));
  return {
    objects,
    heapMib: process.memoryUsage().heapUsed / MIB,
    timers: process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length,
    sockets: openSockets(),
    descriptors: readdirSync('/proc/self/fd').length,
  };
}

/** So many more timers, sockets or descriptors are a leak: a kept connection comes and goes by itself. */
export const LEAKED = 3;

/** Sentences about what there is more of than before: empty where nothing grew by as much as is allowed. */
export function grown(
  before: Census,
  after: Census,
  most: { readonly objects: number; readonly mib: number },
): string[] {
  const pairs = [
    ...Object.keys(before.objects).map(
      (kind) => [kind, before.objects[kind], after.objects[kind], most.objects] as const,
    ),
    ['MiB of heap', before.heapMib, after.heapMib, most.mib] as const,
    ...(['timers', 'sockets', 'descriptors'] as const).map(
      (what) => [what, before[what], after[what], LEAKED] as const,
    ),
  ];
  return pairs.flatMap(([what, then = 0, now = 0, bound]) =>
    now - then < bound ? [] : [`${now} ${what}, before ${then}`],
  );
}

/** How many of what comes so often in an hour: for the simulated hours in COTENANT_CHURN_HOURS; by default `few`. */
export function inSimulatedHours(perHour: number, few: number): number {
  const hours = process.env.COTENANT_CHURN_HOURS;
  return hours === undefined ? few : perHour * Number(hours);
}
