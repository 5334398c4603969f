// Runs the compute arbiter (cotenant-arbitrate) as a child process: starts it with the first lease page, sends it a new
// plan when grants change, reads its reports, and restarts it when it ends. Until then containers use what it last
// wrote to their lease pages.
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import { SLOTS } from '../grants/files.ts';
import { BUILD_FOLDER } from '../os/addon.ts';
import { superviseProcess } from '../os/helper-process.ts';
import { type Planned, pageId, planLines, type Terms } from './arbiter-plan.ts';
import {
  type Account,
  type ArbiterReport,
  advanceAccount,
  type ComputeUse,
  NO_ACCOUNT,
  parseReport,
  useKey,
  withNewArbiter,
} from './usage-account.ts';

export type Arbiter = {
  /** Sends a new plan if the grants or the node's settings have changed. */
  follow(entries: readonly Planned[], terms: Terms): void;
  /** Use of a grant's GPU by its position in the grant; undefined: the arbiter does not divide it. */
  use(grantId: string, gpu: number): ComputeUse | undefined;
  close(): Promise<void>;
};

type ArbiterOptions = {
  readonly log: Pick<Logger, 'warn'>;
};

/** The arbiter knows at most so many GPUs (native/shared-memory/limits_page.h). */
const MOST_GPUS = 16;

export function createArbiter({ log }: ArbiterOptions): Arbiter {
  let isStarted = false;
  let number = 0;
  let lines: readonly string[] = [];
  /** Grant id by page id. */
  let grants = new Map<string, string>();
  /** All grants, also those without a lease page now: their counts continue when they get one again. */
  let live: ReadonlySet<string> = new Set();
  let account: Account = NO_ACCOUNT;
  const places = new Map<string, number>();
  const reported = new Set<string>();

  const placeOf = (gpuUuid: string): number => {
    const place = places.get(gpuUuid) ?? places.size;
    if (place >= MOST_GPUS) throw new Error(`more than ${MOST_GPUS} GPUs`);
    places.set(gpuUuid, place);
    return place;
  };

  const send = () => {
    number += 1;
    arbiter.send([`plan ${number}`, ...lines, 'end', ''].join('\n'));
  };

  const applyReport = (report: ArbiterReport) => {
    account = advanceAccount(
      account,
      report,
      (id) => grants.get(id),
      (id) => live.has(id),
    );
    for (const { id, broken } of report.pages) {
      if (broken === undefined || reported.has(id)) continue;
      reported.add(id);
      log.warn(`the lease page of grant ${grants.get(id) ?? id} is not used any more: ${broken}`);
    }
  };

  const arbiter = superviseProcess({
    name: 'the compute arbiter',
    stopBy: 'end of input',
    log,
    command: () => ({ program: join(BUILD_FOLDER, 'cotenant-arbitrate') }),
    onStart() {
      account = withNewArbiter(account);
      send();
    },
    onLine(line) {
      const report = parseReport(line);
      if (!report.ok) log.warn(`the compute arbiter: ${report.error}`);
      else if (report.value !== 'same') applyReport(report.value);
      return undefined;
    },
  });

  return {
    follow(entries, terms) {
      let next: readonly string[];
      try {
        next = planLines(terms, SLOTS, entries, placeOf);
      } catch (error) {
        log.warn(
          `cannot send a new plan to the compute arbiter, which continues with the last one: ${(error as Error).message}`,
        );
        return;
      }
      live = new Set(entries.map(({ grant }) => grant.id));
      grants = new Map(entries.flatMap((entry) => (entry.leased ? [[pageId(entry), entry.grant.id]] : [])));
      if (next.length === lines.length && next.every((line, index) => line === lines[index])) return;
      lines = next;
      if (isStarted) send();
      else arbiter.start();
      isStarted = true;
    },
    use: (grantId, gpu) => account.uses.get(useKey(grantId, gpu)),
    close: arbiter.stop,
  };
}
