// The program of test/native/programs/scripted/streams.c: work that waits for other work.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { BUILD, environment, type SimulatedNode, type Teardown, WITHOUT_LEAK_CHECK } from './node.ts';

export type Running<Answer> = {
  readonly child: ChildProcess;
  /** What it printed; rejects if it failed, or did not end by itself. */
  readonly result: Promise<Answer>;
};

export function streams<Answer = unknown>(
  t: Teardown,
  node: SimulatedNode,
  words: readonly string[],
  { preload = '', gpu = 0, limitMs = 20_000 }: { preload?: string; gpu?: number; limitMs?: number } = {},
): Running<Answer> {
  const variables = {
    ...WITHOUT_LEAK_CHECK,
    PATH: process.env.PATH ?? '',
    LD_LIBRARY_PATH: node.lib,
    CUDA_VISIBLE_DEVICES: String(gpu),
  };
  const child = spawn(join(BUILD, 'tests/streams'), words, {
    env: environment(variables, preload),
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
  t.teardown(async () => {
    clearTimeout(timer);
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
    await exited;
  });
  const finish = async (): Promise<Answer> => {
    const [printed, [code, signal]] = await Promise.all([text(child.stdout), exited]);
    clearTimeout(timer);
    if (code === 0) return JSON.parse(printed) as Answer;
    const how = signal === 'SIGKILL' ? `did not end within ${limitMs} ms` : `ended with ${signal ?? code}`;
    throw new Error(`streams ${words.join(' ')}: ${how}; it printed: ${printed.trim()}`);
  };
  const result = finish();
  result.catch(() => {}); // until the test awaits it
  return { child, result };
}
