// Turns the arbiter's reports into counters that only grow. Pure. The arbiter's own counts start at 0 each time it
// opens a page; these continue.
import { field, listAt, textAt } from '../../common/json.ts';
import { err, ok, type Result } from '../../common/result.ts';

/** Compute that one grant used on one GPU. */
export type ComputeUse = {
  readonly chargedSeconds: number;
  /** The part of `chargedSeconds` in which another container's work shared the GPU. */
  readonly contendedSeconds: number;
  /** Time that its launches waited, summed over threads. */
  readonly throttledSeconds: number;
  /** Launches that were let go, as work in flight might wait for them. */
  readonly relieved: number;
  /** Turns that lasted so long that the arbiter did not wait for their end. */
  readonly overruns: number;
  /** Corrupt values in its lease page, which the interposer never writes. */
  readonly faults: number;
  /** Its part of the GPU when all containers use theirs. */
  readonly guaranteeRatio: number;
  /** Its present upper limit on the GPU; 1: only other containers limit it. */
  readonly limitRatio: number;
};

/** The fields that only grow. */
export const USE_COUNTS = [
  'chargedSeconds',
  'contendedSeconds',
  'throttledSeconds',
  'relieved',
  'overruns',
  'faults',
] as const;
export type UseCounts = Pick<ComputeUse, (typeof USE_COUNTS)[number]>;

type Counts = { readonly [K in (typeof COUNTS)[number]]: number };
const COUNTS = ['chargedNs', 'contendedNs', 'throttledNs', 'relieved', 'overruns', 'faults'] as const;

type ReportedPage = {
  readonly id: string;
  /** Number of the arbiter's opening of this page, since which it counts. */
  readonly join: number;
  readonly broken: string | undefined;
  readonly gpus: readonly (Counts & { readonly guaranteePpm: number; readonly limitPpm: number })[];
};
export type ArbiterReport = { readonly plan: number; readonly pages: readonly ReportedPage[] };

/** Parses one line of the arbiter; `same`: the pages are as in the previous line. */
export function parseReport(line: string): Result<ArbiterReport | 'same'> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return err(`invalid JSON in its report: ${(error as Error).message}`);
  }
  const problem = textAt(value, 'problem');
  if (problem !== undefined) return err(problem);
  if (field(value, 'same') === true) return ok('same');
  const count = (from: unknown, name: string): number => Number(field(from, name) ?? 0);
  return ok({
    plan: count(value, 'plan'),
    pages: listAt(value, 'pages').map((page) => ({
      id: textAt(page, 'id') ?? '',
      join: count(page, 'join'),
      broken: textAt(page, 'broken'),
      gpus: listAt(page, 'gpus').map((gpu) => ({
        ...(Object.fromEntries(COUNTS.map((name) => [name, count(gpu, name)])) as Counts),
        guaranteePpm: count(gpu, 'guaranteePpm'),
        limitPpm: count(gpu, 'limitPpm'),
      })),
    })),
  });
}

export type Account = {
  /** As last reported, by the page's id. */
  readonly pages: ReadonlyMap<string, Pick<ReportedPage, 'join' | 'gpus'>>;
  /** By the grant's id and the GPU's position in it. */
  readonly uses: ReadonlyMap<string, ComputeUse>;
};
export const NO_ACCOUNT: Account = { pages: new Map(), uses: new Map() };
export const useKey = (grantId: string, gpu: number): string => `${grantId} ${gpu}`;
function parseUseKey(key: string): { readonly grantId: string; readonly gpu: number } {
  const [grantId = '', gpu] = key.split(' ');
  return { grantId, gpu: Number(gpu) };
}

const NO_USE: ComputeUse = {
  chargedSeconds: 0,
  contendedSeconds: 0,
  throttledSeconds: 0,
  relieved: 0,
  overruns: 0,
  faults: 0,
  guaranteeRatio: 0,
  limitRatio: 1,
};

/** `grantOf`: the grant of a page; undefined: it has ended. Uses of ended grants are removed. */
export function advanceAccount(
  before: Account,
  report: ArbiterReport,
  grantOf: (pageId: string) => string | undefined,
  isLive: (grantId: string) => boolean,
): Account {
  const uses = new Map([...before.uses].filter(([key]) => isLive(parseUseKey(key).grantId)));
  const pages = new Map<string, Pick<ReportedPage, 'join' | 'gpus'>>();
  for (const { id, join, gpus } of report.pages) {
    const past = before.pages.get(id);
    // Also for a page without a grant: what it counted meanwhile is not charged to the grant that gets it later.
    pages.set(id, { join, gpus });
    const grantId = grantOf(id);
    if (grantId === undefined) continue;
    for (const [index, gpu] of gpus.entries()) {
      const last = past?.join === join ? past.gpus[index] : undefined;
      const key = useKey(grantId, index);
      const use = uses.get(key) ?? NO_USE;
      const increase = (name: (typeof COUNTS)[number]): number => Math.max(0, gpu[name] - (last?.[name] ?? 0));
      uses.set(key, {
        chargedSeconds: use.chargedSeconds + increase('chargedNs') / 1e9,
        contendedSeconds: use.contendedSeconds + increase('contendedNs') / 1e9,
        throttledSeconds: use.throttledSeconds + increase('throttledNs') / 1e9,
        relieved: use.relieved + increase('relieved'),
        overruns: use.overruns + increase('overruns'),
        faults: use.faults + increase('faults'),
        guaranteeRatio: gpu.guaranteePpm / 1e6,
        limitRatio: gpu.limitPpm / 1e6,
      });
    }
  }
  return { pages, uses };
}

/** After a restart of the arbiter, which counts from 0. */
export const withNewArbiter = ({ uses }: Account): Account => ({ uses, pages: new Map() });
