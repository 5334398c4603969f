// Random programs in one grant of two GPUs, and their charges against the node's own count
// (test/native/random-programs). A program is a seed and a number of steps; a failing one is shrunk to the steps that
// it needs.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import { MIB, makeGrant } from '../product/grant.ts';
import { allowFabric, BUILD, environment, startNode, temporaryFolder } from './node.ts';

export type ProgramResult = {
  readonly wrong: string | null;
  /** The step at which it was found; for a burst, its first step. */
  readonly at?: number;
  readonly done: number;
  readonly refusals: number;
  readonly deaths: number;
  readonly births: number;
  readonly failures: number;
  /** Entry points of the driver whose calls were made to fail. */
  readonly failedSymbols: readonly string[];
  readonly pauses: number;
  readonly checks: number;
};
export type RandomProgram = {
  readonly seed: number;
  readonly steps: number;
  /** All processes at once: so many steps between two checks, in so many threads per process. */
  readonly burst?: { readonly steps: number; readonly lanes: number };
};

const SHRINK_MS = 40_000;

/** A sanitizer slows each step, so there are few of them: the test then looks at memory errors, not at amounts. */
export const SANITIZED = process.env.COTENANT_SANITIZER_PRELOAD !== undefined;
/** Factor on the number of steps. */
export const STEPS_FACTOR = SANITIZED ? 0.2 : Number(process.env.COTENANT_RANDOM_STEPS ?? 1);

/** Runs a program; if it goes wrong, the test fails with what is needed to reproduce it. */
export async function runProgram(t: ExecutionContext, program: RandomProgram): Promise<ProgramResult> {
  // In steps of a granule pools never grow beyond what was announced, so that a grant is never passed.
  const [t4, h100] = ['t4,context=8Mi,pool-step=2Mi', 'h100,context=10Mi,granule=4Mi,pool-step=4Mi'];
  const node = await startNode(t, '--gpu', t4, '--gpu', h100);
  allowFabric(node);
  const scratch = temporaryFolder(t);
  const run = async (steps: number, ...argv: string[]) => {
    const grant = makeGrant(t, node, [
      { gpu: 0, memoryBytes: 160 * MIB },
      { gpu: 1, memoryBytes: 120 * MIB },
    ]);
    const preload = process.env.COTENANT_SANITIZER_PRELOAD;
    const env = { ...environment({}), LD_PRELOAD: '', ...(preload ? { RANDOM_PROGRAMS_PRELOAD: preload } : {}) };
    const place = [node.folder, grant.folder, mkdtempSync(join(scratch, 'run-'))];
    const burst = program.burst ? ['--burst', String(program.burst.steps), String(program.burst.lanes)] : [];
    const args = [...place, String(program.seed), String(steps), ...burst, ...argv];
    const child = spawn(join(BUILD, 'tests/random_programs'), args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    const [stdout, stderr, [status]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
    if (status !== 0 && status !== 1) throw new Error(`random_programs ended with ${status}: ${stdout}${stderr}`);
    return { result: JSON.parse(stdout) as ProgramResult, said: stderr };
  };
  const { result } = await run(program.steps);
  t.log(`seed ${program.seed}:`, { ...result, failedSymbols: result.failedSymbols.length });
  if (result.wrong === null) return result;
  if (program.burst) throw new Error(`seed ${program.seed}: ${result.wrong}`);

  const at = result.at ?? program.steps - 1;
  const list = join(scratch, 'only');
  const only = (steps: readonly number[], ...argv: string[]) => {
    writeFileSync(list, steps.join('\n'));
    return run(at + 1, '--only', list, ...argv);
  };
  const kept = await shrink(
    Array.from({ length: at + 1 }, (_, step) => step),
    async (steps) => (await only(steps)).result.wrong !== null,
    Date.now() + SHRINK_MS,
  );
  const { said, result: shrunk } = await only(kept, '--say');
  throw new Error(`seed ${program.seed}: ${result.wrong}\nby steps ${kept}: ${shrunk.wrong}\n${said}`);
}

/** Removes steps in ever smaller pieces as long as the program still fails. */
async function shrink(
  all: readonly number[],
  fails: (steps: readonly number[]) => Promise<boolean>,
  until: number,
): Promise<number[]> {
  let kept = [...all];
  for (let piece = Math.ceil(kept.length / 2); piece >= 1 && Date.now() < until; piece = Math.floor(piece / 2)) {
    for (let end = kept.length; end > 0 && Date.now() < until; end -= piece) {
      const rest = [...kept.slice(0, Math.max(0, end - piece)), ...kept.slice(end)];
      if (rest.length > 0 && (await fails(rest))) kept = rest;
    }
  }
  return kept;
}
