// Shared by the tests of real clients: the ways to run one (without Cotenant, preloaded, mounted over the driver's
// file), a client that holds memory until its input ends, and checksums of CUDA's libraries.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync, realpathSync } from 'node:fs';
import { basename, join } from 'node:path';
import { createInterface } from 'node:readline';
import type { ExecutionContext } from 'ava';
import { environment, type SimulatedNode, type Teardown } from '../support/native/node.ts';
import { makeGrant, mountOver } from '../support/product/grant.ts';

export const WAYS = ['direct', 'preloaded', 'mounted'] as const;
export type Way = (typeof WAYS)[number];

/** The environment of a client: without Cotenant, or limited to `memoryBytes` of each GPU. */
export function surroundings(
  t: Teardown,
  node: SimulatedNode,
  way: Way,
  memoryBytes: number,
  more: Readonly<Record<string, string>> = {},
): Record<string, string> {
  const plain = { PATH: process.env.PATH ?? '', HOME: node.folder, LD_LIBRARY_PATH: node.lib };
  if (way === 'direct') return environment({ ...plain, ...more });
  const gpus = node.usage().gpus.map((_, gpu) => ({ gpu, memoryBytes }));
  const grant = makeGrant(t, node, gpus);
  if (way === 'preloaded') return environment({ ...plain, ...more }, `${grant.both} ${more.LD_PRELOAD ?? ''}`.trim());
  return environment({ ...plain, LD_LIBRARY_PATH: mountOver(t, node, grant).lib, ...more });
}

export type Ended = {
  readonly out: string;
  readonly errors: string;
  readonly code: number | null;
  readonly signal: string | null;
};

/** Runs a client to its end. */
export async function complete(
  t: Teardown,
  command: readonly string[],
  env: Readonly<Record<string, string>>,
  cwd?: string,
): Promise<Ended> {
  const [file = '', ...args] = command;
  const child = spawn(file, args, { env, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  t.teardown(() => {
    child.kill('SIGKILL');
  });
  const parts: { out: string[]; errors: string[] } = { out: [], errors: [] };
  child.stdout.on('data', (part: Buffer) => parts.out.push(part.toString()));
  child.stderr.on('data', (part: Buffer) => parts.errors.push(part.toString()));
  const [code, signal] = (await once(child, 'close')) as [number | null, string | null];
  return { out: parts.out.join(''), errors: parts.errors.join(''), code, signal };
}

/** Report of a client that allocated blocks until it was refused. */
export type Filled = {
  readonly total: number;
  readonly free: number;
  /** Free memory before it allocated the blocks, after its other work. */
  readonly idle: number;
  /** Free memory at the refusal. */
  readonly full: number;
  readonly blocks: number;
  /** The driver's result code. */
  readonly refusal: number;
  /** The result of one more block after one was freed. */
  readonly again: number;
};

export type Holder = {
  readonly pid: number;
  readonly filled: Filled;
  end(): Promise<number | null>;
  /** Lines on standard error so far. */
  errors(): readonly string[];
};

/** Starts a client that allocates blocks, reports the result and holds them until its input ends. */
export async function startHolder(
  t: ExecutionContext,
  command: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<Holder> {
  const [file = '', ...args] = command;
  const child = spawn(file, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  const errors: string[] = [];
  createInterface({ input: child.stderr }).on('line', (line) => errors.push(line));
  const exited = once(child, 'close') as Promise<[number | null, string | null]>;
  t.teardown(() => {
    child.kill('SIGKILL');
  });
  const { value, done } = await createInterface({ input: child.stdout })[Symbol.asyncIterator]().next();
  if (done) throw new Error(`${basename(file)} ended with ${(await exited).join(' ')}: ${errors.join('\n')}`);
  return {
    pid: child.pid ?? 0,
    filled: JSON.parse(String(value)) as Filled,
    errors: () => errors,
    async end() {
      child.stdin.end();
      return (await exited)[0];
    },
  };
}

/** SHA-256 of every shared object and archive below these folders, by path. */
export function checksums(folders: readonly string[]): Record<string, string> {
  const sums: Record<string, string> = {};
  for (const folder of folders) {
    for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
      if (!/\.so(\.|$)|\.a$/.test(entry.name)) continue;
      const path = join(entry.parentPath, entry.name);
      sums[path] = createHash('sha256')
        .update(readFileSync(realpathSync(path)))
        .digest('hex');
    }
  }
  return sums;
}
