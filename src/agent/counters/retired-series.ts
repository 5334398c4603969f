// What ended under a name that others go on with. The page adds up whoever has the same labels, and a sum that falls passes for a
// counter that began anew: so what leaves the totals while its name stays is added to its name's base. Plain values.
import type { ShareMode } from '../attribution/device-ids.ts';
import { USE_COUNTS, type UseCounts } from '../compute/usage-account.ts';

/** The labels of a series on a GPU. Mode `none`: it had no grant. */
export type SeriesName = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: ShareMode | 'none';
  readonly gpuUuid: string;
  readonly gpuIndex: number;
};

const BASE_COUNTS = [
  'smSeconds',
  'memoryBusySeconds',
  'encoderSeconds',
  'decoderSeconds',
  'overLimitSeconds',
  'denied',
  'unknownEntryPoints',
] as const;
/** Those of the arbiter only where one has counted. */
type BaseCounts = { readonly [K in (typeof BASE_COUNTS)[number]]: number } & Partial<UseCounts>;
export type BaseTotals = SeriesName & BaseCounts;
export type Bases = ReadonlyMap<string, BaseTotals>;

/** One that leaves the totals, by the labels that it had. */
export type Ended = SeriesName & Partial<BaseCounts>;

/** Some counters have no GPU in their labels: a base stays for as long as anybody has its name, on whatever GPU. */
export const nameKey = ({ namespace, pod, container, mode }: Omit<SeriesName, 'gpuUuid' | 'gpuIndex'>): string =>
  JSON.stringify([namespace, pod, container, mode]);
export const baseKey = (of: SeriesName): string =>
  JSON.stringify([of.namespace, of.pod, of.container, of.mode, of.gpuUuid, of.gpuIndex]);

/** The container of one without a grant as the page has it: one that nobody has named stands there by its own id. */
export const foreignContainer = (of: {
  readonly containerId: string;
  readonly podUid: string;
  readonly pod: string;
  readonly container: string;
}): string => of.container || of.containerId.slice(0, 12) || (of.pod === '' ? of.podUid : '');

export const basesOf = (list: readonly BaseTotals[]): Bases => new Map(list.map((one) => [baseKey(one), one]));

/** Of what may not be told. */
export const plus = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined && b === undefined ? undefined : (a ?? 0) + (b ?? 0);

/** `isThere`: somebody in the totals has that name. The very same bases where nothing of them has changed. */
export function withEnded(before: Bases, ended: readonly Ended[], isThere: (name: string) => boolean): Bases {
  const bases = new Map([...before].filter(([, base]) => isThere(nameKey(base))));
  const staying = ended.filter((one) => isThere(nameKey(one)));
  for (const one of staying) {
    const key = baseKey(one);
    const { namespace, pod, container, mode, gpuUuid, gpuIndex } = one;
    const last = bases.get(key);
    const counts = Object.fromEntries(
      BASE_COUNTS.map((name) => [name, (last?.[name] ?? 0) + (one[name] ?? 0)]),
    ) as BaseCounts;
    const uses = Object.fromEntries(
      USE_COUNTS.flatMap((name) => {
        const sum = plus(last?.[name], one[name]);
        return sum === undefined ? [] : [[name, sum]];
      }),
    );
    bases.set(key, { namespace, pod, container, mode, gpuUuid, gpuIndex, ...counts, ...uses });
  }
  return staying.length === 0 && bases.size === before.size ? before : bases;
}
