// GPU time of clients per window, from the simulated node's usage, and the scheduling delays of the processes that take
// part. Shares in real time include the machine's noise, so bounds are wider below than above: a tenant that gets no
// CPU to launch gets less, but none ever gets more. The allowance is the measured delay only, down to half of a share.
import { setTimeout as delay } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { delayedMs, serving } from '../machine/scheduling-delays.ts';
import { eventually, type SimulatedNode } from './node.ts';

const WINDOW_MS = 1000;
const MISSING = 0.15;
const MOST_WINDOWS = 12;
/** Windows with more delay than this are counted separately: the machine may have no better ones for minutes. */
const BUSY_PERCENT = 50;
const MOST_BUSY_WINDOWS = 180;
const MOST_MS = 2 * (MOST_WINDOWS + MOST_BUSY_WINDOWS) * WINDOW_MS;

export const ranMs = (node: SimulatedNode, pid: number | undefined): number =>
  (node
    .usage()
    .clients.find((client) => client.pid === pid)
    ?.gpus.reduce((sum, { smNs }) => sum + smNs, 0) ?? 0) / 1e6;

export type Window = {
  /** Percent of the GPU that each client had. */
  readonly shares: readonly number[];
  /** Percent of the window for which each client and its servers were delayed. */
  readonly held: readonly number[];
};

/** One window, starting when all are at work. */
export async function windowOf(node: SimulatedNode, pids: readonly number[], ms = WINDOW_MS): Promise<Window> {
  await eventually(() => (pids.every((pid) => ranMs(node, pid) > 20) ? true : undefined), 'all are at work');
  const servants = serving();
  const waited = () => pids.map((pid) => [pid, ...servants].reduce((sum, one) => sum + delayedMs(one), 0));
  const ran = () => pids.map((pid) => ranMs(node, pid));
  const from = performance.now();
  const [waitedBefore, ranBefore] = [waited(), ran()];
  await delay(ms);
  const ranAfter = ran();
  const waitedAfter = waited();
  const percents = (after: readonly number[], before: readonly number[]) =>
    after.map((sum, index) => (100 * Math.max(0, sum - (before[index] ?? 0))) / (performance.now() - from));
  return { shares: percents(ranAfter, ranBefore), held: percents(waitedAfter, waitedBefore) };
}

export const isBusy = ({ held }: Pick<Window, 'held'>): boolean => held.some((percent) => percent > BUSY_PERCENT);

/**
 * Measures until `count` windows had little enough delay: only these show that a client did not get its share. Fails if
 * there are too few.
 */
export async function untilQuiet(
  t: ExecutionContext,
  look: () => Promise<Pick<Window, 'held'>>,
  { count = 1 }: { count?: number } = {},
): Promise<void> {
  t.timeout(MOST_MS);
  const seen: string[] = [];
  for (let quiet = 0; quiet < count; ) {
    const window = await look();
    seen.push(window.held.map((percent) => percent.toFixed(1)).join('/'));
    if (!isBusy(window)) quiet += 1;
    else if (seen.length - quiet > MOST_BUSY_WINDOWS)
      throw new Error(`the machine holds everybody up, percent of each second: ${seen.join(' ')}`);
  }
}

export const sharesOf = async (node: SimulatedNode, pids: readonly number[], ms?: number): Promise<readonly number[]> =>
  (await windowOf(node, pids, ms)).shares;

/**
 * In no window does a client have more than its share, apart from `above` points, and in at least one window, soon, all
 * of them have theirs. `lent`: clients whose percentage is only an upper bound. `lends`: a policy under which a client may
 * have what delays kept from the others. The number printed after each share is the client's delay in percent of the
 * window. `missing`: the fraction of a share that may be missing without any delay.
 */
export async function hold(
  t: ExecutionContext,
  node: SimulatedNode,
  pids: readonly number[],
  percents: readonly number[],
  {
    above = 2,
    lent = [],
    lends = false,
    missing = MISSING,
    what = '',
  }: { above?: number; lent?: readonly number[]; lends?: boolean; missing?: number; what?: string } = {},
): Promise<void> {
  t.timeout(MOST_MS);
  const seen: string[] = [];
  let met = false;
  for (let quiet = 0, busy = 0; quiet < MOST_WINDOWS && busy < MOST_BUSY_WINDOWS && !met; ) {
    const { shares, held } = await windowOf(node, pids);
    if (isBusy({ held })) busy += 1;
    else quiet += 1;
    seen.push(shares.map((share, index) => `${share.toFixed(1)}-${(held[index] ?? 0).toFixed(1)}`).join('/'));
    const others = (index: number) => held.reduce((sum, one, other) => (other === index ? sum : sum + one), 0);
    for (const [index, share] of shares.entries())
      t.true(
        share <= (percents[index] ?? 0) + above + (lends ? others(index) : 0),
        `${what} more than ${percents[index]} %: ${seen.join(' ')}`,
      );
    met = shares.every((share, index) => {
      const percent = percents[index] ?? 0;
      const enough = Math.max(percent * (1 - missing) - (held[index] ?? 0), percent / 2);
      return share >= enough || lent.includes(index);
    });
  }
  t.log(`${what} ${seen.join(' ')}`.trim());
  t.true(met, `${what} never ${percents.join('/')} at a time: ${seen.join(' ')}`);
}
