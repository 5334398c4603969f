// The fields of a sample: name, kind and meaning of each value that the sampler prints. The types of sample.ts and the
// check of line-schema.ts follow from them, so that a new reading is one row here.
import * as v from 'valibot';

const text = v.string();
const texts = v.pipe(v.array(text), v.readonly());
const WHOLE = 'a whole number';
const number = v.pipe(v.number(WHOLE), v.integer(WHOLE), v.minValue(0, WHOLE));
const numbers = v.pipe(v.array(number), v.readonly());
const flag = v.boolean();

/** Readings of one GPU or MIG instance. An optional one is absent where the driver does not report it. */
export const GPU = v.object({
  index: number,
  uuid: text,
  name: text,
  pciBusId: text,
  /** Process lists that the driver answered: compute, graphics, mps. */
  processLists: texts,
  /** Times that the driver's ring of utilization samples overran before it was read. */
  utilizationGaps: number,
  healthy: flag,
  minor: v.exactOptional(number),
  /** Of the path to each other GPU, by its index: levels as in the Node's annotation (src/api/node-annotation.ts). */
  links: v.exactOptional(numbers),
  /** NUMA nodes that are near it. */
  numaNodes: v.exactOptional(numbers),
  totalBytes: v.exactOptional(number),
  /** Without the driver's own memory where `reservedBytes` is present, with it otherwise. */
  usedBytes: v.exactOptional(number),
  freeBytes: v.exactOptional(number),
  reservedBytes: v.exactOptional(number),
  /** Percent of the last sample period in which any kernel ran; not occupancy. */
  utilizationPercent: v.exactOptional(number),
  memoryBusyPercent: v.exactOptional(number),
  encoderPercent: v.exactOptional(number),
  decoderPercent: v.exactOptional(number),
  temperatureC: v.exactOptional(number),
  memoryTemperatureC: v.exactOptional(number),
  powerMilliwatts: v.exactOptional(number),
  powerLimitMilliwatts: v.exactOptional(number),
  energyMillijoules: v.exactOptional(number),
  smMhz: v.exactOptional(number),
  memoryMhz: v.exactOptional(number),
  maxSmMhz: v.exactOptional(number),
  maxMemoryMhz: v.exactOptional(number),
  /** NVML's bits for why the clocks are below their maximum. */
  throttleReasons: v.exactOptional(number),
  /** Memory errors; volatile: since the driver was loaded. */
  eccCorrectedVolatile: v.exactOptional(number),
  eccCorrectedAggregate: v.exactOptional(number),
  eccUncorrectedVolatile: v.exactOptional(number),
  eccUncorrectedAggregate: v.exactOptional(number),
  /**
   * Rows remapped after corrected and after uncorrected errors (Ampere and newer); 1: some wait for a reset; 1: one
   * failed.
   */
  rowsCorrected: v.exactOptional(number),
  rowsUncorrected: v.exactOptional(number),
  rowsPending: v.exactOptional(number),
  rowsFailed: v.exactOptional(number),
  /** Pages retired for the same reasons (before Ampere); 1: some wait for a reset. */
  pagesCorrected: v.exactOptional(number),
  pagesUncorrected: v.exactOptional(number),
  pagesPending: v.exactOptional(number),
  /** Counted from a moment that the driver chooses. */
  pcieReceivedBytes: v.exactOptional(number),
  pcieSentBytes: v.exactOptional(number),
  nvlinkReceivedBytes: v.exactOptional(number),
  nvlinkSentBytes: v.exactOptional(number),
  /** GPM: activity between the newest two samples of the GPU's own counters, in parts per million. */
  graphicsActivePpm: v.exactOptional(number),
  smActivePpm: v.exactOptional(number),
  smOccupancyPpm: v.exactOptional(number),
  tensorActivePpm: v.exactOptional(number),
  dramActivePpm: v.exactOptional(number),
  fp32ActivePpm: v.exactOptional(number),
  /** The driver has GPM counters, and the sampler is not permitted to read them. */
  gpmDenied: v.exactOptional(flag),
  /** The driver reports Xids as events. */
  reportsXids: v.exactOptional(flag),
  /** Divided by MIG: memory and processes are those of its instances, which are entries of their own. */
  migEnabled: v.exactOptional(flag),
  /** The driver has not said yet whether MIG divides it. */
  migModeUnknown: v.exactOptional(flag),
  /** Of a MIG instance: the index of its GPU, and its numbers there. */
  parent: v.exactOptional(number),
  gpuInstance: v.exactOptional(number),
  computeInstance: v.exactOptional(number),
  /** Process lists that the driver has and did not answer: processes that are in these alone are missing. */
  failedProcessLists: v.exactOptional(texts),
  /**
   * The driver reported each process's utilization since the sample before; without it, no utilization is not idleness.
   */
  hasProcessUtilization: v.exactOptional(flag),
  /** Entries of process lists, since the sampler's start, whose PID is invalid or was reused. */
  invalidPidEntries: v.exactOptional(number),
});

/** One process on one GPU. Totals count from when the sampler first saw the process, in microseconds of the unit. */
export const USE = v.object({
  gpu: number,
  /** In a process list now. */
  listed: flag,
  /** Bits: 1 compute, 2 graphics, 4 MPS client. */
  types: number,
  /** Since the sample before. Means nothing where the GPU's `hasProcessUtilization` is not set. */
  smPercent: number,
  smUs: number,
  memoryUs: number,
  encoderUs: number,
  decoderUs: number,
  /** Without managed memory, which the driver attributes to no process. Absent: unknown, or more than the GPU has. */
  bytes: v.exactOptional(number),
  /** Wall clock of the last sample in which it used the SMs. */
  activeUs: v.exactOptional(number),
});

export const PROCESS = v.object({
  pid: number,
  /** The driver lists it and /proc does not: its identity is what was read before, or missing. */
  gone: v.exactOptional(flag),
  startTicks: v.exactOptional(number),
  command: v.exactOptional(text),
  /** The text of /proc/PID/cgroup. */
  cgroup: v.exactOptional(text),
  pidNamespace: v.exactOptional(number),
  /** Its PID in its own namespace; absent where it could not be read. */
  namespacePid: v.exactOptional(number),
  /** Parent first. */
  ancestors: v.exactOptional(numbers),
});

/** An Xid that the driver raised since the last sample, how often, and when last. */
export const XID = v.object({
  gpu: number,
  xid: number,
  count: number,
  atMs: number,
});

/** Failures of one driver call since the sampler's start. */
export const ERROR = v.object({
  call: text,
  code: number,
  count: number,
});

export const SAMPLE = v.object({
  /** Counted by the sampler; its first sample is 1. */
  round: number,
  /** Wall clock. */
  atMs: number,
  /** CLOCK_BOOTTIME before the first process list was read. */
  bootNs: number,
  driverVersion: text,
  cudaVersion: number,
  tookUs: number,
  /** Why there are no GPUs. */
  problem: v.exactOptional(text),
  /** Calls that the driver's library lacks in every form, each named once by a sampler. */
  absent: v.exactOptional(texts),
});

/** What a line has besides the sample. */
export const LINE = v.object({
  /** PIDs of earlier lines that have ended. */
  removedPids: numbers,
  /** Processes of the sample, those that the line omits included. */
  processCount: number,
});

/** Up to when a GPU's utilization is counted, by the time of day and since boot: the next sampler continues there. */
export const CURSOR = v.object({
  uuid: text,
  dayUs: number,
  bootUs: number,
  /** Since boot: when the time of day was last seen to be set; 0: never. */
  setUs: number,
});
