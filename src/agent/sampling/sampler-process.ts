// The sampler as a child process: its command line, its lines as samples, and what the driver lacks. A new sampler
// continues where the last one stopped, so that no use is counted twice or lost.
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import { BUILD_FOLDER } from '../os/addon.ts';
import { type AbandonedCounts, superviseProcess } from '../os/helper-process.ts';
import { createSampleDecoder } from './delta-decoder.ts';
import type { UtilizationCursor } from './line-schema.ts';
import type { Sample, SampledProcess } from './sample.ts';

type SamplerOptions = {
  readonly intervalMs: number;
  /** The driver's management library, by name or path. */
  readonly library: string;
  /** A program in the sampler's place. */
  readonly program?: string;
  /** Silence after which a sampler is abandoned and another one started. */
  readonly silenceMs: number;
  readonly onSample: (sample: Sample) => void;
  readonly log: Pick<Logger, 'warn'>;
};

export type SamplerHandle = {
  setInterval(intervalMs: number): void;
  /** Ends it, so that the driver can be unloaded; a sampler that hangs in the driver is abandoned. */
  release(): Promise<void>;
  /** Starts it again. */
  reacquire(): void;
  readonly abandonedCounts: () => AbandonedCounts;
  close(): Promise<void>;
};

/** Where the next sampler continues: up to when use was counted, and which processes were there then. */
type ResumePoint = {
  readonly utilizationCursors: readonly UtilizationCursor[];
  readonly processes: readonly SampledProcess[];
};
const NO_RESUME_POINT: ResumePoint = { utilizationCursors: [], processes: [] };

/** UUIDs come from the driver and go into a command line. */
const isPlainUuid = (uuid: string): boolean => /^[\x21-\x7e]{1,96}$/.test(uuid);
const MAX_GPUS = 64;

/** Exit code of a sampler whose driver is gone: another driver may have been loaded. */
const DRIVER_GONE = 3;

const resumeArgs = ({ utilizationCursors }: ResumePoint): readonly string[] =>
  utilizationCursors
    .filter(({ uuid }) => isPlainUuid(uuid))
    .slice(0, MAX_GPUS)
    .flatMap(({ uuid, dayUs, bootUs, setUs }) => ['--utilization-cursor', `${dayUs}:${bootUs}:${setUs}:${uuid}`]);

/** Reports what the driver refuses or lacks, each once: only another start of the agent changes it. */
function createLackReport(log: Pick<Logger, 'warn'>): (sample: Sample) => void {
  const reported = new Set<string>();
  let isDenialReported = false;
  return ({ gpus, absent = [], driverVersion }) => {
    const denied = gpus.filter(({ gpmDenied }) => gpmDenied).map(({ uuid }) => uuid);
    if (denied.length > 0 && !isDenialReported) {
      isDenialReported = true;
      log.warn(
        `the driver refuses the performance counters (GPM) of ${denied.join(', ')}, so SM, tensor core and memory activity are not reported; they need CAP_PERFMON or CAP_SYS_ADMIN`,
      );
    }
    const text = `driver ${driverVersion} does not have ${absent.join(', ')}; their readings are absent`;
    if (absent.length === 0 || reported.has(text)) return;
    reported.add(text);
    log.warn(text);
  };
}

export function startSampler(options: SamplerOptions): SamplerHandle {
  const { onSample, log, silenceMs, library } = options;
  let intervalMs = options.intervalMs;
  let resumePoint = NO_RESUME_POINT;
  let reader = createSampleDecoder();
  const reportLacks = createLackReport(log);

  const sampler = superviseProcess({
    name: 'the sampler',
    silenceMs,
    log,
    command() {
      // No preloaded library may come between the sampler and the driver.
      const { LD_PRELOAD: _, ...env } = process.env;
      return {
        program: options.program ?? join(BUILD_FOLDER, 'cotenant-sampler'),
        args: ['--interval-ms', String(intervalMs), '--library', library, ...resumeArgs(resumePoint)],
        env,
      };
    },
    onStart() {
      reader = createSampleDecoder(resumePoint.processes);
    },
    onStartFailed() {
      resumePoint = NO_RESUME_POINT; // its arguments may be too long
    },
    onExit(code) {
      if (code !== DRIVER_GONE) return undefined;
      resumePoint = NO_RESUME_POINT;
      return 'the driver does not answer any more; it is opened again';
    },
    onLine(line) {
      const read = reader.read(line);
      if (!read.ok) return read.error;
      const sample = read.value;
      resumePoint = { utilizationCursors: reader.utilizationCursors(), processes: sample.processes };
      reportLacks(sample);
      onSample(sample);
      return undefined;
    },
  });
  sampler.start();
  let closing = false;
  return {
    setInterval(next) {
      if (next === intervalMs) return;
      intervalMs = next;
      sampler.send(`interval ${next}\n`);
    },
    async release() {
      resumePoint = NO_RESUME_POINT;
      await sampler.stop();
    },
    reacquire() {
      if (!closing) sampler.start();
    },
    abandonedCounts: sampler.abandonedCounts,
    async close() {
      closing = true;
      await sampler.stop();
    },
  };
}
