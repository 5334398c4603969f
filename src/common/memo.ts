// What is made of the very same things is the very same thing again: most of a node's second is like the one before it. Things
// are told apart by identity, so whatever is handed over here is never changed in place.

/** The very same things in the same order. */
export const isSame = (one: readonly unknown[], other: readonly unknown[] | undefined): boolean =>
  one === other || (one.length === other?.length && one.every((value, index) => Object.is(value, other[index])));

/** The list of before, where the new one has the very same in it. */
export const sameList = <T>(list: readonly T[], before: readonly T[] | undefined): readonly T[] =>
  before !== undefined && isSame(list, before) ? before : list;

/** A pure function of these things, asked again only when one of them is another than at the last call. */
export function remembering<Of extends readonly unknown[], Made>(make: (...of: Of) => Made): (...of: Of) => Made {
  let last: { readonly of: Of; readonly made: Made } | undefined;
  return (...of) => {
    if (!last || !isSame(of, last.of)) last = { of, made: make(...of) };
    return last.made;
  };
}
