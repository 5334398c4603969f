// The audit, the counts of stops and the counters of before put together, so that each line of the audit is counted once, by this
// agent or by the next one.

import { type Audit, isNamed, openAudit } from '../enforcement/audit-log.ts';
import { type Counted, type Counters, openCounters } from './checkpoint.ts';
import type { Kept } from './checkpoint-format.ts';
import { createKillBook, type KillBook } from './stop-counts.ts';

export type Counting = Pick<Counters, 'close'> & {
  /** What is added is counted in the same turn. */
  readonly audit: Audit;
  readonly kills: KillBook;
  /** Of agents before this one. */
  readonly earlier: Kept;
  /** With each sample, before it is published. */
  keep(counted: Omit<Counted, 'kills'>): void;
};

export function openCounting(
  stateFolder: string,
  { onProblem, clock }: { readonly onProblem: (text: string) => void; readonly clock: () => number },
): Counting {
  const audit = openAudit(stateFolder, onProblem);
  const counters = openCounters({ stateFolder, audit, onProblem, clock });
  const { earlier, uncounted } = counters;
  const kills = createKillBook({ ...earlier, atMs: Date.now(), recent: audit.steps() });
  kills.add(uncounted);
  return {
    audit: {
      ...audit,
      add(record) {
        audit.add(record);
        // That one was counted, and could not be written: what is told of it now is that.
        const isCounted = record.result === 'interrupted' && earlier.audit.ahead?.some((one) => isNamed(one, record));
        if (!isCounted) kills.add([record]);
      },
    },
    kills,
    earlier,
    keep(counted) {
      audit.retry();
      counters.keep({ ...counted, kills: kills.kept });
    },
    close() {
      audit.retry();
      counters.close();
    },
  };
}
