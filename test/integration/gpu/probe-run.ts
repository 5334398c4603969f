// Runs the probe of a real driver (test/gpu/probe) as a process, and finds what it leaves behind.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { eventually, temporaryFolder } from '../../support/native/node.ts';
import type { Observation } from './facts.ts';

export const ROOT = join(import.meta.dirname, '../../..');
export const PROBE = join(ROOT, 'test/gpu/probe/probe.py');

type Run = { code: number | null; text: string; report: Observation | undefined; mark: string };

/** `interrupt` is called when a step begins; `out`: the file for the report. */
type How = { readonly interrupt?: (child: ChildProcess, step: string) => void; readonly out?: string };

/** Runs the probe; all its processes carry a mark in their environment. */
export async function probe(
  t: ExecutionContext,
  args: readonly string[],
  env: Record<string, string> = {},
  { interrupt, out = join(temporaryFolder(t), 'report.json') }: How = {},
): Promise<Run> {
  const mark = `COTENANT_PROBE_TEST=${process.pid}-${Math.random()}`;
  const [name = '', value = ''] = mark.split('=');
  const child = spawn('python3', [PROBE, '--out', out, ...args], {
    env: { ...process.env, ...env, [name]: value, PYTHONDONTWRITEBYTECODE: '1' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  t.teardown(() => {
    for (const pid of marked(mark)) process.kill(Number(pid), 'SIGKILL');
  });
  const parts: string[] = [];
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => parts.push(part.toString()));
  if (interrupt) {
    child.stderr.on('data', (part: Buffer) => {
      const begun = /^(\S+) \.\.\.$/m.exec(part.toString())?.[1];
      if (begun !== undefined) interrupt(child, begun);
    });
  }
  const [code] = (await once(child, 'close')) as [number | null];
  const text = parts.join('');
  const report = existsSync(out) ? (JSON.parse(readFileSync(out, 'utf8')) as Observation) : undefined;
  return { code, text, report, mark };
}

/** Living processes whose environment carries the mark. */
function marked(mark: string): string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0').includes(mark);
    } catch {
      return false; // it ended meanwhile, or is not ours to read
    }
  });
}

export const noneLeft = (mark: string) =>
  eventually(() => (marked(mark).length === 0 ? true : undefined), 'no process of the probe is left');
