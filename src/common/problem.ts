// A problem in something that a person wrote: field path, value, what is wrong, what would be right; and its text in
// one line.
import type { Result } from './result.ts';

/** `invalid`: not a valid value. `forbidden`: valid, but this cluster or namespace does not allow it. */
export type Problem = {
  readonly kind: 'invalid' | 'forbidden';
  /** Field path as Kubernetes writes it, e.g. `spec.containers[1].resources.limits["cotenant.io/gpu"]`. */
  readonly path: string;
  /** The value as shown in the message; absent where the field is missing, or where its presence is the problem. */
  readonly value?: string;
  readonly wrong: string;
  readonly right: string;
};

/** A value that was checked, or everything that is wrong with it. */
export type Checked<T> = Result<T, readonly Problem[]>;

const problemOf =
  (kind: Problem['kind']) =>
  (path: string, value: unknown, wrong: string, right: string): Problem =>
    value === undefined ? { kind, path, wrong, right } : { kind, path, value: showValue(value), wrong, right };

/** `value` undefined leaves the value out of the message. */
export const invalid = problemOf('invalid');
export const forbidden = problemOf('forbidden');
export const missing = (path: string, right: string): Problem => invalid(path, undefined, 'is missing', right);

/** One line: `path: value wrong; right`. */
export function formatProblem(problem: Problem): string {
  const value = problem.value === undefined ? '' : `${problem.value} `;
  return `${problem.path}: ${value}${problem.wrong}; ${problem.right}`;
}

/** `base["key"]`, as Kubernetes writes the path of an entry of a map. Keys may be hostile, so they are clipped. */
export function keyPath(base: string, key: string): string {
  return `${base}[${JSON.stringify(clip(key, 130))}]`;
}

/** A value for a message: short, on one line, without its fields (a hostile value may be nested very deeply). */
export function showValue(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(clip(value, 80));
  if (value === null || typeof value === 'number' || typeof value === 'boolean') return String(value);
  if (Array.isArray(value)) return `a list of ${value.length}`;
  return 'an object';
}

function clip(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most)}...`;
}
