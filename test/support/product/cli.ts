// Runs the `cotenant` command to its end, as a user would.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { SnapshotContainer } from '../../../src/agent/snapshot/snapshot.ts';
import type { RunningAgent } from './agent.ts';

export const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');

export function cotenant(...args: readonly string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

/** As the agent prints them. */
export const containersOf = async (agent: RunningAgent, pod: string): Promise<readonly SnapshotContainer[]> =>
  ((await agent.snapshot())?.containers ?? []).filter((container) => container.pod === pod);
