// Processes that a test of the sampler starts and ends.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { ExecutionContext } from 'ava';

/** Within how many rounds the sampler reads every process that the driver lists again, a part of them per round. */
export const REREAD_ROUNDS = 10;

export function start(t: ExecutionContext, file: string, ...args: string[]) {
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  if (child.pid === undefined) throw new Error(`${file} does not start`);
  return { pid: child.pid, child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
}
export const sleepers = (t: ExecutionContext, count: number) =>
  Array.from({ length: count }, () => start(t, 'sleep', '1000'));
export async function end({ child }: { readonly child: ChildProcess }): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}
