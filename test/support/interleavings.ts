// Runs a case of test/native/programs/interleavings.c: the engine above a driver that runs other threads inside its calls.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { BUILD, environment, temporaryFolder } from './node.ts';

const MIB = 1024 * 1024;
const UUID = '11'.repeat(16); // the program's driver has one GPU, of this name
const GRANT = `${UUID}:${16 * MIB}:${2 * MIB}:${2 * MIB}`; // a context costs 2 MiB, and so does a granule

/** What each case must come to. `last` is the answer of its last request, `number` what the case says of itself. */
export const CASES = {
  'a page that a small request left, and a large one has got, has no gap': [
    'page-left',
    { held: 16, context: 2, last: 2, number: 0 },
  ],
  'what a thread allocated in a context that ended is not kept for one of the same handle': [
    'allocated-before',
    { held: 2, context: 2 },
  ],
  'what a thread allocated in the second of two contexts of one handle is': [
    'allocated-after',
    { held: 6, context: 2 },
  ],
  'what a thread allocated in a context that ended goes with it': ['ended-meanwhile', { held: 0, context: 0 }],
  'an address that the driver gives again before its context is forgotten is charged to its new one': [
    'given-again',
    { held: 4, context: 2 },
  ],
  'of two that have an address, the latest is freed': ['given-again-and-freed', { held: 2, context: 2 }],
  'a context that ended behind the exported names leaves nothing to the next one of its handle': [
    'ended-unseen',
    { held: 2, context: 2 },
  ],
  'what a thread allocated with the view of a green context current that ended meanwhile is the primary one’s': [
    'view-ended-meanwhile',
    { held: 6, context: 2 },
  ],
  'what a thread allocated with the view of a green context current goes, if the primary one ended with it': [
    'view-ended-with-all',
    { held: 0, context: 0 },
  ],
  'what a thread allocated with the view of a green context current stays, if there is one of the same handle': [
    'view-came-again',
    { held: 6, context: 2 },
  ],
  'what the driver refuses to free while the view that it was allocated in ends is the primary one’s': [
    'view-ended-in-free',
    { held: 6, context: 2 },
  ],
  'a heap that a green context and the primary one share stays charged when the green one ends': [
    'heap-shared',
    { held: 8, context: 8 },
  ],
  'a context that the program is called back in while it is made is charged once': [
    'called-back',
    { held: 4, context: 2 },
  ],
  'the driver is not called to end a context while it makes another': ['one-waits', { held: 2, context: 2, number: 0 }],
  'the thread that makes a context may end another one meanwhile': ['same-thread', { held: 2, context: 2, number: 1 }],
  'a driver that makes a context for ever holds the others up for two seconds': [
    'never-answers',
    { held: 2, context: 2 },
  ],
  'a thread that a forked child does not have holds it up once': ['forked', { held: 2, context: 2, number: 1 }],
} as const;

type Told = { held: number; pending: number; context: number; last: number; turn: number; number: number };

export function runMoment(t: ExecutionContext, build: string, title: keyof typeof CASES): void {
  const [name, expected] = CASES[title];
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  execFileSync(join(BUILD, 'tests/grant'), [folder, '64', '1', GRANT]);
  // Newer kernels spread mappings wider than the runtime of this compiler can follow.
  const still = spawnSync('setarch', ['-R', 'true']).status === 0 ? ['setarch', '-R'] : [];
  const [file = '', ...words] = [...still, join(build, 'tests/interleavings'), folder, name];
  const output = execFileSync(file, words, { encoding: 'utf8', env: { ...environment({}), LD_PRELOAD: '' } });
  const told = JSON.parse(output) as Told;
  t.like(
    { ...told, held: told.held / MIB, context: told.context / MIB },
    { last: 0, ...expected, pending: 0, turn: 0 },
    output,
  );
  if (name === 'never-answers') t.true(told.number >= 2000, `${told.number} ms`);
}
