// Instructions per call, counted by callgrind: the same on every machine, whatever else runs there. Two runs of
// different length are subtracted, so that start and end of the program fall out.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { type Teardown, temporaryFolder } from '../../support/native/node.ts';
import { environmentOf, type Setting } from '../environment.ts';
import { CALLS } from './caller.ts';

/** Why instructions cannot be counted here; undefined: they can. */
export function whyNoCallgrind(): string | undefined {
  const found = spawnSync('valgrind', ['--version'], { encoding: 'utf8' });
  return found.status === 0 ? undefined : 'valgrind is not on the PATH; install it (apt-get install valgrind)';
}

/** Instructions of one run of the measured program, the loader's included, given these commands. */
async function instructionsOf(scope: Teardown, setting: Setting, commands: string): Promise<number> {
  const args = ['--tool=callgrind', `--callgrind-out-file=${join(temporaryFolder(scope), 'out')}`, CALLS];
  const child = spawn('valgrind', args, {
    env: { ...environmentOf(setting), PATH: process.env.PATH ?? '' },
    stdio: ['pipe', 'ignore', 'pipe'],
  });
  let text = '';
  child.stderr.on('data', (part: Buffer) => {
    text += part.toString();
  });
  child.stdin.end(commands);
  const [code] = await once(child, 'close');
  const collected = /Collected : (\d+)/.exec(text)?.[1];
  if (code !== 0 || collected === undefined) throw new Error(`callgrind ended with ${code}: ${text}`);
  return Number(collected);
}

/** From the exec of the measured program to its context and its end. */
export const instructionsPerStart = (scope: Teardown, setting: Setting): Promise<number> =>
  instructionsOf(scope, setting, '');

const FEW = 5_000;
const MANY = 25_000;

/** `command` makes the program's line for a number of calls; each run has a setting of its own, for a program that has
 * run leaves traces in its grant. */
export async function instructionsPerCall(
  scope: Teardown,
  setting: () => Setting,
  command: (calls: number) => string,
): Promise<number> {
  const count = (calls: number): Promise<number> => instructionsOf(scope, setting(), `${command(calls)}\n`);
  const few = await count(FEW);
  return ((await count(MANY)) - few) / (MANY - FEW);
}
