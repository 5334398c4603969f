// How many stops a node makes in a minute, and whose turn it is: no I/O. A tenant can have as many containers stopped as it
// likes, so the rate must not be for whoever is first or worst: what was stopped already comes last and leaves room for what
// was not, a namespace leaves room for others, and whoever waits comes before those that come after.

import type { ActionRecord } from './action-record.ts';

export type Stop = { readonly atMs: number; readonly grantId: string; readonly namespace: string };

const WINDOW_MS = 60_000;

export type Stops = {
  /** An attempt that reached nobody is none, and a SIGKILL behind a SIGTERM is the same stop. `atMs`: by the clock of `steady`. */
  count(record: Pick<ActionRecord, 'action' | 'result' | 'grantId' | 'namespace'>, atMs: number): void;
  /** Of the last minute. */
  recent(): readonly Stop[];
  /** Its container had its SIGTERM, which is counted. */
  isBegun(grantId: string): boolean;
  /** Of grants that are gone nothing goes on. */
  forgetAllBut(grantIds: ReadonlySet<string>): void;
};

export function createStops(steady: () => number): Stops {
  let stops: readonly Stop[] = [];
  const begun = new Set<string>();
  const recent = () => stops.filter(({ atMs }) => steady() - atMs < WINDOW_MS);
  return {
    count({ action, result, grantId, namespace }, atMs) {
      if (action === 'refuse') return;
      const isStop = (action === 'kill' || action === 'terminate') && (result === 'sent' || result === 'interrupted');
      if (isStop && !begun.has(grantId)) stops = [...recent(), { atMs, grantId, namespace }];
      if (isStop && action === 'terminate') begun.add(grantId);
      else begun.delete(grantId);
    },
    recent,
    isBegun: (grantId) => begun.has(grantId),
    forgetAllBut(grantIds) {
      for (const id of begun) if (!grantIds.has(id)) begun.delete(id);
    },
  };
}

/** Why a container may not be stopped now, with these stops in the last minute; undefined: it may. */
export function whyNotNow(
  recent: readonly Stop[],
  grant: { readonly id: string; readonly namespace: string },
  mostPerMinute: number,
): string | undefined {
  if (recent.length >= mostPerMinute) return `${recent.length} containers were stopped within a minute`;
  const again = recent.some(({ grantId }) => grantId === grant.id);
  const mostOfAgain = mostPerMinute - Math.floor(mostPerMinute / 3);
  if (again && recent.length >= mostOfAgain)
    return `${recent.length} containers were stopped within a minute, and what is left is for those that were not`;
  const ofNamespace = recent.filter(({ namespace }) => namespace === grant.namespace).length;
  const mostOfNamespace = mostPerMinute - Math.floor(mostPerMinute / 6);
  return ofNamespace >= mostOfNamespace
    ? `${ofNamespace} containers of its namespace were stopped within a minute`
    : undefined;
}

export type Turn = {
  /** Of this container in the last minute. */
  readonly stops: number;
  /** Since when it should have been stopped. */
  readonly waitingSinceMs: number | undefined;
  readonly overBytes: number;
};

/** For sorting: who was stopped least, then who waits longest, then who is over by most. */
export const byTurn = (a: Turn, b: Turn): number =>
  a.stops - b.stops ||
  Math.sign((a.waitingSinceMs ?? Number.MAX_VALUE) - (b.waitingSinceMs ?? Number.MAX_VALUE)) ||
  b.overBytes - a.overBytes;
