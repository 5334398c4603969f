// `cotenant recommend`: the smallest share in which a container would have fitted, from its time series. Pure: figures
// in, sizes and caveats out.
import { MIB } from '../common/quantity.ts';

/** Quantiles of a time series; only the peak where the others were not kept. */
export type Spread = { readonly p50?: number; readonly p95?: number; readonly p99?: number; readonly peak: number };

/** One container on one GPU over the time range. */
export type GpuSeries = {
  readonly gpuUuid: string;
  /** undefined: it has no grant there any more, or has ended. */
  readonly grantedBytes: number | undefined;
  /** undefined: it requested no compute share. */
  readonly grantedCoresPercent: number | undefined;
  /** The share is enforced. */
  readonly coresHeld: boolean;
  /** Bytes charged to its grant. */
  readonly memory: Spread;
  /** Ratio of the GPU's compute, 0 to 1, as means over a window; undefined: no full window. */
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
  /** GPUs at one time: fewer than `gpus` where a container of the same name ran on others later. */
  readonly gpuCount: number;
  /** Stops by the agent for memory, SIGTERM included. */
  readonly stops: number;
  readonly gpus: readonly GpuSeries[];
};

/** In percent of the peak. */
export type Headroom = { readonly memoryPercent: number; readonly coresPercent: number };

/** Of each GPU. `atLeast`: its limit was reached, so that what it would have used is unknown. */
export type Size = { readonly amount: number; readonly atLeast: boolean };

export type Recommendation = {
  readonly of: ContainerSeries;
  /** Bytes of each GPU, in whole MiB; undefined: it held no memory. */
  readonly memory: Size | undefined;
  /** Whole percent of each GPU. */
  readonly cores: Size | undefined;
  /** Percent of its memory grant that it did not need; negative: that it lacks. */
  readonly savedPercent: number | undefined;
};

/** From this ratio on a compute share counts as used up: means over a window stay a little below 1. */
const USED_UP = 0.95;

export const largest = (spreads: readonly Spread[], of: keyof Spread): number | undefined => {
  const known = spreads.flatMap((spread) => spread[of] ?? []);
  return known.length === 0 ? undefined : Math.max(...known);
};

/** All GPUs of a container get the same share, so the largest need decides. */
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
  // A container that was refused memory or stopped needs more than it had, however little it held then.
  const granted = largestOf(gpus.map(({ grantedBytes }) => grantedBytes)) ?? 0;
  return { amount: atLeast ? Math.max(fitted, granted) : fitted, atLeast };
}

function coresSize(gpus: readonly GpuSeries[], headroomPercent: number): Size | undefined {
  const peak = largest(
    gpus.flatMap(({ compute }) => compute ?? []),
    'peak',
  );
  if (peak === undefined) return undefined;
  // Floating-point noise would add a whole percent.
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
