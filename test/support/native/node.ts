// A simulated GPU node for one test: started in its own folder, queried for its usage, ended with the test.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { engineName, enginesIn, PRELOADED } from '../../../src/agent/grants/engine-files.ts';
import { firstSample } from '../product/sample.ts';

export const BUILD = process.env.COTENANT_BUILD ?? join(import.meta.dirname, '../../../native/build');
/** Programs of BUILD are for another architecture and run in an emulator: test/arm64. */
export const EMULATED = process.env.COTENANT_EMULATED === '1';
/** Compiles for the architecture of BUILD. */
export const COMPILER = EMULATED ? join(BUILD, 'cc') : 'gcc';

/** The interposer's files in BUILD: the preloaded objects and their engines. */
export const interposerFiles = (): readonly string[] => [...PRELOADED, ...enginesIn(BUILD).map(engineName)];

/**
 * Of programs that end without destroying their streams, events and contexts, as programs may: what the simulated driver keeps
 * of these is on its heap. AddressSanitizer looks for all else in them, and for leaks in the other programs.
 */
export const WITHOUT_LEAK_CHECK = { LSAN_OPTIONS: 'detect_leaks=0' };

/** The environment of a program of BUILD and of what is preloaded into it; a sanitizer's runtime has to come first. */
export function environment(variables: Readonly<Record<string, string>>, preload = ''): Record<string, string> {
  const inherited = ['ASAN_OPTIONS', 'LSAN_OPTIONS', 'UBSAN_OPTIONS', 'TSAN_OPTIONS'].flatMap((name) => {
    const value = process.env[name];
    return value === undefined ? [] : [[name, value] as const];
  });
  const objects = `${process.env.COTENANT_SANITIZER_PRELOAD ?? ''} ${preload}`.trim();
  return { ...Object.fromEntries(inherited), ...variables, ...(objects === '' ? {} : { LD_PRELOAD: objects }) };
}

export type Kind =
  | 'context'
  | 'linear'
  | 'pool'
  | 'vmm'
  | 'managed'
  | 'code'
  | 'graph'
  | 'limits'
  | 'array'
  | 'external'
  | 'green';
export type ClientUsage = {
  pid: number;
  command: string;
  types: number;
  alive: boolean;
  gpus: ({ contexts: number; bytes: number; peak: number; smNs: number } & Record<Kind, number>)[];
};
export type NodeUsage = {
  gpus: {
    name: string;
    totalBytes: number;
    reservedBytes: number;
    usedBytes: number;
    granuleBytes: number;
    contextBytes: number;
  }[];
  clients: ClientUsage[];
  groups: { root: number; gpus: { bytes: number; peak: number }[] }[];
};

export type SimulatedNode = {
  readonly folder: string;
  /** For LD_LIBRARY_PATH. */
  readonly lib: string;
  readonly child: ChildProcess;
  usage(): NodeUsage;
  control(...argv: string[]): void;
  /** Bytes of a GPU that programs can allocate in total. */
  usable(gpu: number): number;
  uuidHex(gpu: number): string;
  uuid(gpu: number): string;
};

/** Runs cleanups in reverse order: a test of ava, or a benchmark. */
export type Teardown = { teardown(undo: () => void | Promise<void>): void };

/** A temporary folder that is removed after the test. The path is short, as unix sockets need. */
export function temporaryFolder(t: Teardown): string {
  const folder = mkdtempSync(join(tmpdir(), 'ct-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Gives a node's programs a channel of IMEX, which fabric handles need. */
export function allowFabric(node: Pick<SimulatedNode, 'folder'>): void {
  mkdirSync(join(node.folder, 'imex-channels'));
  writeFileSync(join(node.folder, 'imex-channels/channel0'), '');
}

/** In a folder of its own, unless `--dir` names the folder of a node that has ended. */
export async function startNode(t: Teardown, ...args: string[]): Promise<SimulatedNode> {
  const at = args.indexOf('--dir');
  const folder = (at < 0 ? undefined : args[at + 1]) ?? temporaryFolder(t);
  const program = join(BUILD, 'cotenant-simulator');
  const child = spawn(program, ['serve', ...(at < 0 ? ['--dir', folder] : []), ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const line = once(createInterface({ input: child.stdout }), 'line');
  const early = once(child, 'exit').then(([code]) => {
    throw new Error(`the simulator ended with ${code} before it was ready`);
  });
  await Promise.race([line, early]);
  early.catch(() => {});
  t.teardown(async () => {
    if (child.exitCode === null && child.signalCode === null) {
      const ended = once(child, 'exit');
      child.kill('SIGTERM');
      await ended;
    }
    if (child.exitCode !== 0 && child.signalCode !== 'SIGKILL') {
      throw new Error(`the simulator ended with ${child.signalCode ?? child.exitCode}`);
    }
  });
  const control = (...argv: string[]) =>
    execFileSync(program, [...argv, '--dir', folder], { encoding: 'utf8', maxBuffer: 1 << 24 });
  const uuids = new Map<number, string>();
  const uuidOf = (gpu: number): string => {
    const known = uuids.get(gpu);
    if (known) return known;
    const nvml = join(folder, 'lib/libnvidia-ml.so.1');
    const text = execFileSync(join(BUILD, 'cotenant-sampler'), ['--library', nvml], { input: '', encoding: 'utf8' });
    for (const [index, entry] of firstSample(text).gpus.entries()) uuids.set(index, entry.uuid);
    const uuid = uuids.get(gpu);
    if (!uuid) throw new Error(`no GPU ${gpu}`);
    return uuid;
  };
  return {
    folder,
    lib: join(folder, 'lib'),
    child,
    usage: () => JSON.parse(control('usage')) as NodeUsage,
    control: (...argv) => {
      control(...argv);
    },
    usable(gpu) {
      const entry = (JSON.parse(control('usage')) as NodeUsage).gpus[gpu];
      if (!entry) throw new Error(`no GPU ${gpu}`);
      return entry.totalBytes - entry.reservedBytes;
    },
    uuid: uuidOf,
    uuidHex: (gpu) => uuidOf(gpu).replace('GPU-', '').replaceAll('-', ''),
  };
}

/** For what a program needs that was just started: on a busy machine it is read from disk for half a minute. */
export const START_MS = 90_000;

/**
 * Waits until `look` returns something other than undefined, null or false. Throws when a look that began after `ms`
 * found nothing: on a busy machine a single look may take that long.
 */
export async function eventually<T>(
  look: () => T | undefined | Promise<T | undefined>,
  what: string,
  ms = 60_000,
): Promise<Exclude<T, undefined | null | false>> {
  const from = performance.now();
  for (let looks = 1; ; looks += 1) {
    const isLast = performance.now() - from > ms;
    const found = await look();
    if (found !== undefined && found !== null && found !== false) return found as Exclude<T, undefined | null | false>;
    if (isLast) throw new Error(`not within ${ms} ms and ${looks} looks: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
