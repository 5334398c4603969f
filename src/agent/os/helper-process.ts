// Child processes of the agent: programs of ours that run once with a time limit (calibrate, canary, driver limits),
// and those that run on and write lines (sampler, arbiter), restarted when they end. A process that hangs in a driver
// call cannot be ended; it is abandoned, and only a few ever are.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { Logger } from '../../common/logger.ts';
import { attempt } from '../../common/result.ts';
import { BUILD_FOLDER } from './addon.ts';
import type { DriverUser } from './driver-handle.ts';

/** With so many that hang in the driver, another one would only join them. */
const MAX_HUNG = 3;
/** For a process to end after SIGTERM, or when the driver is released. */
const EXIT_MS = 2000;
/** For a process to end after SIGKILL at its time limit. */
const KILL_MS = 1000;
/** Between two starts of a process that runs on. */
const MIN_RESTART_MS = 1000;

/** Processes that did not end when they were killed: the driver holds them until its call returns. */
function createHungProcesses(onExit: () => void = () => {}) {
  const hung = new Set<ChildProcess>();
  return {
    count: () => hung.size,
    abandon(child: ChildProcess): void {
      hung.add(child);
      child.once('exit', () => {
        hung.delete(child);
        onExit();
      });
      child.kill('SIGKILL');
      for (const stream of [child.stdin, child.stdout, child.stderr]) stream?.destroy();
      child.unref();
    },
  };
}

type HelperRun = {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly timeoutMs: number;
  readonly input?: string;
};

/** `problem`: it failed, and how; what it had written until then is there all the same. */
type HelperResult = { readonly stdout: string; readonly stderr: string; readonly problem?: string };

export type HelperRunner = {
  /** Undefined: the driver was released, before it began or meanwhile. */
  run(what: HelperRun): Promise<HelperResult | undefined>;
  readonly isDriverReleased: () => boolean;
  readonly user: DriverUser;
};

const execute = promisify(execFile);

type ExecuteError = Error & Partial<HelperResult> & { readonly killed?: boolean; readonly signal?: string | null };

/** Runs programs once each; none while the driver is released. */
export function createHelperRunner(): HelperRunner {
  let released = new AbortController();
  const running = new Set<ChildProcess>();
  const hung = createHungProcesses();
  /** Resolves where the process does not end in time; never rejects. */
  const abandonAfter = async (child: ChildProcess, timeoutMs: number, ended: AbortSignal): Promise<HelperResult> => {
    await delay(timeoutMs + KILL_MS, undefined, { signal: ended, ref: false }).catch(() => {});
    if (!ended.aborted && running.has(child)) hung.abandon(child);
    return { stdout: '', stderr: '', problem: 'it hangs in the driver and is abandoned' };
  };
  return {
    async run({ program, args, env, timeoutMs, input }) {
      const { signal } = released;
      if (signal.aborted) return undefined;
      if (hung.count() >= MAX_HUNG) {
        const problem = `not started: ${hung.count()} helper processes hang in the driver`;
        return { stdout: '', stderr: '', problem };
      }
      const ended = new AbortController();
      try {
        const executing = execute(join(BUILD_FOLDER, program), args, {
          env,
          timeout: timeoutMs,
          killSignal: 'SIGKILL',
          signal,
        });
        const { child } = executing;
        if (child.pid !== undefined) running.add(child);
        child.once('exit', () => running.delete(child));
        child.stdin?.on('error', () => {}); // it may end before it has read
        child.stdin?.end(input ?? '');
        return await Promise.race([executing, abandonAfter(child, timeoutMs, ended.signal)]);
      } catch (error) {
        if (signal.aborted) return undefined;
        const { stdout = '', stderr = '', killed, signal: by, message } = error as ExecuteError;
        const late = `it did not end within ${timeoutMs / 1000} s`;
        return { stdout, stderr, problem: killed ? late : by ? `it was ended by ${by}` : message };
      } finally {
        ended.abort();
      }
    },
    isDriverReleased: () => released.signal.aborted,
    user: {
      async release() {
        released.abort();
        const exits = [...running].map((child) => once(child, 'exit'));
        const waiting = new AbortController();
        await Promise.race([
          Promise.all(exits),
          delay(EXIT_MS, undefined, { signal: waiting.signal, ref: false }).catch(() => {}),
        ]);
        waiting.abort();
      },
      reacquire() {
        released = new AbortController();
      },
      openCount: () => running.size,
    },
  };
}

/** Processes that were abandoned so far, and those of them that have not ended: the driver still holds them. */
export type AbandonedCounts = { readonly abandoned: number; readonly hung: number };

type SupervisedProcess = {
  /** Starts it; it is restarted whenever it ends, until `stop`. */
  start(): void;
  /** Ends it: by SIGTERM, or by the end of its input; abandons it where it does not end in time. */
  stop(): Promise<void>;
  /** To its stdin; lost while it does not run. */
  send(text: string): void;
  readonly abandonedCounts: () => AbandonedCounts;
};

type SupervisedOptions = {
  /** In problems, e.g. `the sampler`. */
  readonly name: string;
  /** Asked at each start. */
  readonly command: () => {
    readonly program: string;
    readonly args?: readonly string[];
    readonly env?: NodeJS.ProcessEnv;
  };
  /** Returns why a line cannot be used: the process is then killed, and what else it wrote is ignored. */
  readonly onLine: (line: string) => string | undefined;
  readonly onStart?: () => void;
  /** The system refused to start it. */
  readonly onStartFailed?: () => void;
  /** Returns what the exit is reported as; undefined: as any other. */
  readonly onExit?: (code: number | null) => string | undefined;
  readonly log: Pick<Logger, 'warn'>;
  /** Without a line for so long it is abandoned, and another one started; absent: it may be silent. */
  readonly silenceMs?: number;
  /** Absent: SIGTERM. */
  readonly stopBy?: 'end of input';
};

type ChildEvents = {
  /** Returns why a line cannot be used: the process is then killed, and what else it wrote is ignored. */
  readonly onLine: (line: string) => string | undefined;
  readonly onRefused: (why: string) => void;
  /** It ended, or could not be started. */
  readonly onEnd: (code: number | null, how: string) => void;
};

function subscribe(child: ChildProcess, name: string, { onLine, onRefused, onEnd }: ChildEvents): void {
  let isRefused = false;
  child.stdin?.on('error', () => {}); // it may end before a command reaches it
  child.on('error', (error) => {
    if (child.pid === undefined) onEnd(null, `${name} cannot be started: ${error.message}`);
  });
  child.on('exit', (code, signal) => onEnd(code, `${name} ended (${signal ?? `code ${code}`}); it is restarted`));
  if (!child.stdout) return;
  createInterface({ input: child.stdout }).on('line', (line) => {
    const wrong = isRefused ? undefined : onLine(line);
    if (wrong === undefined) return;
    isRefused = true;
    onRefused(`${name} wrote a line that cannot be used, and is restarted: ${wrong}`);
    child.kill('SIGKILL');
  });
}

/** Asks a process to end, and abandons it where it does not in time. */
async function endChild(child: ChildProcess, stopBy: SupervisedOptions['stopBy'], abandon: () => void): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const { promise: exited, resolve } = Promise.withResolvers<void>();
  child.once('exit', () => resolve());
  const timer = setTimeout(() => {
    abandon();
    resolve();
  }, EXIT_MS);
  if (stopBy === 'end of input') child.stdin?.end();
  else child.kill('SIGTERM');
  await exited;
  clearTimeout(timer);
}

const nextStart = (hung: number): string =>
  hung < MAX_HUNG
    ? 'another one is started'
    : `none is started until one of the ${hung} that hang in the driver has ended`;

/** A process that runs until it is stopped. */
export function superviseProcess(options: SupervisedOptions): SupervisedProcess {
  const { name, command, onLine, log, silenceMs } = options;
  let child: ChildProcess | undefined;
  let watchdog: NodeJS.Timeout | undefined;
  let restart: NodeJS.Timeout | undefined;
  let isStopped = true;
  let abandoned = 0;

  /** The next one: at once where none hangs, and the later, the more do. */
  const startUnlessHung = (): void => {
    clearTimeout(restart);
    if (isStopped || child || hung.count() >= MAX_HUNG) return;
    restart = setTimeout(begin, hung.count() === 0 ? 0 : (silenceMs ?? EXIT_MS) * 2 ** (hung.count() - 1));
  };
  const hung = createHungProcesses(startUnlessHung);

  const watch = (current: ChildProcess): void => {
    if (silenceMs === undefined) return;
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      abandoned += 1;
      child = undefined;
      hung.abandon(current);
      log.warn(`${name} wrote nothing for ${silenceMs} ms and is abandoned; ${nextStart(hung.count())}`);
      startUnlessHung();
    }, silenceMs);
  };

  const begin = (): void => {
    const startedMs = performance.now();
    const { program, args = [], env = process.env } = command();
    const spawned = attempt(() => spawn(program, args, { env, stdio: ['pipe', 'pipe', 'inherit'] }));
    if (!spawned.ok) {
      log.warn(`${name} cannot be started: ${spawned.error}`);
      options.onStartFailed?.();
      restart = setTimeout(begin, MIN_RESTART_MS);
      return;
    }
    const current = spawned.value;
    child = current;
    subscribe(current, name, {
      onLine(line) {
        if (child !== current) return undefined;
        watch(current);
        return onLine(line);
      },
      onRefused: log.warn,
      onEnd(code, how) {
        if (child !== current) return;
        child = undefined;
        clearTimeout(watchdog);
        log.warn(options.onExit?.(code) ?? how);
        restart = setTimeout(begin, Math.max(0, MIN_RESTART_MS - (performance.now() - startedMs)));
      },
    });
    watch(current);
    options.onStart?.();
  };

  return {
    start() {
      if (!isStopped) return;
      isStopped = false;
      if (hung.count() === 0) begin();
      else startUnlessHung();
    },
    async stop() {
      isStopped = true;
      clearTimeout(watchdog);
      clearTimeout(restart);
      const current = child;
      child = undefined;
      if (current) await endChild(current, options.stopBy, () => hung.abandon(current));
    },
    send: (text) => void child?.stdin?.write(text),
    abandonedCounts: () => ({ abandoned, hung: hung.count() }),
  };
}
