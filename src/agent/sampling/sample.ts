// One sample of the node: NVML's readings of GPUs and processes, joined with /proc. line-schema.ts validates the sampler's lines,
// and delta-decoder.ts rebuilds samples from them.

/** Readings of one GPU. Absent: the driver does not report it. */
export type SampledGpu = {
  readonly index: number;
  readonly uuid: string;
  readonly name: string;
  readonly pciBusId: string;
  readonly minor?: number;
  readonly totalBytes?: number;
  /** Without the driver's own memory where `reservedBytes` is there, else with it. */
  readonly usedBytes?: number;
  readonly freeBytes?: number;
  readonly reservedBytes?: number;
  /** Percent of the last sample period in which any kernel ran; not occupancy. */
  readonly utilizationPercent?: number;
  readonly memoryBusyPercent?: number;
  readonly encoderPercent?: number;
  readonly decoderPercent?: number;
  readonly temperatureC?: number;
  readonly memoryTemperatureC?: number;
  readonly powerMilliwatts?: number;
  readonly powerLimitMilliwatts?: number;
  readonly energyMillijoules?: number;
  readonly smMhz?: number;
  readonly memoryMhz?: number;
  readonly maxSmMhz?: number;
  readonly maxMemoryMhz?: number;
  /** Why its clocks are lower than they could be: NVML's bits. */
  readonly throttleReasons?: number;
  /** Errors of its memory; volatile: since the driver was loaded. */
  readonly eccCorrectedVolatile?: number;
  readonly eccCorrectedAggregate?: number;
  readonly eccUncorrectedVolatile?: number;
  readonly eccUncorrectedAggregate?: number;
  /** Rows remapped because of corrected and of uncorrected errors (from Ampere on); 1: some wait for a reset; one failed. */
  readonly rowsCorrected?: number;
  readonly rowsUncorrected?: number;
  readonly rowsPending?: number;
  readonly rowsFailed?: number;
  /** Pages retired, by the same causes (before Ampere); 1: some wait for a reset. */
  readonly pagesCorrected?: number;
  readonly pagesUncorrected?: number;
  readonly pagesPending?: number;
  /** Over its links, since some time of the driver's own choice. */
  readonly pcieReceivedBytes?: number;
  readonly pcieSentBytes?: number;
  readonly nvlinkReceivedBytes?: number;
  readonly nvlinkSentBytes?: number;
  /** How busy its parts were between the newest two samples of its own counters (GPM), in parts of a million. */
  readonly graphicsActivePpm?: number;
  readonly smActivePpm?: number;
  readonly smOccupancyPpm?: number;
  readonly tensorActivePpm?: number;
  readonly dramActivePpm?: number;
  readonly fp32ActivePpm?: number;
  /** The driver has such counters, and the sampler lacks the right to read them. */
  readonly gpmDenied?: boolean;
  /** The driver reports its Xids as they happen. */
  readonly reportsXids?: boolean;
  /** Memory and processes are reported for its MIG instances, which are GPUs of their own here. */
  readonly migEnabled?: boolean;
  /** Its MIG mode could not be read yet. */
  readonly migModeUnknown?: boolean;
  /** Of an instance: the index of its GPU, and its numbers there. */
  readonly parent?: number;
  readonly gpuInstance?: number;
  readonly computeInstance?: number;
  /** Process lists that the driver answered: compute, graphics, mps. */
  readonly processLists: readonly string[];
  /** Lists that it has and did not answer: processes that are only in those are missing. Absent: none. */
  readonly failedProcessLists?: readonly string[];
  /** The driver reported utilization by process since the sample before: without that, no utilization does not mean idle. */
  readonly hasProcessUtilization?: boolean;
  /** Times that the driver's utilization ring overran before it was read. */
  readonly utilizationGaps: number;
  /** Entries of its process lists with an invalid or reused PID, counted since the sampler's start. Absent: none. */
  readonly invalidPidEntries?: number;
  readonly healthy: boolean;
};

/** One process on one GPU. Integrals count from when the sampler first saw the process, in microseconds of the engine. */
export type SampledUse = {
  readonly gpu: number;
  /** In a process list now. */
  readonly listed: boolean;
  /** Bytes held, managed memory left out (the driver does not attribute it); absent: not reported, or more than the GPU has. */
  readonly bytes?: number;
  /** Bits: 1 compute, 2 graphics, 4 MPS client. */
  readonly types: number;
  /** Since the sample before. Says nothing where `hasProcessUtilization` of its GPU does not hold. */
  readonly smPercent: number;
  readonly smUs: number;
  readonly memoryUs: number;
  readonly encoderUs: number;
  readonly decoderUs: number;
  /** Wall clock of the last sample in which it used the SMs. */
  readonly activeUs?: number;
};

/** One that is as it was is the same object in the next sample, and its `gpus` with it. */
export type SampledProcess = {
  readonly pid: number;
  /** The driver lists it, /proc does not (any more). Identity is then what was read before, or missing. */
  readonly gone?: boolean;
  readonly startTicks?: number;
  readonly command?: string;
  /** /proc/PID/cgroup as it is. */
  readonly cgroup?: string;
  readonly pidNamespace?: number;
  /** Its pid as it sees it itself; absent: it could not be read. */
  readonly namespacePid?: number;
  /** Parent first. */
  readonly ancestors?: readonly number[];
  readonly gpus: readonly SampledUse[];
};

/** An Xid that the driver raised on a GPU since the last sample, so many times, the last of them then. */
export type SampledXid = {
  readonly gpu: number;
  readonly xid: number;
  readonly count: number;
  readonly atMs: number;
};

/** Is a sample of this round another sampler's than the one before it, of that round? Also where its first one was not used. */
export const isSamplerRestart = (round: number, before: number): boolean => round === 1 || round < before;

export type Sample = {
  /** Of its sampler: 1 is its first. */
  readonly round: number;
  /** Wall clock, milliseconds. */
  readonly atMs: number;
  /** CLOCK_BOOTTIME before the first process list was asked for. */
  readonly bootNs: number;
  /** Why there are no GPUs, in words. */
  readonly problem?: string;
  readonly driverVersion: string;
  readonly cudaVersion: number;
  readonly gpus: readonly SampledGpu[];
  /** By pid. */
  readonly processes: readonly SampledProcess[];
  /** Absent: none. */
  readonly xids?: readonly SampledXid[];
  /** Failures of the driver's calls since the sampler's start. */
  readonly errors: readonly { readonly call: string; readonly code: number; readonly count: number }[];
  /** Calls that were wanted and that the driver's library has in no form: those that no sample before this one named. */
  readonly absent?: readonly string[];
  readonly tookUs: number;
};

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
