// Which Xids take a GPU from those who come next, and what proves that it has been reset since. Pure. What each Xid means, and
// whose fault it can be, is told in docs/operate/faults.md.

/**
 * After these the GPU is to be reset or its machine restarted, by NVIDIA's Xid catalog, and no program of a tenant is known to
 * cause one alone. 46 and 109 reset a GPU as well, but a kernel that never ends can raise them: one tenant could take the GPU
 * from all others with them, so they alert only, unless an operator adds them.
 */
export const UNHEALTHY_XIDS: readonly number[] = [48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158];
/** A program's own fault, or memory that failed under one process alone: they say nothing of the GPU, and cannot be added. */
const OF_ONE_PROCESS: readonly number[] = [13, 31, 32, 43, 45, 68, 69, 94];

export const DEFAULT_XID_LIST = 'default';
const MOST_XIDS = 64;

/** `default,46,-74`: numbers with commas, `default` for those above, `-` before one that does not count; empty: none does. */
export function parseXidList(text: string): readonly number[] | { readonly wrong: string } {
  const words = text
    .split(',')
    .map((word) => word.trim())
    .filter((word) => word !== '');
  if (words.length > MOST_XIDS) return { wrong: `more than ${MOST_XIDS} words` };
  const [added, left] = [new Set<number>(), new Set<number>()];
  for (const word of words) {
    if (word === DEFAULT_XID_LIST) {
      for (const xid of UNHEALTHY_XIDS) added.add(xid);
      continue;
    }
    if (!/^-?\d{1,4}$/.test(word)) return { wrong: `${word} is neither ${DEFAULT_XID_LIST} nor a number` };
    const xid = Math.abs(Number(word));
    if (word.startsWith('-')) left.add(xid);
    else if (OF_ONE_PROCESS.includes(xid)) return { wrong: `${xid} is raised by a tenant's own program` };
    else added.add(xid);
  }
  return [...added].filter((xid) => !left.has(xid));
}

/** Counts that begin anew when the driver initializes the GPU, and only grow until then; absent: not told. */
const COUNTS = ['energyMillijoules', 'eccCorrectedVolatile', 'eccUncorrectedVolatile'] as const;
export type ResetCounts = { readonly [name in (typeof COUNTS)[number]]?: number };

export type GpuFault = {
  readonly gpuUuid: string;
  /** The first one since the last reset: others follow from it. */
  readonly xid: number;
  readonly atMs: number;
  /** Of the machine and of the driver, when it was raised. */
  readonly bootId: string;
  readonly driverVersion: string;
  /** The driver has told since that the GPU is lost, or wants a reset. */
  readonly lost: boolean;
  /** As last seen. */
  readonly counts: ResetCounts;
};

export type ReportedGpu = ResetCounts & { readonly uuid: string; readonly healthy: boolean };
export type DriverReport = {
  readonly bootId: string;
  readonly driverVersion: string;
  readonly gpus: readonly ReportedGpu[];
  readonly raised: readonly { readonly gpuUuid: string; readonly xid: number; readonly atMs: number }[];
};
export type EndedFault = { readonly fault: GpuFault; readonly why: string };

/** Faults after what was told; a GPU that is not told of keeps its own. `xids`: those that count. */
export function updateFaults(
  before: readonly GpuFault[],
  told: DriverReport,
  xids: readonly number[],
): { readonly faults: readonly GpuFault[]; readonly ended: readonly EndedFault[] } {
  const ended: EndedFault[] = [];
  const faults = before.flatMap((fault) => {
    const gpu = told.gpus.find(({ uuid }) => uuid === fault.gpuUuid);
    const why = xids.includes(fault.xid) ? endOf(fault, told, gpu) : 'by the settings it does not count any more';
    if (why !== undefined) {
      ended.push({ fault, why });
      return [];
    }
    return [
      gpu ? { ...fault, lost: fault.lost || !gpu.healthy, counts: { ...fault.counts, ...countsOf(gpu) } } : fault,
    ];
  });
  for (const { gpuUuid, xid, atMs } of told.raised) {
    const gpu = told.gpus.find(({ uuid }) => uuid === gpuUuid);
    if (!gpu || !xids.includes(xid) || faults.some((fault) => fault.gpuUuid === gpuUuid)) continue;
    const { bootId, driverVersion } = told;
    faults.push({ gpuUuid, xid, atMs, bootId, driverVersion, lost: !gpu.healthy, counts: countsOf(gpu) });
  }
  return { faults, ended };
}

/** What proves that the GPU was initialized anew; undefined: nothing does. That it cannot be seen for a while is no proof. */
function endOf(fault: GpuFault, told: DriverReport, gpu: ReportedGpu | undefined): string | undefined {
  if (fault.bootId !== '' && told.bootId !== '' && fault.bootId !== told.bootId) return 'the machine was started anew';
  if (!gpu?.healthy) return undefined;
  if (fault.lost) return 'the driver had lost it, and has it back';
  if (told.driverVersion !== fault.driverVersion) return 'another driver was loaded';
  const anew = COUNTS.find((name) => (gpu[name] ?? Number.POSITIVE_INFINITY) < (fault.counts[name] ?? 0));
  return anew === undefined ? undefined : `its ${COUNT_WORDS[anew]} began anew`;
}

const COUNT_WORDS: Readonly<Record<(typeof COUNTS)[number], string>> = {
  energyMillijoules: 'count of energy',
  eccCorrectedVolatile: 'count of corrected errors',
  eccUncorrectedVolatile: 'count of uncorrected errors',
};

const countsOf = (gpu: ReportedGpu): ResetCounts =>
  Object.fromEntries(COUNTS.flatMap((name) => (gpu[name] === undefined ? [] : [[name, gpu[name]]])));

/** A clause behind "GPU-… is not healthy:". */
export const faultText = ({ xid, atMs }: Pick<GpuFault, 'xid' | 'atMs'>): string =>
  `Xid ${xid} at ${new Date(atMs).toISOString()}, and no reset since`;

/** For a condition of the Node. */
export type HealthState = {
  readonly status: 'True' | 'False';
  readonly reason: 'GpusHealthy' | 'GpuUnhealthy';
  readonly message: string;
};

/** `why`: undefined where nothing is wrong with the GPU. None: nothing is said of a node without GPUs. */
export function healthState(
  gpus: readonly { readonly gpuUuid: string; readonly why: string | undefined }[],
): HealthState | undefined {
  if (gpus.length === 0) return undefined;
  const wrong = gpus.flatMap(({ gpuUuid, why }) => (why === undefined ? [] : [`${gpuUuid}: ${why}`]));
  if (wrong.length > 0) return { status: 'False', reason: 'GpuUnhealthy', message: wrong.join('; ') };
  return { status: 'True', reason: 'GpusHealthy', message: 'no GPU needs a reset' };
}
export const LOST_TEXT = 'the driver says that it is lost, or wants a reset';
