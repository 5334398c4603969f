// The one way a function says that it has no value: `Result` with the error in place of the value. Use it in place of
// `undefined`, `{ wrong }` or an exception where the caller must handle the failure. `E` is one line of text unless the
// caller needs more, such as the problems of `problem.ts` or a code with its text.

export type Result<T, E = string> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly error: E };

export function ok<T>(value: T): { readonly ok: true; readonly value: T } {
  return { ok: true, value };
}

export function err<E>(error: E): { readonly ok: false; readonly error: E } {
  return { ok: false, error };
}

/** Runs `make` and turns an exception into an error with the exception's message. */
export function attempt<T>(make: () => T): Result<T> {
  try {
    return ok(make());
  } catch (error) {
    return err(error instanceof Error ? error.message : String(error));
  }
}
