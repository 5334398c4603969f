// The sampler as a child process: started, read line by line, and abandoned when it falls silent, for a hung driver call
// cannot be cancelled, only left behind. What is left behind may stay for good, so no more than a few ever are. Owns the
// processes; what the samples mean is others' business.
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { BUILD_FOLDER } from '../os/addon.ts';
import { createSampleReader } from './delta-decoder.ts';
import type { UsedUntil } from './line-schema.ts';
import type { Sample, SampledProcess } from './sample.ts';

export type SamplerOptions = {
  readonly intervalMs: number;
  /** The driver's management library, by name or path. */
  readonly library: string;
  /** A program in the sampler's place. */
  readonly program?: string;
  /** Silence after which a sampler is abandoned and another one started. */
  readonly silenceMs: number;
  readonly onSample: (sample: Sample) => void;
  readonly onProblem: (text: string) => void;
};

/** Samplers left behind because they hung, and those of them that have not ended: the driver still holds them. */
export type LeftBehind = { readonly abandoned: number; readonly hung: number };

export type SamplerHandle = {
  setInterval(intervalMs: number): void;
  /** Ends it, so that the driver can be taken away; what hangs in the driver is left behind. */
  release(): Promise<void>;
  /** Starts it again. */
  take(): void;
  readonly leftBehind: () => LeftBehind;
  close(): Promise<void>;
};

/** Of the newest sample, for the next sampler: up to where it tells of use, and who was there then. */
type GoesOn = { readonly usedUntil: readonly UsedUntil[]; readonly processes: readonly SampledProcess[] };
const NOTHING: GoesOn = { usedUntil: [], processes: [] };

/** What a GPU is called comes from the driver: what is no word as drivers have them is handed on to nobody. */
const isPlain = (uuid: string): boolean => /^[\x21-\x7e]{1,96}$/.test(uuid);
const MOST_GPUS = 64;

const LEAST_RESTART_MS = 1000;
/** With so many that the driver still holds, another one would only join them. */
const MOST_HUNG = 3;
/** With this code it ends when the driver that it opened is gone: another driver may have come. */
const DRIVER_GONE = 3;
/** To end by itself at the agent's end. */
const LAST_MS = 2000;

export function startSampler(options: SamplerOptions): SamplerHandle {
  let child: ChildProcess | undefined;
  let watchdog: NodeJS.Timeout | undefined;
  let restart: NodeJS.Timeout | undefined;
  let denialTold = false;
  const absenceTold = new Set<string>();
  let closing = false;
  let released = false;
  let abandoned = 0;
  let intervalMs = options.intervalMs;
  /** As far as samples were handed on: there the next one goes on. */
  let goesOn: GoesOn = NOTHING;
  const hung = new Set<ChildProcess>();

  /** The next one: at once where the last one has ended, and the later, the more the driver holds. */
  const startAfterHang = () => {
    clearTimeout(restart);
    if (closing || released || child || hung.size >= MOST_HUNG) return;
    restart = setTimeout(begin, hung.size === 0 ? 0 : options.silenceMs * 2 ** (hung.size - 1));
  };

  const leaveBehind = (current: ChildProcess) => {
    hung.add(current);
    current.on('exit', () => {
      hung.delete(current);
      startAfterHang();
    });
    current.kill('SIGKILL'); // takes effect when the driver lets go of it
    current.stdin?.destroy();
    current.stdout?.destroy();
    current.unref();
  };

  const watch = (current: ChildProcess) => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => {
      abandoned += 1;
      child = undefined;
      leaveBehind(current);
      const next =
        hung.size < MOST_HUNG
          ? 'another one is started'
          : `${hung.size} hang in the driver; none is started until one has ended`;
      options.onProblem(`the sampler said nothing for ${options.silenceMs} ms; it is left behind, ${next}`);
      startAfterHang();
    }, options.silenceMs);
  };

  /** Once: nothing but another start of the agent changes it. */
  const tellDenial = ({ gpus }: Sample) => {
    const denied = gpus.filter(({ activityDenied }) => activityDenied).map(({ uuid }) => uuid);
    if (denialTold || denied.length === 0) return;
    denialTold = true;
    options.onProblem(
      `the driver refuses the counters of ${denied.join(', ')} (GPM): how busy SMs, tensor cores and memory are is not told; they want CAP_PERFMON or CAP_SYS_ADMIN`,
    );
  };

  /** An older driver tells less; the next sampler of the same one would only say so again. */
  const tellAbsent = ({ absent = [], driverVersion }: Sample) => {
    const text = `driver ${driverVersion} has no ${absent.join(', ')}: what they tell is absent`;
    if (absent.length === 0 || absenceTold.has(text)) return;
    absenceTold.add(text);
    options.onProblem(text);
  };

  const spawned = (program: string, args: readonly string[], env: NodeJS.ProcessEnv) => {
    try {
      return spawn(program, args, { env, stdio: ['pipe', 'pipe', 'inherit'] });
    } catch (error) {
      options.onProblem(`the sampler cannot be started: ${(error as Error).message}`);
      return undefined;
    }
  };

  const begin = () => {
    const started = performance.now();
    const until = goesOn.usedUntil
      .filter(({ uuid }) => isPlain(uuid))
      .slice(0, MOST_GPUS)
      .flatMap(({ uuid, dayUs, bootUs, setUs }) => ['--used-until', `${dayUs}:${bootUs}:${setUs}:${uuid}`]);
    const args = ['--interval-ms', String(intervalMs), '--library', options.library, ...until];
    // No preloaded library may come between the sampler and the driver.
    const { LD_PRELOAD: _, ...env } = process.env;
    const program = options.program ?? join(BUILD_FOLDER, 'cotenant-sampler');
    const current = spawned(program, args, env);
    if (!current) {
      goesOn = NOTHING;
      restart = setTimeout(begin, LEAST_RESTART_MS);
      return;
    }
    child = current;
    const again = (problem: string) => {
      if (closing || child !== current) return;
      child = undefined;
      clearTimeout(watchdog);
      options.onProblem(problem);
      restart = setTimeout(begin, Math.max(0, LEAST_RESTART_MS - (performance.now() - started)));
    };
    current.stdin?.on('error', () => {}); // it may end before a command reaches it
    current.on('error', (error) => {
      if (current.pid === undefined) again(`the sampler cannot be started: ${error.message}`);
    });
    current.on('exit', (code, signal) => {
      // What the next driver samples begins with it.
      if (code === DRIVER_GONE && child === current) goesOn = NOTHING;
      again(
        code === DRIVER_GONE
          ? 'the driver answers nothing any more; it is opened anew'
          : `the sampler ended (${signal ?? `code ${code}`}); it is started again`,
      );
    });
    const reader = createSampleReader(goesOn.processes);
    let refused = false;
    createInterface({ input: current.stdout }).on('line', (line) => {
      if (child !== current || closing || refused) return;
      watch(current);
      const sample = reader.read(line);
      if ('wrong' in sample) {
        // Its lines build on each other; the next one begins with all there is.
        refused = true;
        options.onProblem(`the sampler wrote a line that cannot be used, and is ended: ${sample.wrong}`);
        current.kill('SIGKILL');
      } else {
        goesOn = { usedUntil: reader.usedUntil(), processes: sample.processes };
        tellDenial(sample);
        tellAbsent(sample);
        options.onSample(sample);
      }
    });
    watch(current);
  };

  const end = async () => {
    clearTimeout(watchdog);
    clearTimeout(restart);
    const current = child;
    child = undefined;
    if (!current || current.exitCode !== null || current.signalCode !== null) return;
    const { promise: over, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(() => {
      leaveBehind(current);
      resolve();
    }, LAST_MS);
    current.once('exit', () => resolve());
    current.kill('SIGTERM');
    await over;
    clearTimeout(timer);
  };

  begin();
  return {
    setInterval(next) {
      if (next === intervalMs) return;
      intervalMs = next;
      child?.stdin?.write(`interval ${next}\n`);
    },
    async release() {
      released = true;
      goesOn = NOTHING; // of this driver
      await end();
    },
    take() {
      if (!released || closing) return;
      released = false;
      startAfterHang();
    },
    leftBehind: () => ({ abandoned, hung: hung.size }),
    async close() {
      closing = true;
      await end();
    },
  };
}
