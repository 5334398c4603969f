// The processes of a sample on one GPU, with memory and utilization of each. Pure.
import {
  isUtilizationKnown,
  type Sample,
  type SampledGpu,
  type SampledProcess,
  type SampledUse,
} from '../sampling/sample.ts';

export type ProcessState = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
  /** Undefined: the driver does not report it. */
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not report it. */
  readonly smPercent: number | undefined;
  readonly types: number;
};

/** By the driver's list of them; the server is in the list of compute alone. */
export const isMpsClient = ({ types }: Pick<ProcessState, 'types'>): boolean => (types & 4) !== 0;

/** `smPercent`: undefined where the driver did not report it. */
export type ProcessOnGpu = {
  readonly process: SampledProcess;
  readonly use: SampledUse;
  readonly smPercent: number | undefined;
};

export const useOnGpu = (process: SampledProcess, gpu: SampledGpu): SampledUse | undefined =>
  process.gpus.find((use) => use.gpu === gpu.index && use.listed);

/** Those of these that are on the GPU now. */
export function processesOn(
  sample: Sample,
  processes: readonly SampledProcess[],
  gpu: SampledGpu | undefined,
): readonly ProcessOnGpu[] {
  const isKnown = isUtilizationKnown(sample, gpu);
  const found: ProcessOnGpu[] = [];
  for (const process of processes) {
    const use = gpu && useOnGpu(process, gpu);
    if (use) found.push({ process, use, smPercent: isKnown ? use.smPercent : undefined });
  }
  return found;
}

export const processState = ({ process, use, smPercent }: ProcessOnGpu): ProcessState => ({
  pid: process.pid,
  startTicks: process.startTicks ?? 0,
  command: process.command ?? '',
  cgroup: process.cgroup ?? '',
  usedBytes: use.bytes,
  smPercent,
  types: use.types,
});
