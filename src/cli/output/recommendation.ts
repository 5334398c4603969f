// Recommended sizes as text: a table, and the lines that give a container that size. Pure.

import { GPU, GPU_CORES, GPU_MEMORY } from '../../api/names.ts';
import { formatBytes, MIB } from '../../common/quantity.ts';
import { largest, type Recommendation, type Size, type Spread } from '../../policy/rightsizing.ts';
import { oneLine } from '../lib/text.ts';
import { fitted, type Yielding } from './columns.ts';

const HEAD: readonly string[] = [
  'GPUS',
  'CONTAINER',
  'GRANT MiB',
  'P50',
  'P95',
  'P99',
  'PEAK',
  'NEEDED',
  'COMPUTE',
  'P50',
  'P95',
  'P99',
  'PEAK',
  'NEEDED',
  'DENIED',
];
const ALIGN = HEAD.map((name) => (name === 'CONTAINER' ? ('left' as const) : ('right' as const)));
/** Percentiles, then peaks. */
const NARROW: Yielding = { going: [3, 4, 5, 9, 10, 11, 12, 6], name: 24, end: 6 };
/** Of more containers only the table is read. */
const MOST_TO_PASTE = 10;

const mib = (bytes: number | undefined): string => (bytes === undefined ? '-' : String(Math.ceil(bytes / MIB)));
const percent = (ratio: number | undefined): string => (ratio === undefined ? '-' : `${Math.round(ratio * 100)}%`);
const sizeText = (size: Size | undefined, text: (amount: number) => string): string =>
  size === undefined ? '-' : `${size.atLeast ? '>' : ''}${text(size.amount)}`;
const maxOf = (values: readonly (number | undefined)[]): number | undefined => {
  const known = values.filter((value) => value !== undefined);
  return known.length === 0 ? undefined : Math.max(...known);
};

const nameOf = ({ of }: Recommendation): string => `${of.namespace}/${of.pod}/${of.container}`;

function row(recommendation: Recommendation): readonly string[] {
  const { of, memory, cores } = recommendation;
  const spread = (spreads: readonly Spread[], text: (value: number | undefined) => string) =>
    (['p50', 'p95', 'p99', 'peak'] as const).map((name) => text(largest(spreads, name)));
  const asked = maxOf(of.gpus.map(({ grantedCoresPercent }) => grantedCoresPercent));
  return [
    String(of.gpuCount),
    nameOf(recommendation),
    mib(maxOf(of.gpus.map(({ grantedBytes }) => grantedBytes))),
    ...spread(
      of.gpus.map((gpu) => gpu.memory),
      mib,
    ),
    sizeText(memory, mib),
    asked === undefined ? '-' : `${asked}%`,
    ...spread(
      of.gpus.flatMap((gpu) => gpu.compute ?? []),
      percent,
    ),
    sizeText(cores, (amount) => `${amount}%`),
    String(of.gpus.reduce((total, { denied }) => total + denied, 0)),
  ];
}

/** Amounts are totals over the GPUs. Compute is asked for where it was before. */
function resourcesOf({ of, memory, cores }: Recommendation): Readonly<Record<string, string>> | undefined {
  if (memory === undefined) return undefined;
  const count = of.gpuCount;
  const asked = maxOf(of.gpus.map(({ grantedCoresPercent }) => grantedCoresPercent));
  // Where its use was not measured long enough, what it asked for stays.
  const percent = asked === undefined ? undefined : (cores?.amount ?? asked);
  return {
    ...(count > 1 ? { [GPU]: String(count) } : {}),
    [GPU_MEMORY]: formatBytes(memory.amount * count),
    ...(percent === undefined ? {} : { [GPU_CORES]: String(percent * count) }),
  };
}

function toPaste(recommendation: Recommendation): readonly string[] {
  const resources = resourcesOf(recommendation);
  const name = oneLine(nameOf(recommendation));
  if (resources === undefined) return [`# ${name} held no memory of its GPUs: it needs no share.`];
  const { cores, savedPercent, of } = recommendation;
  const bounds = [
    ...(of.gpus.some(({ denied }) => denied > 0) ? ['it was refused memory'] : []),
    ...(of.stops > 0 ? ['it was stopped for its memory'] : []),
    ...(cores?.atLeast ? ['it used up its compute'] : []),
  ];
  const saved = savedPercent !== undefined && savedPercent > 0 ? `, ${savedPercent} % less than granted` : '';
  const head = `# ${name}${bounds.length > 0 ? `, at least: ${bounds.join(', and ')}` : saved}`;
  if (of.plain) {
    const flags = Object.entries(resources).map(([key, value]) => `${FLAGS[key]} ${value}`);
    return [head, `cotenant run ${flags.join(' ')}`];
  }
  return [
    head,
    'resources:',
    '  limits:',
    ...Object.entries(resources).map(([key, value]) => `    ${key}: ${key === GPU_MEMORY ? value : Number(value)}`),
  ];
}

const FLAGS: Readonly<Record<string, string>> = {
  [GPU]: '--gpus',
  [GPU_MEMORY]: '--gpu-memory',
  [GPU_CORES]: '--gpu-cores',
};

/** Those whose grant was too small, then those that need the least of theirs. */
function inOrder(recommendations: readonly Recommendation[]): readonly Recommendation[] {
  const isTooSmall = ({ memory, cores }: Recommendation) => (memory?.atLeast || cores?.atLeast ? 1 : 0);
  const unused = ({ of, memory }: Recommendation) =>
    of.gpuCount * ((maxOf(of.gpus.map(({ grantedBytes }) => grantedBytes)) ?? 0) - (memory?.amount ?? 0));
  return recommendations.toSorted((a, b) => isTooSmall(b) - isTooSmall(a) || unused(b) - unused(a));
}

/** As wide as the terminal. */
export function recommendationLines(
  recommendations: readonly Recommendation[],
  source: string,
  width = Number.POSITIVE_INFINITY,
): readonly string[] {
  if (recommendations.length === 0) return [`${oneLine(source)}: no container with a grant was found.`];
  const all = inOrder(recommendations);
  const table = fitted([HEAD, ...all.map(row)], ALIGN, width, NARROW);
  const paste =
    all.length > MOST_TO_PASTE ? ['For lines to paste, name a pod.', ''] : all.flatMap((one) => [...toPaste(one), '']);
  return [...table, '', ...paste, oneLine(source)];
}

/** For programs: amounts in bytes and percent of each GPU, and what to paste as totals. */
export function recommendationJson(recommendations: readonly Recommendation[]): unknown {
  return recommendations.map((recommendation) => ({
    ...recommendation.of,
    memoryBytes: recommendation.memory,
    coresPercent: recommendation.cores,
    resources: resourcesOf(recommendation),
  }));
}
