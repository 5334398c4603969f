// The sampler's output, one JSON line per sample, and its validation: a half-written line must not become figures. Each line by
// itself; how lines build on each other is in delta-decoder.ts.
import type { Sample } from './sample.ts';

/**
 * A sample without the processes that are as they were in the line before. Where only the figures of a process
 * changed, its identity is left out of its entry.
 */
export type SampleLine = Sample & {
  /** PIDs of earlier lines that are gone. */
  readonly removedPids: readonly number[];
  /** Processes of the sample, those that are not in the line included. */
  readonly processCount: number;
  /** Up to when each GPU's utilization is counted, by wall clock and by time since boot, for the next sampler. */
  readonly utilizationCursors: readonly UtilizationCursor[];
};
export type UtilizationCursor = {
  readonly uuid: string;
  readonly dayUs: number;
  readonly bootUs: number;
  /** Time since boot when a step of the wall clock was last noticed; 0: never. */
  readonly setUs: number;
};

const isNumber = (value: unknown): boolean => Number.isInteger(value) && Number(value) >= 0;
const isText = (value: unknown): boolean => typeof value === 'string';
type Kind = 'text' | 'texts' | 'number' | 'numbers' | 'flag';
const KINDS: Readonly<Record<Kind, readonly [good: (value: unknown) => boolean, want: string]>> = {
  text: [isText, 'text'],
  texts: [(value) => Array.isArray(value) && value.every(isText), 'a list of texts'],
  number: [isNumber, 'a whole number'],
  numbers: [(value) => Array.isArray(value) && value.every(isNumber), 'a list of whole numbers'],
  flag: [(value) => typeof value === 'boolean', 'true or false'],
};

type Fields = Readonly<Record<string, Kind>>;
type Shape = readonly {
  readonly name: string;
  readonly mayLack: boolean;
  readonly good: (value: unknown) => boolean;
  readonly want: string;
}[];
/** Kind of each field. Numbers are whole and not negative. */
const shape = (needed: Fields, optional: Fields): Shape =>
  [needed, optional].flatMap((fields) =>
    Object.entries(fields).map(([name, kind]) => {
      const [good, want] = KINDS[kind];
      return { name, mayLack: fields === optional, good, want };
    }),
  );

const LINE = shape(
  {
    round: 'number',
    atMs: 'number',
    bootNs: 'number',
    driverVersion: 'text',
    cudaVersion: 'number',
    tookUs: 'number',
    removedPids: 'numbers',
    processCount: 'number',
  },
  { problem: 'text', absent: 'texts' },
);
const GPU = shape(
  {
    index: 'number',
    uuid: 'text',
    name: 'text',
    pciBusId: 'text',
    processLists: 'texts',
    utilizationGaps: 'number',
    healthy: 'flag',
  },
  {
    minor: 'number',
    totalBytes: 'number',
    usedBytes: 'number',
    freeBytes: 'number',
    reservedBytes: 'number',
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
    throttleReasons: 'number',
    eccCorrectedVolatile: 'number',
    eccCorrectedAggregate: 'number',
    eccUncorrectedVolatile: 'number',
    eccUncorrectedAggregate: 'number',
    rowsCorrected: 'number',
    rowsUncorrected: 'number',
    rowsPending: 'number',
    rowsFailed: 'number',
    pagesCorrected: 'number',
    pagesUncorrected: 'number',
    pagesPending: 'number',
    pcieReceivedBytes: 'number',
    pcieSentBytes: 'number',
    nvlinkReceivedBytes: 'number',
    nvlinkSentBytes: 'number',
    graphicsActivePpm: 'number',
    smActivePpm: 'number',
    smOccupancyPpm: 'number',
    tensorActivePpm: 'number',
    dramActivePpm: 'number',
    fp32ActivePpm: 'number',
    gpmDenied: 'flag',
    reportsXids: 'flag',
    migEnabled: 'flag',
    migModeUnknown: 'flag',
    hasProcessUtilization: 'flag',
    parent: 'number',
    gpuInstance: 'number',
    computeInstance: 'number',
    invalidPidEntries: 'number',
    failedProcessLists: 'texts',
  },
);
const PROCESS = shape(
  { pid: 'number' },
  {
    gone: 'flag',
    startTicks: 'number',
    command: 'text',
    cgroup: 'text',
    pidNamespace: 'number',
    namespacePid: 'number',
    ancestors: 'numbers',
  },
);
const USE = shape(
  {
    gpu: 'number',
    listed: 'flag',
    types: 'number',
    smPercent: 'number',
    smUs: 'number',
    memoryUs: 'number',
    encoderUs: 'number',
    decoderUs: 'number',
  },
  { bytes: 'number', activeUs: 'number' },
);
const USED_UNTIL = shape({ uuid: 'text', dayUs: 'number', bootUs: 'number', setUs: 'number' }, {});
const XID = shape({ gpu: 'number', xid: 'number', count: 'number', atMs: 'number' }, {});
const ERROR = shape({ call: 'text', code: 'number', count: 'number' }, {});

/** The first thing in `value` that is not as it must be, with its place. */
function wrongIn(value: unknown, fields: Shape): string | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return ': want an object';
  const entry = value as Readonly<Record<string, unknown>>;
  for (const { name, mayLack, good, want } of fields) {
    const found = entry[name];
    if (!(found === undefined && mayLack) && !good(found)) return `.${name}: want ${want}`;
  }
  return undefined;
}

/** `place`: of the list, made into words only where something is wrong. */
function wrongInList(value: unknown, fields: Shape, place: () => string): string | undefined {
  if (!Array.isArray(value)) return `${place()}: want a list`;
  for (let index = 0; index < value.length; index += 1) {
    const wrong = wrongIn(value[index], fields);
    if (wrong !== undefined) return `${place()}[${index}]${wrong}`;
  }
  return undefined;
}

/** What one line says, or what is wrong with it by itself. */
export function parseLine(line: string): SampleLine | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return { wrong: `not JSON: ${String(error)}` };
  }
  const wrong = wrongIn(value, LINE);
  if (wrong !== undefined) return { wrong: `sample${wrong}` };
  const sample = value as SampleLine;
  const wrongEntry =
    wrongInList(sample.gpus, GPU, () => 'gpus') ??
    wrongInList(sample.errors, ERROR, () => 'errors') ??
    wrongInList(sample.xids ?? [], XID, () => 'xids') ??
    wrongInList(sample.utilizationCursors, USED_UNTIL, () => 'utilizationCursors') ??
    wrongInList(sample.processes, PROCESS, () => 'processes');
  if (wrongEntry !== undefined) return { wrong: wrongEntry };
  for (const [index, process] of sample.processes.entries()) {
    const wrongUse = wrongInList(process.gpus, USE, () => `processes[${index}].gpus`);
    if (wrongUse !== undefined) return { wrong: wrongUse };
  }
  return sample;
}
