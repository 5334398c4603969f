// Runs test/native/programs/engine_switch.c, the change of engines above engines that notice calls in them when they are not loaded.
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
  /** Processes that did not end in the last engine alone, or in which a sanitizer found something. */
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
  const words = [
    join(build, 'tests/engine_switch'),
    folder,
    ...[size.processes, size.threads, size.rounds].map(String),
  ];
  // Newer kernels spread mappings wider than ThreadSanitizer's runtime can follow.
  const still = spawnSync('setarch', ['-R', 'true']).status === 0 ? ['setarch', '-R'] : [];
  const [file = '', ...args] = [...still, ...words];
  const env = { ...environment({}), LD_PRELOAD: '' };
  const { status, stdout, stderr } = spawnSync(file, args, { encoding: 'utf8', env, maxBuffer: 1 << 26 });
  t.is(status, 0, stderr.slice(-4000));
  const result = JSON.parse(stdout) as SwitchResult;
  t.log(result);
  t.like(result, { wrong: 0, refused: 0, badProcesses: 0 }, stderr.slice(-4000));
  return result;
}
