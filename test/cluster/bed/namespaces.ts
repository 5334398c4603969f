// A mount and network namespace for one test cluster, and the processes in it. All end with the process that created
// them, even if it is killed: the holder of the namespaces sees its standard input close, the others get a parent-death
// signal.
import { type ChildProcess, type ChildProcessByStdio, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';

export type Ran = { readonly code: number | null; readonly out: string; readonly err: string };

export type Namespaces = {
  /** PID of the holder: `nsenter -t PID -m -n` enters the namespaces. */
  readonly pid: number;
  /** Runs a program inside to its end. */
  run(command: readonly string[], options?: { input?: string; env?: Record<string, string> }): Ran;
  /** Runs a script inside; throws with its output when it fails. */
  script(text: string): void;
  /** Starts a program inside that keeps running; its output is FOLDER/NAME.log. */
  start(name: string, command: readonly string[], env?: Record<string, string>): void;
  /** Starts a program again that has ended, with the same arguments. */
  startAgain(name: string): void;
  /** Sends a signal to a started program, and to it alone. */
  signal(name: string, signal: NodeJS.Signals): void;
  /** Ends a program by a signal, and by SIGKILL if it takes too long. */
  stop(name: string, signal: NodeJS.Signals): Promise<void>;
  /** Starts a program inside with open standard streams. */
  talk(command: readonly string[]): ChildProcessByStdio<Writable, Readable, null>;
  /** Ends the started programs, then the namespaces. */
  close(): Promise<void>;
};

const GRACE_MS = 10_000;

const isOver = (child: ChildProcess) => child.exitCode !== null || child.signalCode !== null;

async function end(child: ChildProcess, signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
  if (isOver(child)) return;
  const ended = once(child, 'exit');
  child.kill(signal);
  child.kill('SIGCONT'); // one that is stopped would not hear of it
  const timer = setTimeout(() => child.kill('SIGKILL'), GRACE_MS);
  await ended;
  clearTimeout(timer);
}

/** `group`: the cgroup of all started programs. */
export async function openNamespaces(folder: string, group: string): Promise<Namespaces> {
  const holder = spawn('unshare', ['-m', '-n', '--propagation', 'private', 'sh', '-c', 'echo in; exec cat'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  holder.stdin.on('error', () => {});
  const inside = once(createInterface({ input: holder.stdout }), 'line');
  const failed = once(holder, 'exit').then(() => {
    throw new Error('no mount and network namespace can be made here');
  });
  await Promise.race([inside, failed]);
  failed.catch(() => {});
  const pid = holder.pid ?? 0;
  const enter = ['nsenter', '-t', String(pid), '-m', '-n'];
  // The running program by name, and how it is started again.
  const programs = new Map<string, { child: ChildProcess; readonly launch: () => ChildProcess }>();
  const started: ChildProcess[] = [];
  const programOf = (name: string) => {
    const program = programs.get(name);
    if (program === undefined)
      throw new Error(`${name} was never started; there are ${[...programs.keys()].join(', ')}`);
    return program;
  };
  const run: Namespaces['run'] = (command, { input = '', env = {} } = {}) => {
    const [file = '', ...args] = [...enter, ...command];
    const result = spawnSync(file, args, {
      input,
      env: { ...process.env, ...env },
      encoding: 'utf8',
      maxBuffer: 1 << 28,
    });
    return { code: result.status, out: result.stdout ?? '', err: result.stderr ?? '' };
  };
  return {
    pid,
    run,
    script(text) {
      const { code, err } = run(['sh', '-eu', '-c', text]);
      if (code !== 0) throw new Error(`the bed's namespace: ${err.trim()}`);
    },
    start(name, command, env = {}) {
      const inGroup = ['sh', '-c', 'echo $$ > "$0/cgroup.procs" && exec "$@"', group];
      const launch = () => {
        const log = openSync(join(folder, `${name}.log`), 'a');
        const child = spawn('setpriv', ['--pdeathsig', 'TERM', ...inGroup, ...enter, ...command], {
          env: { ...process.env, ...env },
          stdio: ['ignore', log, log],
        });
        closeSync(log);
        started.push(child);
        return child;
      };
      programs.set(name, { child: launch(), launch });
    },
    startAgain(name) {
      const program = programOf(name);
      if (!isOver(program.child)) throw new Error(`${name} runs already`);
      program.child = program.launch();
    },
    signal(name, signal) {
      if (!programOf(name).child.kill(signal)) throw new Error(`${name} has ended`);
    },
    stop: (name, signal) => end(programOf(name).child, signal),
    talk(command) {
      const child = spawn('setpriv', ['--pdeathsig', 'TERM', ...enter, ...command], {
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      child.stdin.on('error', () => {}); // it may have ended
      started.push(child);
      return child;
    },
    async close() {
      // No orderly shutdown: whatever a program would clean up goes with the namespaces and cgroups.
      await Promise.all(started.map((child) => end(child, 'SIGKILL')));
      await end(holder);
    },
  };
}

/** The last lines of a program's log, for an error message. */
export function lastWords(folder: string, name: string, lines = 5): string {
  try {
    return readFileSync(join(folder, `${name}.log`), 'utf8')
      .trim()
      .split('\n')
      .slice(-lines)
      .join('\n');
  } catch {
    return '';
  }
}

/** Path of a program of this machine; undefined if it is not installed. */
export function onPath(name: string): string | undefined {
  try {
    return execFileSync('sh', ['-c', 'command -v "$1"', 'sh', name], { encoding: 'utf8' }).trim();
  } catch {
    return undefined;
  }
}
