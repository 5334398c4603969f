// Small changes of C code that tests have to notice: where a source can be changed and how, and a draw of such places.

export type Place = {
  readonly file: string;
  /** From 1. */
  readonly line: number;
  readonly from: string;
  readonly to: string;
  /** The whole file with the change. */
  readonly changed: string;
};

/** What is replaced, by what; each stands for a mistake that a programmer makes. */
const CHANGES: readonly (readonly [pattern: RegExp, to: string])[] = [
  [/ == /g, ' != '],
  [/ != /g, ' == '],
  [/ && /g, ' || '],
  [/ \|\| /g, ' && '],
  [/ < /g, ' >= '],
  [/ >= /g, ' < '],
  [/ > /g, ' <= '],
  [/ <= /g, ' > '],
  [/(?<=[( ])!(?=[a-z(*])/g, ''],
  [/\bABI_ERROR_[A-Z_]+\b/g, 'ABI_SUCCESS'],
];

/** Statements of functions only: neither comments nor what the preprocessor reads. */
const isCode = (line: string) => /^ {4}/.test(line) && !/^\s*(\*|\/[*/]|#)/.test(line);

export function placesIn(file: string, text: string): Place[] {
  const lines = text.split('\n');
  return lines.flatMap((line, index) => {
    const code = isCode(line)
      ? line.replace(/\/\*.*$/, '').replace(/"(\\.|[^"])*"/g, (quoted) => '_'.repeat(quoted.length))
      : '';
    return CHANGES.flatMap(([pattern, to]) =>
      [...code.matchAll(pattern)].map(({ index: at, 0: from }) => {
        const changedLine = line.slice(0, at) + to + line.slice(at + from.length);
        return {
          file,
          line: index + 1,
          from: from.trim(),
          to: to.trim(),
          changed: lines.with(index, changedLine).join('\n'),
        };
      }),
    );
  });
}

/** The same order for the same seed. */
export function shuffled<T>(list: readonly T[], seed: number): T[] {
  let state = BigInt(seed);
  const below = (most: number) => {
    state = BigInt.asUintN(64, state * 6364136223846793005n + 1442695040888963407n);
    return Number((state >> 33n) % BigInt(most));
  };
  const order = [...list];
  for (let last = order.length - 1; last > 0; last--) {
    const other = below(last + 1);
    [order[last], order[other]] = [order[other] as T, order[last] as T];
  }
  return order;
}
