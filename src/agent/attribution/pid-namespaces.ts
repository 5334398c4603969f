// Finds processes by their PID in their own PID namespace, as far as /proc shows them to this agent. The PID comes from
// a tenant, so
// /proc is scanned rarely: a process that was found is checked by itself, and a process that started before the last
// scan and was not in it has ended.
import { readdirSync } from 'node:fs';
import { uptime } from 'node:os';
import type { Native } from '../os/addon.ts';
import { possibleStarts } from '../os/start-times.ts';

/** USER_HZ, the unit of start times in /proc: 100 on all architectures with NVIDIA GPUs. */
const TICKS_PER_SECOND = 100;
/** A process that started so shortly before a scan of /proc may have been missed by it. */
const MARGIN_TICKS = TICKS_PER_SECOND;
/** Scans take at most this part of the time. */
const MOST_OF_TIME = 1 / 20;

/** Instead of a PID that could not be read: such a process matches any PID of its namespace and start time. */
const ANY = 'any';

type InsideClock = {
  /** Since boot. */
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
  /** PIDs in the agent's namespace by PID namespace, PID inside and start time. */
  let seen = new Map<string, number>();
  let scannedTicks = 0;
  let nextScanMs = Number.NEGATIVE_INFINITY;
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
  const scanProc = () => {
    const startMs = clock.nowMs();
    scannedTicks = clock.ticks();
    seen = new Map(
      pids()
        .filter((name) => /^\d+$/.test(name))
        .flatMap((name): [string, number][] => {
          const key = keyOf(Number(name));
          return key === undefined ? [] : [[key, Number(name)]];
        }),
    );
    // If not even this process was found, /proc could not be read: the scan proves nothing.
    if (![...seen.values()].includes(process.pid)) scannedTicks = 0;
    nextScanMs = clock.nowMs() + (clock.nowMs() - startMs) / MOST_OF_TIME;
  };
  return (pidNamespace, pid, startTicks) => {
    const keys = possibleStarts(startTicks).flatMap((ticks) =>
      [pid, ANY].map((inside) => `${pidNamespace} ${inside} ${ticks}`),
    );
    if (find(keys)) return true;
    if (startTicks < scannedTicks - MARGIN_TICKS) return false;
    if (clock.nowMs() < nextScanMs) return true;
    scanProc();
    return find(keys) || scannedTicks === 0;
  };
}
