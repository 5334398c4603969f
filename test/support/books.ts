// Random programs in one grant of two cards, and their account against the node's own books (test/native/books). A
// program is a seed and a number of steps; one that fails is shrunk to the steps that it takes.
import { spawnSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { MIB, makeGrant } from './grant.ts';
import { BUILD, environment, startNode, temporaryFolder } from './node.ts';

export type BooksResult = {
  readonly wrong: string | null;
  /** The step at which it was seen; of a burst, its first one. */
  readonly at?: number;
  readonly done: number;
  readonly refusals: number;
  readonly deaths: number;
  readonly births: number;
  readonly failures: number;
  readonly failedSymbols: number;
  readonly pauses: number;
  readonly checks: number;
};
export type BooksProgram = {
  readonly seed: number;
  readonly steps: number;
  /** All processes at once: so many steps each between two accounts, in so many threads. */
  readonly burst?: { readonly steps: number; readonly lanes: number };
};

const SHRINK_MS = 40_000;

/** Runs a program; one that goes wrong fails the test with what is needed to see it again. */
export async function runBooks(t: ExecutionContext, program: BooksProgram): Promise<BooksResult> {
  const node = await startNode(t, '--card', 't4,context=8Mi', '--card', 'l4,context=10Mi,granule=4Mi');
  const scratch = temporaryFolder(t);
  const run = (steps: number, ...words: string[]) => {
    const grant = makeGrant(t, node, [
      { card: 0, memoryBytes: 160 * MIB },
      { card: 1, memoryBytes: 120 * MIB },
    ]);
    const preload = process.env.COTENANT_SANITIZER_PRELOAD;
    const env = { ...environment({}), LD_PRELOAD: '', ...(preload ? { BOOKS_PRELOAD: preload } : {}) };
    const place = [node.folder, grant.folder, mkdtempSync(join(scratch, 'run-'))];
    const burst = program.burst ? ['--burst', String(program.burst.steps), String(program.burst.lanes)] : [];
    const args = [...place, String(program.seed), String(steps), ...burst, ...words];
    const { stdout, stderr, status } = spawnSync(join(BUILD, 'tests/books'), args, {
      encoding: 'utf8',
      env,
      maxBuffer: 1 << 28,
    });
    if (status !== 0 && status !== 1) throw new Error(`books ended with ${status}: ${stdout}${stderr}`);
    return { result: JSON.parse(stdout) as BooksResult, said: stderr };
  };
  const { result } = run(program.steps);
  t.log(`seed ${program.seed}:`, result);
  if (result.wrong === null) return result;
  if (program.burst) throw new Error(`seed ${program.seed}: ${result.wrong}`);

  const at = result.at ?? program.steps - 1;
  const only = (steps: readonly number[], ...words: string[]) => run(at + 1, '--only', steps.join(','), ...words);
  const kept = shrink(
    Array.from({ length: at + 1 }, (_, step) => step),
    (steps) => only(steps).result.wrong !== null,
    Date.now() + SHRINK_MS,
  );
  const { said, result: shrunk } = only(kept, '--say');
  throw new Error(`seed ${program.seed}: ${result.wrong}\nby steps ${kept}: ${shrunk.wrong}\n${said}`);
}

/** Leaves out whatever can be left out, in ever smaller pieces, as long as it still fails. */
function shrink(all: readonly number[], fails: (steps: readonly number[]) => boolean, until: number): number[] {
  let kept = [...all];
  for (let piece = Math.ceil(kept.length / 2); piece >= 1 && Date.now() < until; piece = Math.floor(piece / 2)) {
    for (let end = kept.length; end > 0 && Date.now() < until; end -= piece) {
      const rest = [...kept.slice(0, Math.max(0, end - piece)), ...kept.slice(end)];
      if (rest.length > 0 && fails(rest)) kept = rest;
    }
  }
  return kept;
}
