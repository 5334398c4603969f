// Bindings in flight: allocated here, and not yet shown by the watch of bound pods. The binder adds them, the watch
// settles them, and a new list of pods must not drop what it cannot contain yet.

/** `writtenMs`: when the API server had it; undefined until then. */
export type InFlightBinding = { readonly node: string; writtenMs: number | undefined };

export type InFlightBindings = {
  add(podUid: string, node: string): InFlightBinding;
  of(podUid: string): InFlightBinding | undefined;
  /** Whether a list of bound pods that began at `listedMs` may lack the pod although it is bound. */
  isExpected(podUid: string, listedMs: number): boolean;
  /** The watch shows the pod bound, or gone; or the binding failed. */
  settle(podUid: string): void;
  /** Whether a binding was written so long ago and is not shown. */
  hasWrittenBefore(beforeMs: number): boolean;
  readonly count: number;
};

export function createInFlightBindings(): InFlightBindings {
  const bindings = new Map<string, InFlightBinding>();
  return {
    add(podUid, node) {
      const binding = { node, writtenMs: undefined };
      bindings.set(podUid, binding);
      return binding;
    },
    of: (podUid) => bindings.get(podUid),
    isExpected(podUid, listedMs) {
      const binding = bindings.get(podUid);
      return binding !== undefined && (binding.writtenMs === undefined || binding.writtenMs >= listedMs);
    },
    settle: (podUid) => void bindings.delete(podUid),
    hasWrittenBefore: (beforeMs) =>
      [...bindings.values()].some(({ writtenMs }) => writtenMs !== undefined && writtenMs < beforeMs),
    get count() {
      return bindings.size;
    },
  };
}
