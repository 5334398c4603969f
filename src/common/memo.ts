// Reuses a result while its inputs are the same objects: most of a node's second is like the one before. Inputs are compared by
// identity, so they must not be changed in place.

/** The same objects in the same order. */
export const isSameList = (one: readonly unknown[], other: readonly unknown[] | undefined): boolean =>
  one === other || (one.length === other?.length && one.every((value, index) => Object.is(value, other[index])));

/** The previous list where the new one has the same entries. */
export const keepIfSame = <T>(list: readonly T[], before: readonly T[] | undefined): readonly T[] =>
  before !== undefined && isSameList(list, before) ? before : list;

/** A pure function that computes again only when one of its arguments is another than at the last call. */
export function memoizeLast<Of extends readonly unknown[], Made>(make: (...of: Of) => Made): (...of: Of) => Made {
  let last: { readonly of: Of; readonly made: Made } | undefined;
  return (...of) => {
    if (!last || !isSameList(of, last.of)) last = { of, made: make(...of) };
    return last.made;
  };
}
