// What the arbiter says of compute, as figures that grow: a plain value in, a plain value out. Its own counts begin anew each time
// that it takes a page up; these do not.
import { field, listAt, textAt } from '../../common/json.ts';

/** Of one grant on one GPU. */
export type ComputeUse = {
  readonly chargedSeconds: number;
  /** Of these, while another container's work shared the GPU. */
  readonly contendedSeconds: number;
  /** Its launches waited, summed over threads. */
  readonly throttledSeconds: number;
  /** Turns that lasted too long to be waited for. */
  readonly overruns: number;
  /** Words in its page that no process of ours would have written. */
  readonly faults: number;
  /** Its part of the GPU when all want theirs. */
  readonly guaranteeRatio: number;
  /** Most that it gets of the GPU now; 1: nothing but others limits it. */
  readonly limitRatio: number;
};

/** Of these, what only grows. */
export const USE_COUNTS = ['chargedSeconds', 'contendedSeconds', 'throttledSeconds', 'overruns', 'faults'] as const;
export type UseCounts = Pick<ComputeUse, (typeof USE_COUNTS)[number]>;

type Counts = { readonly [K in (typeof COUNTS)[number]]: number };
const COUNTS = ['chargedNs', 'contendedNs', 'throttledNs', 'overruns', 'faults'] as const;

export type ReportedPage = {
  readonly id: string;
  /** Its counts are those since the arbiter took it up for this time. */
  readonly join: number;
  readonly broken: string | undefined;
  readonly gpus: readonly (Counts & { readonly guaranteePpm: number; readonly limitPpm: number })[];
};
export type ArbiterReport = { readonly plan: number; readonly pages: readonly ReportedPage[] };

/** One line of the arbiter's; `same`: the pages are as in the line before. */
export function parseReport(line: string): ArbiterReport | 'same' | { readonly problem: string } {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    return { problem: `a line that is no JSON: ${(error as Error).message}` };
  }
  const problem = textAt(value, 'problem');
  if (problem !== undefined) return { problem };
  if (field(value, 'same') === true) return 'same';
  const count = (from: unknown, name: string): number => Number(field(from, name) ?? 0);
  return {
    plan: count(value, 'plan'),
    pages: listAt(value, 'pages').map((page) => ({
      id: textAt(page, 'id') ?? '',
      join: count(page, 'join'),
      broken: textAt(page, 'broken'),
      gpus: listAt(page, 'gpus').map((gpu) => ({
        chargedNs: count(gpu, 'chargedNs'),
        contendedNs: count(gpu, 'contendedNs'),
        throttledNs: count(gpu, 'throttledNs'),
        overruns: count(gpu, 'overruns'),
        faults: count(gpu, 'faults'),
        guaranteePpm: count(gpu, 'guaranteePpm'),
        limitPpm: count(gpu, 'limitPpm'),
      })),
    })),
  };
}

export type Account = {
  /** As last told, by the page's id. */
  readonly pages: ReadonlyMap<string, Pick<ReportedPage, 'join' | 'gpus'>>;
  /** By the grant's id and the GPU's place in it. */
  readonly uses: ReadonlyMap<string, ComputeUse>;
};
export const NO_ACCOUNT: Account = { pages: new Map(), uses: new Map() };
export const useKey = (grantId: string, gpu: number): string => `${grantId} ${gpu}`;
export function useOfKey(key: string): { readonly grantId: string; readonly gpu: number } {
  const [grantId = '', gpu] = key.split(' ');
  return { grantId, gpu: Number(gpu) };
}

const NO_USE: ComputeUse = {
  chargedSeconds: 0,
  contendedSeconds: 0,
  throttledSeconds: 0,
  overruns: 0,
  faults: 0,
  guaranteeRatio: 0,
  limitRatio: 1,
};

/**
 * `grantOf`: whose page that is; undefined: nobody's any more. What grants that are gone have used goes with them.
 */
export function advanceAccount(
  before: Account,
  told: ArbiterReport,
  grantOf: (pageId: string) => string | undefined,
  isLive: (grantId: string) => boolean,
): Account {
  const uses = new Map([...before.uses].filter(([key]) => isLive(useOfKey(key).grantId)));
  const pages = new Map<string, Pick<ReportedPage, 'join' | 'gpus'>>();
  for (const { id, join, gpus } of told.pages) {
    const past = before.pages.get(id);
    pages.set(id, { join, gpus }); // also while it is nobody's: what was counted then is not news when it is somebody's again
    const grantId = grantOf(id);
    if (grantId === undefined) continue;
    for (const [index, gpu] of gpus.entries()) {
      const last = past?.join === join ? past.gpus[index] : undefined;
      const key = useKey(grantId, index);
      const use = uses.get(key) ?? NO_USE;
      const more = (name: (typeof COUNTS)[number]): number => Math.max(0, gpu[name] - (last?.[name] ?? 0));
      uses.set(key, {
        chargedSeconds: use.chargedSeconds + more('chargedNs') / 1e9,
        contendedSeconds: use.contendedSeconds + more('contendedNs') / 1e9,
        throttledSeconds: use.throttledSeconds + more('throttledNs') / 1e9,
        overruns: use.overruns + more('overruns'),
        faults: use.faults + more('faults'),
        guaranteeRatio: gpu.guaranteePpm / 1e6,
        limitRatio: gpu.limitPpm / 1e6,
      });
    }
  }
  return { pages, uses };
}

/** Of another arbiter, which counts from its own beginning. */
export const withNewArbiter = ({ uses }: Account): Account => ({ uses, pages: new Map() });

/** Without the grants that are gone; the very same account where there are none of these. */
export function withoutEndedGrants(account: Account, isLive: (grantId: string) => boolean): Account {
  const uses = [...account.uses].filter(([key]) => isLive(useOfKey(key).grantId));
  return uses.length === account.uses.size ? account : { ...account, uses: new Map(uses) };
}
