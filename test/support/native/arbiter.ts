// The compute arbiter as a process without an agent: a test sends plans, reads its status, stops or kills it.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { GrantFiles } from '../product/grant.ts';
import { BUILD, eventually, type Teardown } from './node.ts';

export type ArbiterStatus = {
  readonly plan: number;
  readonly lateNs: number;
  readonly pages: readonly {
    readonly id: string;
    readonly broken?: string;
    readonly gpus: readonly {
      readonly chargedNs: number;
      readonly contendedNs: number;
      readonly throttledNs: number;
      readonly relieved: number;
      readonly launches: number;
      readonly overruns: number;
      readonly faults: number;
      readonly limitPpm: number;
    }[];
  }[];
};
export type Tenant = {
  readonly id: string;
  readonly grant: GrantFiles;
  /** For each of its GPUs: its UUID and the requested share. */
  readonly gpus: readonly {
    readonly gpu: number;
    readonly percent?: number;
    readonly weight?: number;
    readonly policy?: Policy;
    /** Of high priority, with this cap. */
    readonly highCapPercent?: number;
  }[];
};
export type Policy = 'average' | 'preemptive' | 'weighted' | 'fixed' | 'soft' | 'native';
const POLICIES: readonly Policy[] = ['average', 'preemptive', 'weighted', 'fixed', 'soft', 'native'];
const SLOTS = 64;

export type Arbiter = {
  readonly child: ChildProcess;
  /** Sends raw lines; the result shows in `status` and `problems`. */
  say(...lines: readonly string[]): void;
  readonly problems: readonly string[];
  plan(policy: Policy, tenants: readonly Tenant[]): Promise<void>;
  /** The latest status. */
  status(): ArbiterStatus | undefined;
  /** Resolves with the first status from now on that meets the condition. */
  until(is: (status: ArbiterStatus) => boolean, what: string): Promise<ArbiterStatus>;
  kill(signal?: NodeJS.Signals): Promise<void>;
};

export function startArbiter(t: Teardown): Arbiter {
  const child = spawn(join(BUILD, 'cotenant-arbitrate'), { stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  let last: ArbiterStatus | undefined;
  let pages: ArbiterStatus['pages'] = [];
  const problems: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    const status = JSON.parse(line) as ArbiterStatus | { readonly problem: string };
    if ('problem' in status) {
      problems.push(status.problem);
      return;
    }
    // A line leaves out what has not changed since the line before.
    ({ pages = pages } = status);
    last = { ...status, pages };
  });
  child.stdin.on('error', () => {});
  const kill = async (signal: NodeJS.Signals = 'SIGKILL') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await exited;
  };
  t.teardown(() => kill());
  let number = 0;
  const say = (...lines: readonly string[]) => void child.stdin.write(`${lines.join('\n')}\n`);
  return {
    child,
    say,
    problems,
    async plan(policy, tenants) {
      number += 1;
      const used = new Set(tenants.flatMap(({ gpus }) => gpus.map(({ gpu }) => gpu)));
      say(
        `plan ${number}`,
        ...[...used].map((gpu) => `gpu ${gpu} 0`),
        ...tenants.flatMap(({ id, grant, gpus }) => [
          `page ${id} ${SLOTS} ${gpus.length} ${join(grant.folder, 'ledger')}`,
          ...gpus.map(
            ({ gpu, percent = 0, weight = 0, policy: own, highCapPercent: cap }) =>
              `on ${gpu} ${POLICIES.indexOf(own ?? policy)} ${percent * 10_000} 0 ${weight} ${cap ? `1 ${cap * 10_000}` : '0 0'}`,
          ),
        ]),
        'end',
      );
      await eventually(() => (last?.plan === number ? true : undefined), `plan ${number}: ${problems.join('; ')}`);
    },
    status: () => last,
    until(is, what) {
      last = undefined;
      return eventually(() => (last && is(last) ? last : undefined), what);
    },
    kill,
  };
}
