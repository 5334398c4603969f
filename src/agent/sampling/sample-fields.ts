// The fields of a sample: name, kind and meaning of each value that the sampler prints, in tables. The types of
// sample.ts and the check of line-schema.ts follow from them, so that a new reading is one row here.

type Values = {
  readonly text: string;
  readonly texts: readonly string[];
  /** Whole and not negative. */
  readonly number: number;
  readonly numbers: readonly number[];
  readonly flag: boolean;
};
export type Kind = keyof Values;
export type FieldTable = {
  readonly required: Readonly<Record<string, Kind>>;
  readonly optional: Readonly<Record<string, Kind>>;
};

/** What an object of these fields is. */
export type ObjectOf<Table extends FieldTable> = {
  readonly [Name in keyof Table['required']]: Values[Table['required'][Name]];
} & { readonly [Name in keyof Table['optional']]?: Values[Table['optional'][Name]] };

/** Readings of one GPU or MIG instance. An optional one is absent where the driver does not report it. */
export const GPU_FIELDS = {
  required: {
    index: 'number',
    uuid: 'text',
    name: 'text',
    pciBusId: 'text',
    /** Process lists that the driver answered: compute, graphics, mps. */
    processLists: 'texts',
    /** Times that the driver's ring of utilization samples overran before it was read. */
    utilizationGaps: 'number',
    healthy: 'flag',
  },
  optional: {
    minor: 'number',
    totalBytes: 'number',
    /** Without the driver's own memory where `reservedBytes` is present, with it otherwise. */
    usedBytes: 'number',
    freeBytes: 'number',
    reservedBytes: 'number',
    /** Percent of the last sample period in which any kernel ran; not occupancy. */
    utilizationPercent: 'number',
    memoryBusyPercent: 'number',
    encoderPercent: 'number',
    decoderPercent: 'number',
    temperatureC: 'number',
    memoryTemperatureC: 'number',
    powerMilliwatts: 'number',
    powerLimitMilliwatts: 'number',
    energyMillijoules: 'number',
    smMhz: 'number',
    memoryMhz: 'number',
    maxSmMhz: 'number',
    maxMemoryMhz: 'number',
    /** NVML's bits for why the clocks are below their maximum. */
    throttleReasons: 'number',
    /** Memory errors; volatile: since the driver was loaded. */
    eccCorrectedVolatile: 'number',
    eccCorrectedAggregate: 'number',
    eccUncorrectedVolatile: 'number',
    eccUncorrectedAggregate: 'number',
    /** Rows remapped after corrected and after uncorrected errors (Ampere and newer); 1: some wait for a reset; 1: one
     * failed. */
    rowsCorrected: 'number',
    rowsUncorrected: 'number',
    rowsPending: 'number',
    rowsFailed: 'number',
    /** Pages retired for the same reasons (before Ampere); 1: some wait for a reset. */
    pagesCorrected: 'number',
    pagesUncorrected: 'number',
    pagesPending: 'number',
    /** Counted from a moment that the driver chooses. */
    pcieReceivedBytes: 'number',
    pcieSentBytes: 'number',
    nvlinkReceivedBytes: 'number',
    nvlinkSentBytes: 'number',
    /** GPM: activity between the newest two samples of the GPU's own counters, in parts per million. */
    graphicsActivePpm: 'number',
    smActivePpm: 'number',
    smOccupancyPpm: 'number',
    tensorActivePpm: 'number',
    dramActivePpm: 'number',
    fp32ActivePpm: 'number',
    /** The driver has GPM counters, and the sampler is not permitted to read them. */
    gpmDenied: 'flag',
    /** The driver reports Xids as events. */
    reportsXids: 'flag',
    /** Divided by MIG: memory and processes are those of its instances, which are entries of their own. */
    migEnabled: 'flag',
    /** The driver has not said yet whether MIG divides it. */
    migModeUnknown: 'flag',
    /** Of a MIG instance: the index of its GPU, and its numbers there. */
    parent: 'number',
    gpuInstance: 'number',
    computeInstance: 'number',
    /** Process lists that the driver has and did not answer: processes that are in these alone are missing. */
    failedProcessLists: 'texts',
    /** The driver reported each process's utilization since the sample before; without it, no utilization is not
     * idleness. */
    hasProcessUtilization: 'flag',
    /** Entries of process lists, since the sampler's start, whose PID is invalid or was reused. */
    invalidPidEntries: 'number',
  },
} as const satisfies FieldTable;

/** One process on one GPU. Totals count from when the sampler first saw the process, in microseconds of the unit. */
export const USE_FIELDS = {
  required: {
    gpu: 'number',
    /** In a process list now. */
    listed: 'flag',
    /** Bits: 1 compute, 2 graphics, 4 MPS client. */
    types: 'number',
    /** Since the sample before. Means nothing where the GPU's `hasProcessUtilization` is not set. */
    smPercent: 'number',
    smUs: 'number',
    memoryUs: 'number',
    encoderUs: 'number',
    decoderUs: 'number',
  },
  optional: {
    /** Without managed memory, which the driver attributes to no process. Absent: unknown, or more than the GPU has. */
    bytes: 'number',
    /** Wall clock of the last sample in which it used the SMs. */
    activeUs: 'number',
  },
} as const satisfies FieldTable;

export const PROCESS_FIELDS = {
  required: { pid: 'number' },
  optional: {
    /** The driver lists it and /proc does not: its identity is what was read before, or missing. */
    gone: 'flag',
    startTicks: 'number',
    command: 'text',
    /** The text of /proc/PID/cgroup. */
    cgroup: 'text',
    pidNamespace: 'number',
    /** Its PID in its own namespace; absent where it could not be read. */
    namespacePid: 'number',
    /** Parent first. */
    ancestors: 'numbers',
  },
} as const satisfies FieldTable;

/** An Xid that the driver raised since the last sample, how often, and when last. */
export const XID_FIELDS = {
  required: { gpu: 'number', xid: 'number', count: 'number', atMs: 'number' },
  optional: {},
} as const satisfies FieldTable;

/** Failures of one driver call since the sampler's start. */
export const ERROR_FIELDS = {
  required: { call: 'text', code: 'number', count: 'number' },
  optional: {},
} as const satisfies FieldTable;

export const SAMPLE_FIELDS = {
  required: {
    /** Counted by the sampler; its first sample is 1. */
    round: 'number',
    /** Wall clock. */
    atMs: 'number',
    /** CLOCK_BOOTTIME before the first process list was read. */
    bootNs: 'number',
    driverVersion: 'text',
    cudaVersion: 'number',
    tookUs: 'number',
  },
  optional: {
    /** Why there are no GPUs. */
    problem: 'text',
    /** Calls that the driver's library lacks in every form, each named once by a sampler. */
    absent: 'texts',
  },
} as const satisfies FieldTable;

/** What a line has besides the sample. */
export const LINE_FIELDS = {
  required: {
    /** PIDs of earlier lines that have ended. */
    removedPids: 'numbers',
    /** Processes of the sample, those that the line omits included. */
    processCount: 'number',
  },
  optional: {},
} as const satisfies FieldTable;

/** Up to when a GPU's utilization is counted, by the time of day and since boot: the next sampler continues there. */
export const CURSOR_FIELDS = {
  required: {
    uuid: 'text',
    dayUs: 'number',
    bootUs: 'number',
    /** Since boot: when the time of day was last seen to be set; 0: never. */
    setUs: 'number',
  },
  optional: {},
} as const satisfies FieldTable;
