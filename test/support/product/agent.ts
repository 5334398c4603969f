// Starts the agent and `cotenant run` as processes for tests, the way users start them.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import type { ActionRecord } from '../../../src/agent/enforcement/action-record.ts';
import { engineNumber } from '../../../src/agent/grants/engine-files.ts';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { ask } from '../../../src/cli/lib/agent-client.ts';
import { BUILD, eventually, type SimulatedNode, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { mainOf } from './image.ts';

const ROOT = join(import.meta.dirname, '../../..');
const MAIN = join(ROOT, 'src/cli/main.ts');
const FINAL_OUTPUT_MS = 2000;

/** Environment that the chart sets for the node half to save memory, and a folder for compiled code. */
export const CHART_ENV = {
  NODE_OPTIONS: '--max-semi-space-size=2 --max-old-space-size=512',
  MALLOC_ARENA_MAX: '1',
} as const;

export type RunningAgent = {
  readonly url: string;
  readonly state: string;
  readonly child: ChildProcess;
  readonly log: string[];
  metrics(): Promise<string>;
  /** Value of the series with this name and these labels; undefined if there is none. */
  metric(name: string, labels?: Record<string, string>): Promise<number | undefined>;
  snapshot(): Promise<Snapshot | null>;
  /** Resolves when the agent has measured this many GPUs. Until then a process of its own holds a context now and
   * then. */
  measured(gpus: number): Promise<void>;
  /** Entries of the current audit file and of the rotated one. Older files are gone. */
  audit(): ActionRecord[];
  stop(signal?: NodeJS.Signals): Promise<void>;
};

/** Without refusals to act on a sample that is too old: on a busy machine there are such, and the next sample decides. */
export const actedOn = (records: readonly ActionRecord[]): ActionRecord[] =>
  records.filter(({ action, refusal }) => action !== 'refuse' || refusal !== 'stale');

export type AgentOptions = {
  readonly settings?: Record<string, string | number | boolean>;
  /** Settings that only a file can have. */
  readonly file?: Readonly<Record<string, unknown>>;
  readonly state?: string;
  readonly library?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Where the program is installed; by default the repository. */
  readonly root?: string;
  /** A command that becomes the agent. */
  readonly prefix?: readonly string[];
};

/** Installs the program like another build: the same files, except for these in the folder of build outputs. */
export function anotherBuild(t: Teardown, files: readonly string[]): string {
  const root = join(temporaryFolder(t), 'cotenant');
  const build = join(root, 'native/build');
  mkdirSync(build, { recursive: true });
  cpSync(join(ROOT, 'src'), join(root, 'src'), { recursive: true });
  for (const name of ['package.json', 'node_modules', 'native/build.ts', 'webhook'])
    symlinkSync(join(ROOT, name), join(root, name));
  for (const name of readdirSync(BUILD)) {
    if (engineNumber(name) === undefined) symlinkSync(join(BUILD, name), join(build, name));
  }
  for (const path of files) copyFileSync(path, join(build, basename(path)));
  return root;
}

export async function startAgent(t: Teardown, node: SimulatedNode, options: AgentOptions = {}): Promise<RunningAgent> {
  const state = options.state ?? join(temporaryFolder(t), 'state');
  const settings = {
    stateFolder: state,
    port: 0,
    nvmlLibrary: options.library ?? join(node.lib, 'libnvidia-ml.so.1'),
    cudaLibrary: join(node.lib, 'libcuda.so.1'),
    // Both features put a process of the agent on the GPUs now and then.
    canary: options.settings?.calibrate ?? true,
    ...options.settings,
  };
  const flags = Object.entries(settings).flatMap(([path, value]) => ['--set', `${path}=${value}`]);
  if (options.file !== undefined) {
    const path = join(temporaryFolder(t), 'agent.json');
    writeFileSync(path, JSON.stringify(options.file));
    flags.push('--config', path);
  }
  const [program = '', ...args] = [...(options.prefix ?? []), process.execPath, mainOf(options.root), 'agent'];
  const child = spawn(program, [...args, ...flags], {
    env: { ...process.env, ...options.env },
    stdio: ['ignore', 'inherit', 'pipe'],
  });
  const log: string[] = [];
  const lines = createInterface({ input: child.stderr });
  lines.on('line', (line) => log.push(line));
  const exited = once(child, 'exit');
  const stop = async (signal: NodeJS.Signals = 'SIGTERM') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await exited;
  };
  t.teardown(() => stop());
  const url = await eventually(
    () => {
      if (child.exitCode !== null) throw new Error(`the agent ended: ${log.join('\n')}`);
      // The node half alone has no URL.
      if (log.some((line) => line.includes(' snapshots on '))) return '';
      return log.flatMap((line) => /metrics on (https?:\S+)\/metrics/.exec(line)?.[1] ?? [])[0];
    },
    'the agent listens',
    START_MS,
  );
  const snapshot = async () => (await ask(state, 'GET', '/v1/status')).body as Snapshot | null;
  await eventually(async () => ((await snapshot()) ? true : undefined), 'the first sample', START_MS);
  const metrics = async () => (await fetch(`${url}/metrics`)).text();
  return {
    url,
    state,
    child,
    log,
    metrics,
    metric: async (name, labels = {}) => seriesOf(await metrics(), name, labels),
    snapshot,
    async measured(gpus) {
      const path = join(state, 'profiles.json');
      await eventually(
        () => (existsSync(path) && Object.keys(JSON.parse(readFileSync(path, 'utf8'))).length === gpus) || undefined,
        'the GPUs are measured',
      );
    },
    audit() {
      const paths = [join(state, 'audit.log.1'), join(state, 'audit.log')];
      return paths
        .flatMap((path) => (existsSync(path) ? readFileSync(path, 'utf8').split('\n') : []))
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as ActionRecord);
    },
    stop,
  };
}

/**
 * Starts an agent, waits for its metrics page and stops it. With NODE_COMPILE_CACHE in its environment it leaves the
 * compiled code, including that of the rendering thread, to the next agent.
 */
export async function compiled(start: () => Promise<RunningAgent>): Promise<void> {
  const first = await start();
  await eventually(async () => (await first.metric('cotenant_up')) === 1 || undefined, 'the first page');
  await first.stop();
}

/** Sum over the series of a page that have these labels; undefined if there is none. */
export function seriesOf(page: string, name: string, labels: Record<string, string> = {}): number | undefined {
  const values = page.split('\n').flatMap((line) => {
    const [, found, block = '', value] = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (found !== name) return [];
    const has = Object.entries(labels).every(([key, wanted]) => block.includes(`${key}="${wanted}"`));
    return has ? [Number(value)] : [];
  });
  return values.length === 0 ? undefined : values.reduce((sum, value) => sum + value, 0);
}

export type RunningTenant = {
  readonly child: ChildProcess;
  readonly output: string[];
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  write(line: string): void;
  /** The next line on standard output. */
  line(): Promise<string>;
};

/** `cotenant run FLAGS -- COMMAND`, prefixed by the command in `prefix`. Its standard streams are those of the
 * command. */
export function runTenant(
  t: Teardown,
  node: SimulatedNode,
  agent: RunningAgent,
  flags: readonly string[],
  command: readonly string[],
  { env = {}, prefix = [] }: { env?: Record<string, string>; prefix?: readonly string[] } = {},
): RunningTenant {
  const [file = '', ...args] = [...prefix, process.execPath, MAIN, 'run', '--state', agent.state, ...flags, '--'];
  const child = spawn(file, [...args, ...command], {
    env: { ...process.env, LD_LIBRARY_PATH: node.lib, ...env },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  const output: string[] = [];
  const errors = createInterface({ input: child.stderr }).on('line', (line) => output.push(line));
  const closed = once(errors, 'close');
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  child.stdin.on('error', () => {});
  const ended = (once(child, 'exit') as Promise<[number | null, NodeJS.Signals | null]>).then(
    async ([code, signal]) => {
      // Its output is read to the end after it exits; a daemon that it left behind may keep the pipe open.
      await Promise.race([closed, delay(FINAL_OUTPUT_MS, undefined, { ref: false })]);
      return { code, signal };
    },
  );
  t.teardown(async () => {
    child.kill('SIGTERM');
    const timer = setTimeout(() => child.kill('SIGKILL'), 5000);
    await ended;
    clearTimeout(timer);
  });
  return {
    child,
    output,
    ended,
    write: (line) => {
      child.stdin.write(`${line}\n`);
    },
    async line() {
      const { value, done } = await lines.next();
      if (done) throw new Error(`the tenant ended: ${output.join('\n')}`);
      return String(value);
    },
  };
}

/** Sends a command to a scripted client that runs as a tenant. */
export async function tell(tenant: RunningTenant, command: string): Promise<number[]> {
  tenant.write(command);
  return (await tenant.line()).split(' ').map(Number);
}
