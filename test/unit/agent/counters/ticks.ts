// Totals after samples of one grant's processes and of processes without a grant, for the tests of counters.
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import { accumulate } from '../../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS, type Totals } from '../../../../src/agent/counters/totals.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofContainer,
  ofGrant,
  owners,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

export const START = 1_700_000_000_000;

export const ONE = ofGrant('one');

export const FOREIGN = ofContainer('f'.repeat(64));

export const OWNERS: Readonly<Record<number, Owner>> = { 11: ONE, 12: ONE, 21: FOREIGN };

export type Tick = {
  readonly second: number;
  readonly processes?: readonly SampledProcess[];
  readonly denied?: number;
  readonly unknown?: number;
  /** The grant no longer exists. */
  readonly ended?: boolean;
  /** Of its sampler; another one counts from the last report of its predecessor. */
  readonly round?: number;
  /** By how much the time of day is wrong. */
  readonly setSeconds?: number;
};

export const busy = (pid: number, smUs: number, more: Partial<Parameters<typeof use>[1]> = {}) =>
  sampledProcess(pid, [use(0, { smUs, memoryUs: smUs / 2, ...more })]);

/** Totals after each tick; the grant is of 100 MiB, and its processes are in its ledger. */
export function run(ticks: readonly Tick[]): Totals[] {
  let totals = NO_TOTALS;
  return ticks.map(({ second, processes = [], denied = 0, unknown = 0, ended = false, round, setSeconds = 0 }) => {
    const slots = processes.filter((process) => OWNERS[process.pid] === ONE).map(({ pid }) => slot(pid, [row()]));
    const grants = ended ? [] : [reading(grantOf('one', 100), ledgerOf(slots, { denied: [denied], unknown }))];
    const next = sampleOf([gpu(0)], processes, START + (second + setSeconds) * 1000, (second + 1e6) * 1e9);
    const sample = round === undefined ? next : { ...next, round };
    totals = accumulate(totals, compared(sample, grants, OWNERS), owners(OWNERS));
    return totals;
  });
}

export const one = (totals: Totals | undefined) => totals?.containers.get('one GPU-0');

export const foreign = (totals: Totals | undefined) => [...(totals?.foreign.values() ?? [])][0];
