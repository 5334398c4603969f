// Shared by guest and host: paths in the guest, and the protocol on its serial line: one line of JSON per check behind
// a mark, among all other output.

/** Path of the checkout in the guest. */
export const HOME = '/cotenant';

/** Path of the full program, out of the way of busybox's. */
export const UNSHARE = '/opt/unshare';

export type Result = { readonly name: string; readonly ms: number; readonly wrong?: string };

const MARK = '@cotenant ';

export const formatResult = (result: Result): string => `${MARK}${JSON.stringify(result)}`;

/** Parses a line; undefined if it is another or a truncated one. */
export function parseResult(line: string): Result | undefined {
  const at = line.indexOf(MARK);
  if (at < 0) return undefined;
  try {
    return JSON.parse(line.slice(at + MARK.length)) as Result;
  } catch {
    return undefined;
  }
}
