// Tables of a terminal: columns that line up, and that give way where it is narrow. Pure.
import { oneCell } from '../lib/text.ts';

type Align = 'left' | 'right';

/** Columns as wide as their widest cell. Cells cannot send control characters to a terminal. */
export function columns(table: readonly (readonly string[])[], align: readonly Align[] = []): string[] {
  const rows = table.map((row) => row.map((cell) => oneCell(cell)));
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)));
  return rows.map((row) =>
    row
      .map((cell, column) =>
        align[column] === 'right' ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd(),
  );
}

/** Long names in one namespace differ at the end. */
export const endOf = (text: string, width: number): string =>
  text.length <= width ? text : `…${text.slice(text.length + 1 - width)}`.slice(0, width);
export const startOf = (text: string, width: number): string =>
  text.length <= width ? text : `${text.slice(0, Math.max(0, width - 1))}…`.slice(0, width);

export type Yielding = {
  /** Columns to leave out on a narrow terminal, in this order; a column with `shortest` is shortened to that before. */
  readonly going: readonly (number | { readonly column: number; readonly shortest: number })[];
  /** The column with names; absent: the second. */
  readonly column?: number;
  /** So much of the names and of the last column is kept before others go. */
  readonly name: number;
  readonly end: number;
};

/** Names shrink first, then columns are left out, and last the last one is cut. */
export function fitted(
  table: readonly (readonly string[])[],
  align: readonly ('left' | 'right')[],
  width: number,
  { going, column: named = 1, name: leastName, end: leastEnd }: Yielding,
): readonly string[] {
  const plain = table.map((row) => row.map((cell) => oneCell(cell)));
  const natural = (plain[0] ?? []).map((_, column) => Math.max(...plain.map((row) => (row[column] ?? '').length)));
  const last = natural.length - 1;
  const [nameWidth, endWidth] = [natural[named] ?? 0, natural[last] ?? 0];
  const widths = new Map(natural.entries());
  const spare = () =>
    [...widths].reduce(
      (left, [column, each]) => left - 2 - (column === named || column === last ? 0 : each),
      width + 2,
    );
  const isTight = () => spare() < Math.min(nameWidth, leastName) + Math.min(endWidth, leastEnd);
  for (const one of going) {
    if (!isTight()) break;
    if (typeof one === 'number') widths.delete(one);
    else widths.set(one.column, Math.min(widths.get(one.column) ?? 0, one.shortest));
  }
  const left = Math.max(0, spare());
  const beside = Math.max(Math.floor(left / 2), left - Math.min(endWidth, leastEnd));
  const name = Math.min(nameWidth, Math.max(Math.min(leastName, beside), left - endWidth));
  widths.set(named, name);
  widths.set(last, Math.min(endWidth, left - name));
  const kept = [...widths.keys()].toSorted((a, b) => a - b);
  const rows = plain.map((row, index) =>
    kept.map((column) => (column === named && index > 0 ? endOf : startOf)(row[column] ?? '', widths.get(column) ?? 0)),
  );
  return columns(
    rows,
    kept.map((column) => align[column] ?? 'left'),
  ).map((line) => startOf(line, width));
}
