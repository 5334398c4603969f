// The names that a mistyped one may have meant. Pure.

/** Letters that were added, left out, replaced or swapped with the next (optimal string alignment). */
function edits(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, column) => column)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const swapped = a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      row.push(
        Math.min(
          (rows[i - 1]?.[j] ?? 0) + 1,
          (row[j - 1] ?? 0) + 1,
          (rows[i - 1]?.[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1),
          swapped && i > 1 && j > 1 ? (rows[i - 2]?.[j - 2] ?? 0) + 1 : Number.POSITIVE_INFINITY,
        ),
      );
    }
    rows.push(row);
  }
  return rows[a.length]?.[b.length] ?? 0;
}

/** At most three, the nearest first: those with few edits; else those that begin with the word or have it as a part, or that it
 * begins with. */
export function nearNames(word: string, names: readonly string[]): readonly string[] {
  const most = Math.max(1, Math.floor(word.length / 3));
  const near = names
    .map((name) => ({ name, distance: edits(word, name) }))
    .filter(({ distance }) => distance <= most)
    .toSorted((one, other) => one.distance - other.distance)
    .map(({ name }) => name);
  const isPart = (name: string) =>
    word.length > 2 && (name.startsWith(word) || name.split('-').includes(word) || word.startsWith(name));
  return (near.length > 0 ? near : names.filter(isPart)).slice(0, 3);
}
