// One snapshot of the node as the sampler prints it: what the driver says, joined with who the processes are. Owns the
// shape and its check; the sampler is our own program, yet a half-written or foreign line must not become figures.

/** Readings of one card. Absent: the driver does not tell it. */
export type SampledCard = {
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
  readonly powerMw?: number;
  readonly powerLimitMw?: number;
  readonly energyMj?: number;
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
  readonly activityDenied?: boolean;
  /** The driver tells of its Xids as they come. */
  readonly tellsEvents?: boolean;
  /** By MIG: its memory and its processes are told of its instances, which are cards of their own here. */
  readonly divided?: boolean;
  /** Of an instance: the index of its card, and its numbers there. */
  readonly parent?: number;
  readonly gpuInstance?: number;
  readonly computeInstance?: number;
  /** Process lists that the driver answered: compute, graphics, mps. */
  readonly lists: readonly string[];
  /** Times that the driver's utilisation ring overran before it was read. */
  readonly utilizationGaps: number;
  readonly healthy: boolean;
};

/** One process on one card. Integrals count from when the sampler first saw the process, in microseconds of the engine. */
export type SampledUse = {
  readonly card: number;
  /** In a process list now. */
  readonly listed: boolean;
  /** Bytes held, managed memory left out (the driver does not attribute it); absent: the driver does not tell. */
  readonly bytes?: number;
  /** Bits: 1 compute, 2 graphics, 4 MPS client. */
  readonly types: number;
  readonly smPercent: number;
  readonly smUs: number;
  readonly memoryUs: number;
  readonly encoderUs: number;
  readonly decoderUs: number;
  /** Wall clock of the last sample in which it used the SMs. */
  readonly activeUs?: number;
};

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
  readonly cards: readonly SampledUse[];
};

/** An Xid that the driver raised on a card since the last sample, so many times, the last of them then. */
export type SampledXid = {
  readonly card: number;
  readonly xid: number;
  readonly count: number;
  readonly atMs: number;
};

export type Sample = {
  readonly round: number;
  /** Wall clock, milliseconds. */
  readonly atMs: number;
  /** CLOCK_BOOTTIME before the first process list was asked for. */
  readonly bootNs: number;
  /** Why there are no cards, in words. */
  readonly problem?: string;
  readonly driverVersion: string;
  readonly cudaVersion: number;
  readonly cards: readonly SampledCard[];
  readonly processes: readonly SampledProcess[];
  /** Absent: none. */
  readonly xids?: readonly SampledXid[];
  /** Failures of the driver's calls since the sampler's start. */
  readonly errors: readonly { readonly call: string; readonly code: number; readonly count: number }[];
  readonly tookUs: number;
};

/** The card, if this sample tells which processes use it: a list that was not answered is no proof that nobody does. */
export function toldCard(sample: Sample, gpuUuid: string): SampledCard | undefined {
  const card = sample.cards.find(({ uuid }) => uuid === gpuUuid);
  return sample.problem === undefined && card?.healthy && card.lists.includes('compute') ? card : undefined;
}

/** Grants are made of cards as a whole: neither of one that is divided, nor of an instance. */
export const isShareable = (card: SampledCard): boolean => !card.divided && card.parent === undefined;
/** Of an instance the driver tells who holds its memory, not who uses its compute. */
export const tellsCompute = (gpuUuid: string): boolean => !gpuUuid.startsWith('MIG-');

export const tellsAll = (sample: Sample, cards: readonly { readonly gpuUuid: string }[]): boolean =>
  cards.every(({ gpuUuid }) => toldCard(sample, gpuUuid) !== undefined);

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

const SAMPLE = shape(
  { round: 'number', atMs: 'number', bootNs: 'number', driverVersion: 'text', cudaVersion: 'number', tookUs: 'number' },
  { problem: 'text' },
);
const CARD = shape(
  {
    index: 'number',
    uuid: 'text',
    name: 'text',
    pciBusId: 'text',
    lists: 'texts',
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
    powerMw: 'number',
    powerLimitMw: 'number',
    energyMj: 'number',
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
    activityDenied: 'flag',
    tellsEvents: 'flag',
    divided: 'flag',
    parent: 'number',
    gpuInstance: 'number',
    computeInstance: 'number',
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
    card: 'number',
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
const XID = shape({ card: 'number', xid: 'number', count: 'number', atMs: 'number' }, {});
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

/** The sample of one line, or what is wrong with the line. */
export function parseSample(line: string): Sample | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return { wrong: `not JSON: ${String(error)}` };
  }
  const wrong = wrongIn(value, SAMPLE);
  if (wrong !== undefined) return { wrong: `sample${wrong}` };
  const sample = value as Sample;
  const wrongEntry =
    wrongInList(sample.cards, CARD, () => 'cards') ??
    wrongInList(sample.errors, ERROR, () => 'errors') ??
    wrongInList(sample.xids ?? [], XID, () => 'xids') ??
    wrongInList(sample.processes, PROCESS, () => 'processes');
  if (wrongEntry !== undefined) return { wrong: wrongEntry };
  for (const [index, process] of sample.processes.entries()) {
    const wrongUse = wrongInList(process.cards, USE, () => `processes[${index}].cards`);
    if (wrongUse !== undefined) return { wrong: wrongUse };
  }
  return sample;
}
