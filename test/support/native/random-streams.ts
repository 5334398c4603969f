// Runs random programs of streams, captures and kernels that need one another (test/native/programs/scripted/
// random_streams.c), each process of one as long as it takes. Owns how their calls are compared.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { BUILD, environment, type SimulatedNode, type Teardown, WITHOUT_LEAK_CHECK } from './node.ts';

/** `steps`: a digit for each, 0 if it is left out. */
export type RandomStreams = { readonly seed: number; readonly steps: string; readonly flag: number };
export type Rank = { readonly preload: string; readonly gpu: number };
/** `ended`: by itself, or as its program has it be killed; else with a signal, or another code than 0. */
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
    const [printed, [code, signal]] = await Promise.all([text(child.stdout), exited]);
    clearTimeout(timer);
    const calls = printed.trim().split('\n');
    return { ended: code === 0 || (signal === 'SIGKILL' && isKilled(calls)), calls };
  });
  return Promise.all(runs);
}

export const isKilled = (calls: readonly string[]): boolean => calls.at(-1)?.includes(' killed ') ?? false;

/** The smallest part of a program's steps that still fails, as far as it is found in the time. */
export async function shrink(
  steps: string,
  fails: (steps: string) => Promise<boolean>,
  limitMs = 120_000,
): Promise<string> {
  const end = performance.now() + limitMs;
  let least = steps;
  for (let size = Math.ceil(steps.length / 2); size >= 1; size = Math.floor(size / 2)) {
    for (let from = steps.length; from > 0 && performance.now() < end; from -= size) {
      const at = Math.max(0, from - size);
      const fewer = least.slice(0, at) + '0'.repeat(from - at) + least.slice(from);
      if (fewer !== least && (await fails(fewer))) least = fewer;
    }
  }
  return least;
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
