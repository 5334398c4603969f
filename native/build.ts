// Builds the native parts that are out of date, by the Makefile, and reports progress.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpus } from 'node:os';
import { createInterface } from 'node:readline';

const FOLDER = import.meta.dirname;
const make = (...args: string[]) => ['-C', FOLDER, '--no-print-directory', ...args];
const isCompile = (line: string) => /^(gcc|g\+\+) /.test(line);

/** Throws with the compiler's output if a part does not build. `onProgress` gets the steps done and the total. */
export async function buildNative(onProgress: (done: number, all: number) => void): Promise<void> {
  const plan = spawnSync('make', make('-n'), { encoding: 'utf8' });
  if (plan.error) throw new Error(`make cannot be started (${plan.error.message}); install make, gcc and g++`);
  const all = plan.stdout.split('\n').filter(isCompile).length;
  if (plan.status === 0 && all === 0) return;
  let done = 0;
  onProgress(done, all);
  const child = spawn('make', make(`-j${Math.max(1, cpus().length)}`), { stdio: ['ignore', 'pipe', 'pipe'] });
  const stderrLines: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => {
    if (isCompile(line)) onProgress(++done, Math.max(all, done));
  });
  createInterface({ input: child.stderr }).on('line', (line) => stderrLines.push(line));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`the native parts do not build:\n${stderrLines.slice(-40).join('\n')}`);
}
