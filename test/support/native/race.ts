// Many processes that race for one grant (test/native/programs/processes/racer.c), measured by the simulated node's
// usage.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import type { GrantFiles } from '../product/grant.ts';
import { BUILD, environment, type SimulatedNode } from './node.ts';

export type Race = {
  attempts: number;
  granted: number;
  refused: number;
  failed: number;
  wrongBytes: number;
  kills: number;
  started: number;
  longestMs: number;
  /** The longest call, less the time that it waited for a CPU and the time that the hypervisor took (steal). */
  longestStallMs: number;
  /** Time that processes were off CPU: the sum over all of them, and the longest of one. */
  awayMs: number;
  longestAwayMs: number;
  lastError: number;
};

/** Scales a storm: less than 1 must suffice for instrumented builds; more than 1 makes it longer. */
export const SHARE = Number(process.env.COTENANT_STORM_SHARE ?? 1);
export const LONGER = Math.max(1, SHARE);
export const KILLS = 1000 * SHARE;
export const REQUESTS = 100_000 * SHARE;

type Setting = { readonly lib: string };

/** Runs the racer inside a grant; `watch` is called with its PID before any process of the race exists. */
export async function runRacer(
  t: ExecutionContext,
  { lib }: Setting,
  grant: GrantFiles,
  options: Readonly<Record<string, number>>,
  watch: (pid: number) => void = () => {},
): Promise<Race> {
  const args = Object.entries(options).map(([name, value]) => `${name}=${value}`);
  const child = spawn('/bin/sh', ['-c', 'read go; exec "$0" "$@"', join(BUILD, 'tests/racer'), ...args], {
    env: environment({ LD_LIBRARY_PATH: lib }, grant.cuda),
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  watch(child.pid ?? 0);
  let output = '';
  child.stdout.on('data', (part: Buffer) => {
    output += part.toString();
  });
  child.stdin.end('go\n');
  const [code] = await once(child, 'close');
  t.is(code, 0);
  return JSON.parse(output) as Race;
}

/** The same, watched as a group of its own in the node's usage. */
export async function race(
  t: ExecutionContext,
  node: SimulatedNode,
  grant: GrantFiles,
  options: Readonly<Record<string, number>>,
): Promise<Race & { peak: number }> {
  let root = 0;
  const result = await runRacer(t, node, grant, options, (pid) => {
    root = pid;
    node.control('watch', String(pid));
  });
  const group = node.usage().groups.find((entry) => entry.root === root);
  return { ...result, peak: group?.gpus[0]?.peak ?? Number.NaN };
}
