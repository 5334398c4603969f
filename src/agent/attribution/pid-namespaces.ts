// Processes as they see themselves in their own PID namespaces, for all that this agent can see. Whom it is asked about is
// a tenant's word, so /proc is looked through rarely: one that was found is looked at again by itself, and one that says it is
// older than the last look through all, and was not there, is gone.
import { readdirSync } from 'node:fs';
import { uptime } from 'node:os';
import type { Native } from '../os/addon.ts';

/** Of the unit of start times, on every machine that there is. */
const TICKS_PER_SECOND = 100;
/** A process that started so shortly before a scan of /proc may have been missed by it. */
const MARGIN_TICKS = TICKS_PER_SECOND;
/** Looking through all takes at most this part of the time. */
const MOST_OF_TIME = 1 / 20;

/** In the place of a pid that could not be read: it may be any of its namespace and start time. */
const ANY = 'any';

export type InsideClock = {
  /** Since the machine's start. */
  readonly ticks: () => number;
  readonly nowMs: () => number;
};
const CLOCK: InsideClock = { ticks: () => uptime() * TICKS_PER_SECOND, nowMs: () => performance.now() };

/** Does the process exist? True also where it cannot be distinguished from a living one, or not yet. */
export function insideSnapshot(
  native: Pick<Native, 'readProcess'>,
  clock: InsideClock = CLOCK,
  pids: () => readonly string[] = () => readdirSync('/proc'),
): (pidNamespace: number, pid: number, startTicks: number) => boolean {
  /** Pids here of processes by what they are inside. */
  let seen = new Map<string, number>();
  let seenTicks = 0;
  let nextLookMs = Number.NEGATIVE_INFINITY;
  const keyOf = (pid: number): string | undefined => {
    const facts = native.readProcess(pid);
    if (!facts || facts.ended) return undefined;
    return `${facts.pidNamespace} ${facts.namespacePid ?? ANY} ${facts.startTicks}`;
  };
  const find = (keys: readonly string[]): boolean =>
    keys.some((key) => {
      const pid = seen.get(key);
      if (pid === undefined) return false;
      if (keyOf(pid) === key) return true;
      seen.delete(key);
      return false;
    });
  const lookThroughAll = () => {
    const startMs = clock.nowMs();
    seenTicks = clock.ticks();
    seen = new Map(
      pids()
        .filter((name) => /^\d+$/.test(name))
        .flatMap((name): [string, number][] => {
          const key = keyOf(Number(name));
          return key === undefined ? [] : [[key, Number(name)]];
        }),
    );
    // Where not even this process was found, /proc could not be read, which proves nothing.
    if (![...seen.values()].includes(process.pid)) seenTicks = 0;
    nextLookMs = clock.nowMs() + (clock.nowMs() - startMs) / MOST_OF_TIME;
  };
  return (pidNamespace, pid, startTicks) => {
    const keys = [pid, ANY].map((inside) => `${pidNamespace} ${inside} ${startTicks}`);
    if (find(keys)) return true;
    if (startTicks < seenTicks - MARGIN_TICKS) return false;
    if (clock.nowMs() < nextLookMs) return true;
    lookThroughAll();
    return find(keys) || seenTicks === 0;
  };
}
