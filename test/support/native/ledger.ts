// Runs test/native/programs/engine/ledger.c, the accounting on a driver that counts, and checks its result against the
// grant.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { BUILD, environment, temporaryFolder } from './node.ts';

const MIB = 1024 * 1024;
const GRANT_MIB = 128;
const UUID = '11'.repeat(16); // the program's driver has one GPU, of this name

export type LedgerResult = {
  readonly granted: number;
  readonly refused: number;
  /** Refused by the driver itself, after the reservation. */
  readonly failed: number;
  readonly wrong: number;
  /** How often the driver held more than the grant. */
  readonly over: number;
  readonly peak: number;
  /** Bytes that the driver still holds at the end. */
  readonly left: number;
  /** Processes whose own charge did not end at zero, or with a sanitizer report. */
  readonly badProcesses: number;
};

export function runLedger(
  t: ExecutionContext,
  build: string,
  size: { readonly processes: number; readonly threads: number; readonly rounds: number },
): LedgerResult {
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  execFileSync(join(BUILD, 'tests/grant'), [folder, '64', '1', `${UUID}:${GRANT_MIB * MIB}:0:${2 * MIB}`]);
  const program = join(build, 'tests/ledger');
  const argv = [program, folder, ...[size.processes, size.threads, size.rounds].map(String)];
  // On newer kernels address space randomization is too wide for the ThreadSanitizer runtime.
  const still = spawnSync('setarch', ['-R', 'true']).status === 0 ? ['setarch', '-R'] : [];
  const [file = '', ...args] = [...still, ...argv];
  const output = execFileSync(file, args, { encoding: 'utf8', env: { ...environment({}), LD_PRELOAD: '' } });
  const result = JSON.parse(output) as LedgerResult;
  t.log(result);
  t.is(result.over, 0, 'never a byte over the grant');
  t.is(result.peak, GRANT_MIB * MIB, 'and all of it was used');
  t.is(result.left, 0);
  t.is(result.wrong, 0);
  t.is(result.badProcesses, 0);
  return result;
}
