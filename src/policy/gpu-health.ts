// Which Xids make a GPU unhealthy, so that it gets no new containers, and what proves that it was reset since. Pure.
// What each Xid means, and whether a tenant can cause it: docs/operate/faults.md.
import { err, ok, type Result } from '../common/result.ts';

/**
 * After these NVIDIA's Xid catalog says to reset the GPU or restart the machine, and no program of a tenant is known to
 * cause one. 46 and 109 require a reset, too, but a kernel that never ends can raise them: one tenant could take the
 * GPU from all others, so they only alert, unless an operator adds them.
 */
export const UNHEALTHY_XIDS: readonly number[] = [48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158];
/** Faults of one program, or of memory of one process: they do not concern the GPU as a whole, and cannot be added. */
const OF_ONE_PROCESS: readonly number[] = [13, 31, 32, 43, 45, 68, 69, 94];

export const DEFAULT_XID_LIST = 'default';
const MOST_XIDS = 64;
/** The form of a list of Xids. */
export const XID_LIST = /^ *((default|-?\d{1,4})? *, *)*(default|-?\d{1,4})? *$/;

/** `default,46,-74`: numbers with commas, `default` for those above, `-` before one to remove; empty: no Xid counts. */
export function parseXidList(text: string): Result<readonly number[]> {
  const entries = text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '');
  if (entries.length > MOST_XIDS) return err(`more than ${MOST_XIDS} entries`);
  const [added, removed] = [new Set<number>(), new Set<number>()];
  for (const entry of entries) {
    if (entry === DEFAULT_XID_LIST) {
      for (const xid of UNHEALTHY_XIDS) added.add(xid);
      continue;
    }
    if (!/^-?\d{1,4}$/.test(entry)) return err(`${entry} is neither ${DEFAULT_XID_LIST} nor a number`);
    const xid = Math.abs(Number(entry));
    if (entry.startsWith('-')) removed.add(xid);
    else if (OF_ONE_PROCESS.includes(xid)) return err(`${xid} is raised by a tenant's own program`);
    else added.add(xid);
  }
  return ok([...added].filter((xid) => !removed.has(xid)));
}

/** Counters that only grow and start at 0 when the driver initializes the GPU; absent: not reported. */
const COUNTS = ['energyMillijoules', 'eccCorrectedVolatile', 'eccUncorrectedVolatile'] as const;
type ResetCounts = { readonly [name in (typeof COUNTS)[number]]?: number };

export type GpuFault = {
  readonly gpuUuid: string;
  /** The first one since the last reset; later ones may be its consequences. */
  readonly xid: number;
  readonly atMs: number;
  /** Boot of the machine and version of the driver when it was raised. */
  readonly bootId: string;
  readonly driverVersion: string;
  /** The driver has reported since that the GPU is lost or requires a reset. */
  readonly lost: boolean;
  /** As last reported. */
  readonly counts: ResetCounts;
};

type ReportedGpu = ResetCounts & { readonly uuid: string; readonly healthy: boolean };
export type DriverReport = {
  readonly bootId: string;
  readonly driverVersion: string;
  readonly gpus: readonly ReportedGpu[];
  readonly raised: readonly { readonly gpuUuid: string; readonly xid: number; readonly atMs: number }[];
};
type EndedFault = { readonly fault: GpuFault; readonly why: string };

/** Faults after this report; a GPU that is not in it keeps its fault. `xids`: those that count. */
export function updateFaults(
  before: readonly GpuFault[],
  report: DriverReport,
  xids: readonly number[],
): { readonly faults: readonly GpuFault[]; readonly ended: readonly EndedFault[] } {
  const ended: EndedFault[] = [];
  const faults = before.flatMap((fault) => {
    const gpu = report.gpus.find(({ uuid }) => uuid === fault.gpuUuid);
    const why = xids.includes(fault.xid) ? endOf(fault, report, gpu) : 'the settings no longer list this Xid';
    if (why !== undefined) {
      ended.push({ fault, why });
      return [];
    }
    return [
      gpu ? { ...fault, lost: fault.lost || !gpu.healthy, counts: { ...fault.counts, ...countsOf(gpu) } } : fault,
    ];
  });
  for (const { gpuUuid, xid, atMs } of report.raised) {
    const gpu = report.gpus.find(({ uuid }) => uuid === gpuUuid);
    if (!gpu || !xids.includes(xid) || faults.some((fault) => fault.gpuUuid === gpuUuid)) continue;
    const { bootId, driverVersion } = report;
    faults.push({ gpuUuid, xid, atMs, bootId, driverVersion, lost: !gpu.healthy, counts: countsOf(gpu) });
  }
  return { faults, ended };
}

/** What proves that the GPU was initialized again; undefined: nothing. That it was not visible for a while proves
 * nothing. */
function endOf(fault: GpuFault, report: DriverReport, gpu: ReportedGpu | undefined): string | undefined {
  if (fault.bootId !== '' && report.bootId !== '' && fault.bootId !== report.bootId) return 'the machine was restarted';
  if (!gpu?.healthy) return undefined;
  if (fault.lost) return 'the driver had lost it and reports it again';
  if (report.driverVersion !== fault.driverVersion) return 'another driver was loaded';
  const restarted = COUNTS.find((name) => (gpu[name] ?? Number.POSITIVE_INFINITY) < (fault.counts[name] ?? 0));
  return restarted === undefined ? undefined : `its ${COUNTER_NAMES[restarted]} started at 0 again`;
}

const COUNTER_NAMES: Readonly<Record<(typeof COUNTS)[number], string>> = {
  energyMillijoules: 'energy counter',
  eccCorrectedVolatile: 'counter of corrected memory errors',
  eccUncorrectedVolatile: 'counter of uncorrected memory errors',
};

const countsOf = (gpu: ReportedGpu): ResetCounts =>
  Object.fromEntries(COUNTS.flatMap((name) => (gpu[name] === undefined ? [] : [[name, gpu[name]]])));

/** A clause after "GPU-… is not healthy:". */
export const faultText = ({ xid, atMs }: Pick<GpuFault, 'xid' | 'atMs'>): string =>
  `Xid ${xid} at ${new Date(atMs).toISOString()}, and no reset since`;

/** The Node's condition. */
export type HealthState = {
  readonly status: 'True' | 'False';
  readonly reason: 'GpusHealthy' | 'GpuUnhealthy';
  readonly message: string;
};

/** `why`: undefined for a healthy GPU. Undefined for a node without GPUs. */
export function healthState(
  gpus: readonly { readonly gpuUuid: string; readonly why: string | undefined }[],
): HealthState | undefined {
  if (gpus.length === 0) return undefined;
  const wrong = gpus.flatMap(({ gpuUuid, why }) => (why === undefined ? [] : [`${gpuUuid}: ${why}`]));
  if (wrong.length > 0) return { status: 'False', reason: 'GpuUnhealthy', message: wrong.join('; ') };
  return { status: 'True', reason: 'GpusHealthy', message: 'no GPU needs a reset' };
}
export const LOST_TEXT = 'the driver reports that it is lost or requires a reset';
