// One sample of the node: NVML's readings of GPUs and processes, joined with /proc. sample-fields.ts has the fields,
// line-schema.ts validates the sampler's lines, and delta-decoder.ts rebuilds samples from them.
import type * as v from 'valibot';
import type { ERROR, GPU, PROCESS, SAMPLE, USE, XID } from './sample-fields.ts';

export type SampledGpu = Readonly<v.InferOutput<typeof GPU>>;
export type SampledUse = Readonly<v.InferOutput<typeof USE>>;
/** A process that did not change is the same object in the next sample, with the same `gpus`. */
export type SampledProcess = Readonly<v.InferOutput<typeof PROCESS>> & { readonly gpus: readonly SampledUse[] };
export type SampledXid = Readonly<v.InferOutput<typeof XID>>;
export type Sample = Readonly<v.InferOutput<typeof SAMPLE>> & {
  readonly gpus: readonly SampledGpu[];
  /** By PID. */
  readonly processes: readonly SampledProcess[];
  /** Absent: none. */
  readonly xids?: readonly SampledXid[];
  readonly errors: readonly Readonly<v.InferOutput<typeof ERROR>>[];
};

/** Did another sampler take the sample of `round` than the one before it, of round `before`? */
export const isSamplerRestart = (round: number, before: number): boolean => round === 1 || round < before;

/** The driver answered all process lists: a list that failed is not an empty one. */
export const hasAllProcessLists = ({ processLists, failedProcessLists = [] }: SampledGpu): boolean =>
  processLists.includes('compute') && failedProcessLists.length === 0;

/** The GPU, if this sample has its processes. */
export function gpuWithProcessData(sample: Sample, gpuUuid: string): SampledGpu | undefined {
  const gpu = sample.gpus.find(({ uuid }) => uuid === gpuUuid);
  return sample.problem === undefined && gpu?.healthy && hasAllProcessLists(gpu) ? gpu : undefined;
}

/** Memory that the GPU leaves to programs. */
export const usableBytes = (gpu: SampledGpu): number => Math.max(0, (gpu.totalBytes ?? 0) - (gpu.reservedBytes ?? 0));

/** Grants are made of GPUs as a whole: neither of one that is divided, or may be, nor of an instance. */
export const isShareable = (gpu: SampledGpu): boolean =>
  !gpu.migEnabled && !gpu.migModeUnknown && gpu.parent === undefined;

/** The sample has the GPU's processes and the utilization of each. */
export const isUtilizationKnown = (sample: Sample, gpu: SampledGpu | undefined): boolean =>
  gpu?.hasProcessUtilization === true && gpuWithProcessData(sample, gpu.uuid) !== undefined;

/** Undefined where a part is unknown: the sum would be too small. */
export const sumOrUnknown = (values: readonly (number | undefined)[]): number | undefined =>
  values.reduce<number | undefined>(
    (total, value) => (total === undefined || value === undefined ? undefined : total + value),
    0,
  );

export const haveProcessData = (sample: Sample, gpus: readonly { readonly gpuUuid: string }[]): boolean =>
  gpus.every(({ gpuUuid }) => gpuWithProcessData(sample, gpuUuid) !== undefined);
