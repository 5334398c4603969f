// Runs random programs of streams, captures and kernels that need one another (test/native/programs/scripted/
// random_streams.c), each process of one as long as it takes. Owns how their calls are compared.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { BUILD, environment, type SimulatedNode, type Teardown, WITHOUT_LEAK_CHECK } from './node.ts';

export type RandomStreams = { readonly seed: number; readonly steps: number; readonly flag: number };
export type Rank = { readonly preload: string; readonly gpu: number };
/** `ended`: by itself; else with a signal, or another code than 0. */
export type Calls = { readonly ended: boolean; readonly calls: readonly string[] };

export function runRandomStreams(
  t: Teardown,
  node: SimulatedNode,
  { seed, steps, flag }: RandomStreams,
  ranks: readonly Rank[],
  limitMs: number,
): Promise<Calls[]> {
  const runs = ranks.map(async ({ preload, gpu }, rank): Promise<Calls> => {
    const words = [seed, steps, rank, ranks.length, flag].map(String);
    const variables = {
      ...WITHOUT_LEAK_CHECK,
      PATH: process.env.PATH ?? '',
      LD_LIBRARY_PATH: node.lib,
      CUDA_VISIBLE_DEVICES: String(gpu),
      // The programs use no stream that they destroyed; nor may the interposer.
      COTENANT_SIM_STRICT: '1',
    };
    const child = spawn(join(BUILD, 'tests/random_streams'), words, {
      env: environment(variables, preload),
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const exited = once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
    const timer = setTimeout(() => child.kill('SIGKILL'), limitMs);
    t.teardown(() => {
      clearTimeout(timer);
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
    });
    const [printed, [code]] = await Promise.all([text(child.stdout), exited]);
    clearTimeout(timer);
    return { ended: code === 0, calls: printed.trim().split('\n') };
  });
  return Promise.all(runs);
}

/** The first call of each rank whose result is another one, or after which it stands still; empty: there is none. */
export function differences(bare: readonly Calls[], shared: readonly Calls[]): string[] {
  return shared.flatMap(({ calls, ended }, rank) => {
    const expected = bare[rank]?.calls ?? [];
    const at = calls.findIndex((call, index) => call !== expected[index]);
    if (at >= 0) return [`rank ${rank}: ${calls[at]}; without a share: ${expected[at]}`];
    return ended && calls.length === expected.length ? [] : [`rank ${rank} stands still after ${calls.at(-1)}`];
  });
}
