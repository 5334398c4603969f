// Runs the `cotenant` command to its end, as a user would.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
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

/** Beside a server in this process, so without blocking it. */
export async function runCotenant(...args: readonly string[]): Promise<{ code: number; out: string; err: string }> {
  const child = spawn(process.execPath, [MAIN, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const text = { out: '', err: '' };
  child.stdout.on('data', (part: Buffer) => (text.out += String(part)));
  child.stderr.on('data', (part: Buffer) => (text.err += String(part)));
  const [code] = (await once(child, 'close')) as [number];
  return { code, ...text };
}
