// The arbiter's process: started when there is something to divide, told who there is whenever that changes, listened to, started
// again when it ends. Meanwhile containers go by what it left in their pages.
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { SLOTS } from '../grants/files.ts';
import { BUILD_FOLDER } from '../os/addon.ts';
import { type Planned, pageId, planLines, type Terms } from './arbiter-plan.ts';
import {
  type Account,
  advanceAccount,
  type ComputeUse,
  countsToKeep,
  NO_ACCOUNT,
  parseTold,
  type Told,
  type UseCounts,
  useKey,
  withNewArbiter,
  withoutGone,
} from './usage-account.ts';

export type Arbiter = {
  /** These are the grants now, and what the node says of them. */
  follow(entries: readonly Planned[], terms: Terms): void;
  /** Of a grant's GPU by its place in the grant; undefined: the arbiter does not hold it. */
  use(grantId: string, gpu: number): ComputeUse | undefined;
  /** What is counted of all of them, by the keys of uses: until it is told anew, what was counted before. */
  counts(): ReadonlyMap<string, UseCounts>;
  close(): Promise<void>;
};

export type ArbiterOptions = {
  readonly onProblem: (text: string) => void;
  /** What agents before this one counted, by the keys of uses. */
  readonly earlier?: ReadonlyMap<string, UseCounts>;
};

const LEAST_RESTART_MS = 1000;
/** GPUs that it knows (native/shared-memory/limits_page.h). */
const MOST_GPUS = 16;

export function createArbiter({ onProblem, earlier: counted = new Map() }: ArbiterOptions): Arbiter {
  let child: ChildProcess | undefined;
  let restart: NodeJS.Timeout | undefined;
  let begun = false;
  let closing = false;
  let number = 0;
  let lines: readonly string[] = [];
  /** Whose page it is. */
  let grants = new Map<string, string>();
  /** Those that have none at the moment included: they may have one again, and are counted on then. */
  let live: ReadonlySet<string> = new Set();
  let account: Account = NO_ACCOUNT;
  /** Taken up once: what is counted on from there ends with its grant. */
  const earlier = new Map(counted);
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
    child?.stdin?.write([`plan ${number}`, ...lines, 'end', ''].join('\n'));
  };

  const listen = (told: Told) => {
    account = advanceAccount(
      account,
      told,
      (id) => grants.get(id),
      (id) => live.has(id),
      earlier,
    );
    for (const key of account.uses.keys()) earlier.delete(key);
    for (const { id, broken } of told.pages) {
      if (broken === undefined || reported.has(id)) continue;
      reported.add(id);
      onProblem(`the compute page of grant ${grants.get(id) ?? id} is not used any more: ${broken}`);
    }
  };

  const begin = () => {
    const started = performance.now();
    account = withNewArbiter(account);
    const current = spawn(join(BUILD_FOLDER, 'cotenant-arbitrate'), { stdio: ['pipe', 'pipe', 'inherit'] });
    child = current;
    const again = (problem: string) => {
      if (closing || child !== current) return;
      child = undefined;
      onProblem(problem);
      restart = setTimeout(begin, Math.max(0, LEAST_RESTART_MS - (performance.now() - started)));
    };
    current.stdin?.on('error', () => {}); // it may end before a plan reaches it
    current.on('error', (error) => {
      if (current.pid === undefined) again(`the arbiter of compute cannot be started: ${error.message}`);
    });
    current.on('exit', (code, signal) =>
      again(`the arbiter of compute ended (${signal ?? `code ${code}`}); it is started again`),
    );
    createInterface({ input: current.stdout }).on('line', (line) => {
      if (child !== current || closing) return;
      const told = parseTold(line);
      if (told === 'same') return;
      if ('problem' in told) onProblem(`the arbiter of compute: ${told.problem}`);
      else listen(told);
    });
    send();
  };

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
      account = withoutGone(account, (id) => live.has(id));
      grants = new Map(entries.flatMap((entry) => (entry.leased ? [[pageId(entry), entry.grant.id]] : [])));
      if (next.length === lines.length && next.every((line, index) => line === lines[index])) return;
      lines = next;
      if (begun) send();
      else begin();
      begun = true;
    },
    use: (grantId, gpu) => account.uses.get(useKey(grantId, gpu)),
    counts() {
      if (earlier.size === 0) return account.uses;
      return countsToKeep(account.uses, earlier, (id) => live.has(id));
    },
    async close() {
      closing = true;
      clearTimeout(restart);
      const current = child;
      if (!current || current.exitCode !== null || current.signalCode !== null) return;
      const { promise, resolve } = Promise.withResolvers<void>();
      current.once('exit', () => resolve());
      current.stdin?.end();
      await promise;
    },
  };
}
