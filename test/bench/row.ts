// What a benchmark hands over: one row per measured thing. Owns the shape, its JSON and the table for people.

/** What was measured beside it in the same run, in the row's unit. */
export type Reference = { readonly value: number | null; readonly what: string };

/** `floor`: the reference is the least that is possible here, so a goal that it misses too says nothing about us. */
export type Goal = { readonly most: number; readonly floor?: boolean } | { readonly least: number };

export type Row = {
  /** Dotted and stable: dashboards and later runs compare by it. */
  readonly name: string;
  /** null: not measured here; `skipped` says why. */
  readonly value: number | null;
  readonly unit: string;
  readonly reference: Reference | null;
  readonly goal?: Goal;
  readonly skipped?: string;
};

/** Value over reference, where both are there and say the same kind of thing. */
export function ratioOf({ value, reference }: Row): number | null {
  if (value === null || reference === null || reference.value === null || reference.value === 0) return null;
  return round(value / reference.value);
}

/** Four significant digits: more would be noise. */
export const round = (value: number): number => Number(value.toPrecision(4));

export function jsonOf(row: Row): string {
  const reference =
    row.skipped === undefined
      ? row.reference && { ...row.reference, value: row.reference.value === null ? null : round(row.reference.value) }
      : { value: null, what: `not measured: ${row.skipped}` };
  return JSON.stringify({
    name: row.name,
    value: row.value === null ? null : round(row.value),
    unit: row.unit,
    reference,
    ratio: ratioOf(row),
  });
}

function verdictOf(row: Row): string {
  if (row.goal === undefined) return '';
  if ('least' in row.goal) {
    const least = `>= ${row.goal.least}`;
    return row.value === null ? `${least} not measured` : `${least} ${row.value >= row.goal.least ? 'met' : 'MISSED'}`;
  }
  const goal = `<= ${row.goal.most}`;
  if (row.value === null) return `${goal} not measured`;
  if (row.value > row.goal.most && row.goal.floor && (row.reference?.value ?? 0) > row.goal.most)
    return `${goal} open: the floor misses it, too`;
  return `${goal} ${row.value <= row.goal.most ? 'met' : 'MISSED'}`;
}

const shown = (value: number | null): string => (value === null ? '-' : String(round(value)));

export function tableOf(rows: readonly Row[]): string {
  const cells = rows.map((row) => [
    row.name,
    shown(row.value),
    row.unit,
    verdictOf(row),
    shown(row.reference?.value ?? null),
    row.skipped === undefined ? (row.reference?.what ?? '') : `not measured: ${row.skipped}`,
  ]);
  const lines = [['name', 'value', 'unit', 'goal', 'reference', 'what the reference is'], ...cells];
  const widths = [0, 1, 2, 3, 4].map((column) => Math.max(...lines.map((line) => line[column]?.length ?? 0)));
  const numeric = new Set([1, 4]);
  return lines
    .map((line) =>
      line
        .map((cell, column) => {
          const width = widths[column] ?? 0;
          return numeric.has(column) ? cell.padStart(width) : cell.padEnd(width);
        })
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
