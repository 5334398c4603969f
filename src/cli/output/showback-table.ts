// GPU-hours of namespaces as text: a table, and what they come to. Pure.
import { AMOUNTS, type Amounts, KINDS, type Kind, type Showback } from '../../policy/chargeback.ts';
import { oneLine } from '../lib/text.ts';
import { fitted, type Yielding } from './columns.ts';

/** In two lines: of which kind the amounts below it are, and each amount. */
export const HEAD: readonly (readonly string[])[] = [
  ['', 'MEMORY', '', '', 'COMPUTE', '', ''],
  ['NAMESPACE', 'GRANTED', 'USED', 'WASTED', 'GRANTED', 'USED', 'WASTED'],
];
/** On a narrow terminal: what was used. */
const NARROW: Yielding = { going: [5, 2], column: 0, name: 16, end: 7 };

export const figuresOf = (of: Readonly<Record<Kind, Amounts>>, digits: number): readonly string[] =>
  KINDS.flatMap((kind) => AMOUNTS.map((amount) => of[kind][amount].toFixed(digits)));

/** What part of all hours was granted, and what part of that was left idle. */
function sumsOf({ total, gpuHours }: Showback): string {
  const percent = (part: number, of: number) => (of > 0 ? `${Math.round((part / of) * 100)}%` : '-');
  const parts = KINDS.map((kind) => {
    const { granted, wasted } = total[kind];
    return `${percent(granted, gpuHours)} of the ${kind} was granted, and ${percent(wasted, granted)} of that left idle`;
  });
  return `GPU-hours, of ${gpuHours.toFixed(2)} that the GPUs had: ${parts.join('; ')}.`;
}

/** The table is as wide as the terminal. */
export function showbackLines(result: Showback, source: string, width = Number.POSITIVE_INFINITY): readonly string[] {
  const { shares, total } = result;
  if (shares.length === 0) return [`${oneLine(source)}: no container with a grant was found.`];
  const rows = [
    ...shares.map((share) => [share.namespace, ...figuresOf(share, 2)]),
    ...(shares.length > 1 ? [['all', ...figuresOf(total, 2)]] : []),
  ];
  const align = HEAD[1]?.map((_, column) => (column === 0 ? ('left' as const) : ('right' as const)));
  return [...fitted([...HEAD, ...rows], align ?? [], width, NARROW), '', sumsOf(result), oneLine(source)];
}
