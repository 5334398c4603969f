// Runs a case of test/native/programs/engine/interleavings.c: the engine on a driver that runs other threads inside its
// calls.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { BUILD, environment, temporaryFolder } from './node.ts';

const MIB = 1024 * 1024;
const UUID = '11'.repeat(16); // the program's driver has one GPU, of this name
const GRANT = `${UUID}:${16 * MIB}:${2 * MIB}:${2 * MIB}`; // a context costs 2 MiB, and so does a granule

/** Expected result of each case. `last` is the answer of its last request, `number` a count that the case reports. */
export const CASES = {
  'a granule that passes from a small to a large request has no gap': [
    'page-left',
    { held: 16, context: 2, last: 2, number: 0 },
  ],
  'memory of an ended context is not kept for a context with the same handle': [
    'allocated-before',
    { held: 2, context: 2 },
  ],
  'memory allocated in the second context of a reused handle is kept': ['allocated-after', { held: 6, context: 2 }],
  'memory allocated in a context that ends meanwhile is released with it': ['ended-meanwhile', { held: 0, context: 0 }],
  'a reused address is charged to its new context even if the old one is known': [
    'given-again',
    { held: 4, context: 2 },
  ],
  'of two allocations at one address the latest is freed': ['given-again-and-freed', { held: 2, context: 2 }],
  'a context that ended unseen leaves no charge to the next one of its handle': [
    'ended-unseen',
    { held: 2, context: 2 },
  ],
  'memory of a green context that ends meanwhile moves to the primary context': [
    'view-ended-meanwhile',
    { held: 6, context: 2 },
  ],
  'memory of a green context is released if the primary context ends with it': [
    'view-ended-with-all',
    { held: 0, context: 0 },
  ],
  'memory of an ended green context stays if another one has its handle': ['view-came-again', { held: 6, context: 2 }],
  'a failed free while a green context ends leaves memory to the primary one': [
    'view-ended-in-free',
    { held: 6, context: 2 },
  ],
  'a heap that a green context shares with the primary one stays charged': ['heap-shared', { held: 8, context: 8 }],
  'graph memory that a launch has after a trim of another thread is charged': [
    'trimmed-before',
    { held: 6, context: 2 },
  ],
  'graph memory that another thread trims during a launch is released after it': [
    'trimmed-after',
    { held: 2, context: 2 },
  ],
  'a context whose creation calls back into the program is charged once': ['called-back', { held: 4, context: 2 }],
  'the driver is not called to end a context while it creates another': [
    'one-waits',
    { held: 2, context: 2, number: 0 },
  ],
  'the thread that creates a context may end another one meanwhile': [
    'same-thread',
    { held: 2, context: 2, number: 1 },
  ],
  'a driver that never finishes creating a context delays others by two seconds': [
    'never-answers',
    { held: 2, context: 2 },
  ],
  'a thread that a forked child does not have delays it once': ['forked', { held: 2, context: 2, number: 1 }],
} as const;

type Counts = { held: number; pending: number; context: number; last: number; turn: number; number: number };

export function runMoment(t: ExecutionContext, build: string, title: keyof typeof CASES): void {
  const [name, expected] = CASES[title];
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  execFileSync(join(BUILD, 'tests/grant'), [folder, '64', '1', GRANT]);
  // On newer kernels address space randomization is too wide for the ThreadSanitizer runtime.
  const still = spawnSync('setarch', ['-R', 'true']).status === 0 ? ['setarch', '-R'] : [];
  const [file = '', ...args] = [...still, join(build, 'tests/interleavings'), folder, name];
  const output = execFileSync(file, args, { encoding: 'utf8', env: { ...environment({}), LD_PRELOAD: '' } });
  const counts = JSON.parse(output) as Counts;
  t.like(
    { ...counts, held: counts.held / MIB, context: counts.context / MIB },
    { last: 0, ...expected, pending: 0, turn: 0 },
    output,
  );
  if (name === 'never-answers') t.true(counts.number >= 2000, `${counts.number} ms`);
}
