// The arbiter's process: started when there is something to divide, told who there is whenever that changes, listened to, started
// again when it ends. Meanwhile containers go by what it left in their pages.
import { join } from 'node:path';
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
  withoutEndedGrants,
} from './usage-account.ts';

export type Arbiter = {
  /** These are the grants now, and what the node says of them. */
  follow(entries: readonly Planned[], terms: Terms): void;
  /** Of a grant's GPU by its place in the grant; undefined: the arbiter does not hold it. */
  use(grantId: string, gpu: number): ComputeUse | undefined;
  close(): Promise<void>;
};

export type ArbiterOptions = {
  readonly onProblem: (text: string) => void;
};

/** GPUs that it knows (native/shared-memory/limits_page.h). */
const MOST_GPUS = 16;

export function createArbiter({ onProblem }: ArbiterOptions): Arbiter {
  let isStarted = false;
  let number = 0;
  let lines: readonly string[] = [];
  /** Whose page it is. */
  let grants = new Map<string, string>();
  /** Those that have none at the moment included: they may have one again, and are counted on then. */
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

  const listen = (told: ArbiterReport) => {
    account = advanceAccount(
      account,
      told,
      (id) => grants.get(id),
      (id) => live.has(id),
    );
    for (const { id, broken } of told.pages) {
      if (broken === undefined || reported.has(id)) continue;
      reported.add(id);
      onProblem(`the compute page of grant ${grants.get(id) ?? id} is not used any more: ${broken}`);
    }
  };

  const arbiter = superviseProcess({
    name: 'the compute arbiter',
    stopBy: 'end of input',
    onProblem,
    command: () => ({ program: join(BUILD_FOLDER, 'cotenant-arbitrate') }),
    onStart() {
      account = withNewArbiter(account);
      send();
    },
    onLine(line) {
      const told = parseReport(line);
      if (told === 'same') return undefined;
      if ('problem' in told) onProblem(`the compute arbiter: ${told.problem}`);
      else listen(told);
      return undefined;
    },
  });

  return {
    follow(entries, terms) {
      let next: readonly string[];
      try {
        next = planLines(terms, SLOTS, entries, placeOf);
      } catch (error) {
        onProblem(`compute is not arbitrated anew: ${(error as Error).message}`);
        return;
      }
      live = new Set(entries.map(({ grant }) => grant.id));
      account = withoutEndedGrants(account, (id) => live.has(id));
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
