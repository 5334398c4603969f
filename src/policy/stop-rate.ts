// How many containers a node stops within a minute, and in which order. Pure. A tenant can have as many containers
// stopped as it likes, so the rate is not first come, first served: containers that were stopped already leave part of
// it to those that were not, a namespace leaves part of it to others, and a container that waits for the rate comes
// before those that are due later.

/** A stop whose signal was sent. `atMs`: by the clock that decisions go by. */
export type Stop = { readonly atMs: number; readonly grantId: string; readonly namespace: string };

const WINDOW_MS = 60_000;

export const recentStops = (stops: readonly Stop[], nowMs: number): readonly Stop[] =>
  stops.filter(({ atMs }) => nowMs - atMs < WINDOW_MS);

/** An action and what came of it, as the audit log has them. */
type Attempt = {
  readonly action: string;
  readonly result: string;
  readonly grantId: string;
  readonly namespace: string;
};

/** Counts a stop for the rate. One that reached no process is none, and a SIGKILL behind a SIGTERM is the same stop. */
export function countStop(
  stops: readonly Stop[],
  { action, result, grantId, namespace }: Attempt,
  isStopCounted: boolean,
  atMs: number,
): { readonly stops: readonly Stop[]; readonly isStopCounted?: boolean } {
  if (action === 'refuse') return { stops, isStopCounted };
  const isStop = (action === 'kill' || action === 'terminate') && (result === 'sent' || result === 'interrupted');
  const isNew = isStop && !isStopCounted;
  return {
    stops: isNew ? [...recentStops(stops, atMs), { atMs, grantId, namespace }] : stops,
    isStopCounted: isStop && action === 'terminate',
  };
}

/** Why the rate does not allow another stop after these of the last minute, as a sentence; undefined: it does. */
export function rateRefusal(
  recent: readonly Stop[],
  grant: { readonly id: string; readonly namespace: string },
  mostPerMinute: number,
): string | undefined {
  if (recent.length >= mostPerMinute) return `${recent.length} containers were stopped within a minute`;
  const wasStopped = recent.some(({ grantId }) => grantId === grant.id);
  const mostOfRepeated = mostPerMinute - Math.floor(mostPerMinute / 3);
  if (wasStopped && recent.length >= mostOfRepeated)
    return `${recent.length} containers were stopped within a minute; the remaining stops are reserved for containers that were not stopped yet`;
  const ofNamespace = recent.filter(({ namespace }) => namespace === grant.namespace).length;
  const mostOfNamespace = mostPerMinute - Math.floor(mostPerMinute / 6);
  return ofNamespace >= mostOfNamespace
    ? `${ofNamespace} containers of this namespace were stopped within a minute`
    : undefined;
}

type StopPriority = {
  /** Stops of this container in the last minute. */
  readonly stops: number;
  /** Since when a stop is due that the rate did not allow. */
  readonly waitingSinceMs: number | undefined;
  readonly overBytes: number;
};

/** Sort order: least often stopped first, then longest waiting, then most bytes over. */
export const stopOrder = (a: StopPriority, b: StopPriority): number =>
  a.stops - b.stops ||
  Math.sign((a.waitingSinceMs ?? Number.MAX_VALUE) - (b.waitingSinceMs ?? Number.MAX_VALUE)) ||
  b.overBytes - a.overBytes;
