// Programs of ours that open the driver, do one thing and end: run with a time limit, left behind where the driver does not let
// them end, ended when it is given up, and none begun until it is taken again. Owns their processes; what they are asked and answer is their callers'.
import { type ChildProcess, execFile } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { BUILD_FOLDER } from './addon.ts';
import type { DriverUser } from './driver-handle.ts';

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
/** After its time limit, to end by the signal that it gets then. */
const END_MS = 1000;
/** With so many that the driver still holds, another one would only join them. */
const MOST_HUNG = 3;
const execute = promisify(execFile);

type Failed = Error & Partial<ToolAnswer> & { readonly killed?: boolean; readonly signal?: string | null };

export function createTools(): Tools {
  let stop = new AbortController();
  const running = new Set<ChildProcess>();
  const hung = new Set<ChildProcess>();
  /** Settles where the process does not end; never rejects. */
  const leftBehind = async (child: ChildProcess, timeoutMs: number, ended: AbortSignal): Promise<ToolAnswer> => {
    await delay(timeoutMs + END_MS, undefined, { signal: ended, ref: false }).catch(() => {});
    if (!ended.aborted) {
      if (running.has(child)) hung.add(child);
      child.once('exit', () => hung.delete(child));
      for (const end of [child.stdin, child.stdout, child.stderr]) end?.destroy();
      child.unref();
    }
    return { stdout: '', stderr: '', problem: 'it hangs in the driver and is left behind' };
  };
  return {
    async run({ program, args, env, timeoutMs, input }) {
      const { signal } = stop;
      if (signal.aborted) return undefined;
      if (hung.size >= MOST_HUNG) {
        const problem = `${hung.size} before it hang in the driver; none is begun until one has ended`;
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
        return await Promise.race([executing, leftBehind(child, timeoutMs, ended.signal)]);
      } catch (error) {
        if (signal.aborted) return undefined;
        const { stdout = '', stderr = '', killed, signal: by, message } = error as Failed;
        const late = `it did not end within ${timeoutMs / 1000} s`;
        return { stdout, stderr, problem: killed ? late : by ? `it was ended by ${by}` : message };
      } finally {
        ended.abort();
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
