// The smallest share in which a container would have fitted, out of what was seen of it. Pure: figures in, sizes and their
// reservations out; where the figures come from, and how they are printed, is the command line's.
const MIB = 1024 * 1024;

/** What a time series said: of its largest value alone where nobody kept the others. */
export type Spread = { readonly p50?: number; readonly p95?: number; readonly p99?: number; readonly peak: number };

/** One container on one GPU, over the time that was looked at. */
export type GpuSeries = {
  readonly gpuUuid: string;
  /** undefined: it has none there any more, or ended, and nobody remembers. */
  readonly grantedBytes: number | undefined;
  /** undefined: it asked for no share of the compute. */
  readonly grantedCoresPercent: number | undefined;
  /** Something holds it to that share. */
  readonly coresHeld: boolean;
  /** Bytes that its grant had to hold. */
  readonly memory: Spread;
  /** Of the GPU's compute, 0 to 1, as means over a window; undefined: no window has passed. */
  readonly compute: Spread | undefined;
  /** Requests for memory that were refused. */
  readonly denied: number;
};

export type ContainerSeries = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Plain processes of `cotenant run`; else a pod's container. */
  readonly plain: boolean;
  /** GPUs that it had at one time: fewer than `gpus` where its name came again on others. */
  readonly gpuCount: number;
  /** How often the agent stopped it, or asked it to end, for its memory. */
  readonly stops: number;
  readonly gpus: readonly GpuSeries[];
};

/** In percent of the peak. */
export type Headroom = { readonly memoryPercent: number; readonly coresPercent: number };

/** Of each GPU. `atLeast`: its own limit was in the way, so that nobody knows what it would have taken. */
export type Size = { readonly amount: number; readonly atLeast: boolean };

export type Recommendation = {
  readonly of: ContainerSeries;
  /** Bytes of each GPU, whole MiB; undefined: it held nothing. */
  readonly memory: Size | undefined;
  /** Whole percent of each GPU. */
  readonly cores: Size | undefined;
  /** Percent of the memory that it was granted and would not have needed; negative: that it lacks. */
  readonly savedPercent: number | undefined;
};

/** A share of compute counts as used up from here on: means over a window stay a little below it. */
const USED_UP = 0.95;

export const largest = (spreads: readonly Spread[], of: keyof Spread): number | undefined => {
  const known = spreads.flatMap((spread) => spread[of] ?? []);
  return known.length === 0 ? undefined : Math.max(...known);
};

/** All GPUs of a container get the same, so the one that needs most decides. */
export function recommend(series: ContainerSeries, headroom: Headroom): Recommendation {
  const memory = memorySize(series, headroom.memoryPercent);
  const granted = largestOf(series.gpus.map(({ grantedBytes }) => grantedBytes));
  return {
    of: series,
    memory,
    cores: memory && coresSize(series.gpus, headroom.coresPercent),
    savedPercent: memory && granted ? Math.round((1 - memory.amount / granted) * 100) : undefined,
  };
}

function memorySize({ gpus, stops }: ContainerSeries, headroomPercent: number): Size | undefined {
  const peak = largest(
    gpus.map(({ memory }) => memory),
    'peak',
  );
  const atLeast = stops > 0 || gpus.some(({ denied }) => denied > 0);
  if (peak === undefined || (peak <= 0 && !atLeast)) return undefined;
  const fitted = Math.ceil((peak * (100 + headroomPercent)) / 100 / MIB) * MIB;
  // Who was refused or stopped needs more than it had, however little it held at that moment.
  const granted = largestOf(gpus.map(({ grantedBytes }) => grantedBytes)) ?? 0;
  return { amount: atLeast ? Math.max(fitted, granted) : fitted, atLeast };
}

function coresSize(gpus: readonly GpuSeries[], headroomPercent: number): Size | undefined {
  const peak = largest(
    gpus.flatMap(({ compute }) => compute ?? []),
    'peak',
  );
  if (peak === undefined) return undefined;
  // Without the dust of floating point, which would be a whole percent.
  const wanted = Number((peak * (100 + headroomPercent)).toFixed(6));
  const fitted = Math.min(100, Math.max(1, Math.ceil(wanted)));
  const atLeast = gpus.some(
    ({ compute, grantedCoresPercent, coresHeld }) =>
      coresHeld &&
      grantedCoresPercent !== undefined &&
      grantedCoresPercent < 100 &&
      (compute?.peak ?? 0) * 100 >= grantedCoresPercent * USED_UP,
  );
  const granted = largestOf(gpus.map(({ grantedCoresPercent }) => grantedCoresPercent)) ?? 0;
  return { amount: atLeast ? Math.max(fitted, granted) : fitted, atLeast };
}

function largestOf(values: readonly (number | undefined)[]): number | undefined {
  const known = values.filter((value) => value !== undefined);
  return known.length === 0 ? undefined : Math.max(...known);
}
