// Recommended sizes as text: a table, and the lines that give a container that size. Pure.

import { GPU, GPU_CORES, GPU_MEMORY } from '../../api/names.ts';
import { formatBytes, MIB } from '../../common/quantity.ts';
import { largest, type Recommendation, type Size, type Spread } from '../../policy/rightsizing.ts';
import { oneLine } from '../lib/text.ts';
import { columns } from './node-table.ts';

const HEAD: readonly string[] = [
  'CONTAINER',
  'GPUS',
  'GRANT MiB',
  'P50',
  'P95',
  'P99',
  'PEAK',
  'FITS',
  'CORES',
  'P50',
  'P95',
  'P99',
  'PEAK',
  'FITS',
  'REFUSED',
];

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
    nameOf(recommendation),
    String(of.gpuCount),
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

export function recommendationLines(recommendations: readonly Recommendation[], source: string): readonly string[] {
  if (recommendations.length === 0) return [`${oneLine(source)}: no container with a grant was found.`];
  const table = columns([HEAD, ...recommendations.map(row)], ['left', ...HEAD.slice(1).map(() => 'right' as const)]);
  return [...table, '', ...recommendations.flatMap((one) => [...toPaste(one), '']), oneLine(source)];
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
