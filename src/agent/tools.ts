// Programs of ours that open the driver, do one thing and end: run with a time limit, ended when the driver is given up, and
// none begun until it is taken again. Owns their processes; what they are asked and answer is their callers'.
import { type ChildProcess, execFile } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { DriverUser } from './driver.ts';
import { BUILD_FOLDER } from './native.ts';

export type ToolRun = {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly timeoutMs: number;
  readonly input?: string;
};

/** `stdout` also of one that ended in a bad way; `problem` says in which. */
export type ToolAnswer = { readonly stdout: string; readonly stderr: string; readonly problem?: string };

export type Tools = {
  /** Undefined: the driver is given up, and whatever it found out is not worth telling. */
  run(what: ToolRun): Promise<ToolAnswer | undefined>;
  readonly isGivenUp: () => boolean;
  readonly user: DriverUser;
};

/** To end when the driver is given up; who hangs in it does not. */
const LAST_MS = 2000;
const execute = promisify(execFile);

type Failed = Error & Partial<ToolAnswer> & { readonly killed?: boolean; readonly signal?: string | null };

export function createTools(): Tools {
  let stop = new AbortController();
  const running = new Set<ChildProcess>();
  return {
    async run({ program, args, env, timeoutMs, input }) {
      const { signal } = stop;
      if (signal.aborted) return undefined;
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
        return await executing;
      } catch (error) {
        if (signal.aborted) return undefined;
        const { stdout = '', stderr = '', killed, signal: by, message } = error as Failed;
        const late = `it did not end within ${timeoutMs / 1000} s`;
        return { stdout, stderr, problem: killed ? late : by ? `it was ended by ${by}` : message };
      }
    },
    isGivenUp: () => stop.signal.aborted,
    user: {
      async letGo() {
        stop.abort();
        const ended = [...running].map((child) => once(child, 'exit'));
        const late = new AbortController();
        await Promise.race([
          Promise.all(ended),
          delay(LAST_MS, undefined, { signal: late.signal, ref: false }).catch(() => {}),
        ]);
        late.abort();
      },
      take() {
        stop = new AbortController();
      },
      held: () => running.size,
    },
  };
}
