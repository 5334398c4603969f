// Runs test/native/programs/engine/engine_switch.c: engines are replaced under load and detect calls that arrive while
// they are unloaded.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { BUILD, environment, temporaryFolder } from './node.ts';

type SwitchResult = {
  readonly calls: number;
  readonly changes: number;
  /** Calls in an engine that was not loaded. */
  readonly wrong: number;
  /** Calls that no engine answered. */
  readonly refused: number;
  /** Processes that did not end with only the last engine, or with a sanitizer report. */
  readonly badProcesses: number;
};

export function runSwitch(
  t: ExecutionContext,
  build: string,
  size: { readonly processes: number; readonly threads: number; readonly rounds: number },
): SwitchResult {
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  execFileSync(join(BUILD, 'tests/grant'), [folder, '64', '1', `${'11'.repeat(16)}:1:0:1`]);
  const argv = [join(build, 'tests/engine_switch'), folder, ...[size.processes, size.threads, size.rounds].map(String)];
  // On newer kernels address space randomization is too wide for the ThreadSanitizer runtime.
  const still = spawnSync('setarch', ['-R', 'true']).status === 0 ? ['setarch', '-R'] : [];
  const [file = '', ...args] = [...still, ...argv];
  const env = { ...environment({}), LD_PRELOAD: '' };
  const { status, stdout, stderr } = spawnSync(file, args, { encoding: 'utf8', env, maxBuffer: 1 << 26 });
  t.is(status, 0, stderr.slice(-4000));
  const result = JSON.parse(stdout) as SwitchResult;
  t.log(result);
  t.like(result, { wrong: 0, refused: 0, badProcesses: 0 }, stderr.slice(-4000));
  return result;
}
