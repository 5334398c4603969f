// The measured program (test/bench/programs/calls.c) as a process: straight on a driver, or inside a grant. Owns the
// process and how several of them are asked in turns.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { BUILD, type Teardown } from '../../support/native/node.ts';
import { environmentOf, type Setting } from '../environment.ts';

export const CALLS = join(BUILD, 'bench/calls');

export type Caller = {
  /** Median over blocks of nanoseconds per call. */
  ask(command: string): Promise<number>;
  end(): Promise<void>;
};

export function startCaller(scope: Teardown, setting: Setting): Caller {
  const child = spawn(CALLS, [], { env: environmentOf(setting), stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {}); // it may have ended
  const exited = once(child, 'exit');
  scope.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  return {
    async ask(command) {
      child.stdin.write(`${command}\n`);
      const { value, done } = await lines.next();
      const [p50] = done ? [] : String(value).split(' ').map(Number);
      if (p50 === undefined || !Number.isFinite(p50)) throw new Error(`${CALLS} ended at: ${command}`);
      return p50;
    },
    async end() {
      child.stdin.end();
      await exited;
    },
  };
}

/** Time for all of a group to read their command before they begin together. */
const START_TOGETHER_NS = 3_000_000n;

/**
 * Asks each group in turns, `rounds` times, each round beginning with another one; the members of a group at the same
 * moment. The answer has a list of samples per group, of which those at one position were taken right after one
 * another.
 */
export async function takeTurns(
  groups: readonly (readonly Caller[])[],
  rounds: number,
  command: (at: string) => string,
): Promise<number[][]> {
  const samples: number[][] = groups.map(() => []);
  for (let round = 0; round < rounds; round += 1) {
    for (let turn = 0; turn < groups.length; turn += 1) {
      const index = (round + turn) % groups.length;
      const group = groups[index] ?? [];
      const at = group.length > 1 ? String(process.hrtime.bigint() + START_TOGETHER_NS) : '0';
      const answers = await Promise.all(group.map((caller) => caller.ask(command(at))));
      samples[index]?.push(answers.reduce((sum, value) => sum + value, 0) / answers.length);
    }
  }
  return samples;
}
