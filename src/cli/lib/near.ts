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

/** At most three, the nearest first: those with few edits, then those with the word as a part of theirs. */
export function nearNames(word: string, names: readonly string[]): readonly string[] {
  const most = Math.max(1, Math.floor(word.length / 3));
  const distanceOf = (name: string): number => {
    const distance = edits(word, name);
    if (distance <= most) return distance;
    return word.length > 2 && name.split('-').includes(word) ? most + 1 : Number.POSITIVE_INFINITY;
  };
  return names
    .map((name) => ({ name, distance: distanceOf(name) }))
    .filter(({ distance }) => distance !== Number.POSITIVE_INFINITY)
    .toSorted((one, other) => one.distance - other.distance)
    .slice(0, 3)
    .map(({ name }) => name);
}
