// What both ends know: where things lie in the guest, and what passes over its serial line (one line of JSON per check behind
// a mark, between whatever else is printed there).

/** Where the checkout lies in the guest. */
export const HOME = '/cotenant';

/** The full program, out of the way of busybox's own. */
export const UNSHARE = '/opt/unshare';

export type Result = { readonly name: string; readonly ms: number; readonly wrong?: string };

const MARK = '@cotenant ';

export const formatResult = (result: Result): string => `${MARK}${JSON.stringify(result)}`;

/** Undefined: another line, or one that was cut. */
export function parseResult(line: string): Result | undefined {
  const at = line.indexOf(MARK);
  if (at < 0) return undefined;
  try {
    return JSON.parse(line.slice(at + MARK.length)) as Result;
  } catch {
    return undefined;
  }
}
