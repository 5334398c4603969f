// The tenant of test/native/programs/compute/hostile_page.c: locks and rings that cost the arbiter's thread time.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { GrantFiles } from '../product/grant.ts';
import { BUILD, type Teardown } from './node.ts';

const SLOTS = 64;

export async function startHostile(
  scope: Teardown,
  grant: Pick<GrantFiles, 'folder'>,
  locks: number,
): Promise<ChildProcess> {
  const words = [join(grant.folder, 'ledger'), String(SLOTS), String(locks)];
  const child = spawn(join(BUILD, 'tests/hostile_page'), words, { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  scope.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  const [first] = await Promise.race([once(child.stdout, 'data'), exited]);
  if (String(first) !== 'ready\n') throw new Error(`hostile_page: ${first}`);
  return child;
}
