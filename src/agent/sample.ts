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
  /** Its pid as it sees it itself. */
  readonly namespacePid?: number;
  /** Parent first. */
  readonly ancestors?: readonly number[];
  readonly cards: readonly SampledUse[];
};

export type Sample = {
  readonly round: number;
  /** Wall clock, milliseconds. */
  readonly atMs: number;
  readonly bootNs: number;
  /** Why there are no cards, in words. */
  readonly problem?: string;
  readonly driverVersion: string;
  readonly cudaVersion: number;
  readonly cards: readonly SampledCard[];
  readonly processes: readonly SampledProcess[];
  /** Failures of the driver's calls since the sampler's start. */
  readonly errors: readonly { readonly call: string; readonly code: number; readonly count: number }[];
  readonly tookUs: number;
};

/** The sample of one line, or what is wrong with the line. */
export function parseSample(line: string): Sample | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return { wrong: `not JSON: ${String(error)}` };
  }
  const sample = value as Partial<Sample> | null;
  if (typeof sample !== 'object' || sample === null) return { wrong: 'not an object' };
  const numbers = [sample.round, sample.atMs, sample.bootNs, sample.cudaVersion, sample.tookUs];
  if (!numbers.every((number) => typeof number === 'number' && Number.isFinite(number))) {
    return { wrong: 'a number is missing' };
  }
  if (!Array.isArray(sample.cards) || !Array.isArray(sample.processes) || !Array.isArray(sample.errors)) {
    return { wrong: 'a list is missing' };
  }
  const cardsGood = sample.cards.every(
    (card: SampledCard) => typeof card?.uuid === 'string' && Array.isArray(card.lists),
  );
  const processesGood = sample.processes.every(
    (process: SampledProcess) => Number.isInteger(process?.pid) && Array.isArray(process.cards),
  );
  if (!cardsGood || !processesGood) return { wrong: 'an entry is not of its kind' };
  return sample as Sample;
}
