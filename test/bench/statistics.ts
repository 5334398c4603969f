// Order statistics of samples. Nothing here knows what was measured.

/** The value below which `share` of the samples lie; throws where there is none. */
export function quantile(samples: readonly number[], share: number): number {
  const sorted = samples.toSorted((a, b) => a - b);
  const value = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  if (value === undefined) throw new Error('no samples');
  return value;
}

export function median(samples: readonly number[]): number {
  const sorted = samples.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const [low, high] = [sorted[middle - 1], sorted[middle]];
  if (high === undefined) throw new Error('no samples');
  return sorted.length % 2 === 1 || low === undefined ? high : (low + high) / 2;
}

export const maximum = (samples: readonly number[]): number => quantile(samples, 1);

/** Median of the differences of samples that were taken right after one another: drift of the machine falls out. */
export function medianDifference(samples: readonly number[], beside: readonly number[]): number {
  return median(samples.map((sample, index) => sample - (beside[index] ?? Number.NaN)));
}
