// The sampler as a child process: started, read line by line, and abandoned when it falls silent, for a hung driver call
// cannot be cancelled, only left behind. Owns the process; what the samples mean is others' business.
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { BUILD_FOLDER } from './native.ts';
import { parseSample, type Sample } from './sample.ts';

export type SamplerOptions = {
  readonly intervalMs: number;
  /** The driver's management library, by name or path. */
  readonly library: string;
  /** Silence after which a sampler is abandoned and another one started. */
  readonly silenceMs: number;
  readonly onSample: (sample: Sample) => void;
  readonly onProblem: (text: string) => void;
};

export type SamplerHandle = {
  setInterval(intervalMs: number): void;
  /** Samplers left behind because they hung. */
  readonly abandoned: () => number;
  close(): Promise<void>;
};

const LEAST_RESTART_MS = 1000;

export function startSampler(options: SamplerOptions): SamplerHandle {
  let child: ChildProcess | undefined;
  let watchdog: NodeJS.Timeout | undefined;
  let restart: NodeJS.Timeout | undefined;
  let closing = false;
  let abandoned = 0;
  let intervalMs = options.intervalMs;

  const watch = (current: ChildProcess) => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      abandoned += 1;
      options.onProblem(
        `the sampler said nothing for ${options.silenceMs} ms; it is left behind and another one started`,
      );
      current.kill('SIGKILL'); // takes effect when the driver lets go of it
      current.stdout?.destroy();
      current.unref();
      begin();
    }, options.silenceMs);
  };

  const begin = () => {
    const started = performance.now();
    const args = ['--interval-ms', String(intervalMs), '--library', options.library];
    // No preloaded library may come between the sampler and the driver.
    const { LD_PRELOAD: _, ...env } = process.env;
    const current = spawn(join(BUILD_FOLDER, 'cotenant-sampler'), args, { env, stdio: ['pipe', 'pipe', 'inherit'] });
    child = current;
    current.stdin?.on('error', () => {}); // it may end before a command reaches it
    current.on('error', (error) => options.onProblem(`the sampler cannot be started: ${error.message}`));
    current.on('exit', (code, signal) => {
      if (closing || child !== current) return;
      clearTimeout(watchdog);
      options.onProblem(`the sampler ended (${signal ?? `code ${code}`}); it is started again`);
      restart = setTimeout(begin, Math.max(0, LEAST_RESTART_MS - (performance.now() - started)));
    });
    createInterface({ input: current.stdout }).on('line', (line) => {
      if (child !== current || closing) return;
      watch(current);
      const sample = parseSample(line);
      if ('wrong' in sample) options.onProblem(`the sampler wrote a line that cannot be used: ${sample.wrong}`);
      else options.onSample(sample);
    });
    watch(current);
  };

  begin();
  return {
    setInterval(next) {
      if (next === intervalMs) return;
      intervalMs = next;
      child?.stdin?.write(`interval ${next}\n`);
    },
    abandoned: () => abandoned,
    async close() {
      closing = true;
      clearTimeout(watchdog);
      clearTimeout(restart);
      const current = child;
      if (!current || current.exitCode !== null || current.signalCode !== null) return;
      const ended = new Promise((resolve) => current.once('exit', resolve));
      current.kill('SIGTERM');
      await ended;
    },
  };
}
