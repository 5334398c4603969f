// Validates values from outside against a declared format: JSON of state files and annotations, YAML of settings,
// frames of a protocol. Declare the format once as a valibot schema, take its type with `v.InferOutput`, read it with:
//
//   const Settings = v.object({ intervalMs: whole(100, 60_000), mode: v.optional(oneOf(['off', 'report'])) });
//   type Settings = v.InferOutput<typeof Settings>;
//   parseJson(Settings, text);     // Result<Settings>, error: `intervalMs: "x" is not a whole number from 100 to
//   60000`
//   parse(Settings, value);        // the same for a value that is parsed already
//   check(Settings, value, path);  // Result<Settings, Problem[]> for what people write: every problem, with its field
//   path
//
// A message given to a schema or action is a noun phrase for what is wanted: `v.regex(UUID, 'a UUID of a GPU')`.
import * as v from 'valibot';
import { field, isObject, type JsonObject } from './json.ts';
import { invalid, keyPath, missing, type Problem, showValue } from './problem.ts';
import { attempt, err, ok, type Result } from './result.ts';

type Schema = v.GenericSchema<unknown, unknown>;
type Issue = v.BaseIssue<unknown>;

/** What valibot expects at a key that an object may not have. */
const UNKNOWN_KEY = 'never';

/** A whole number that JavaScript holds exactly, within the bounds. */
export function whole(least: number, most: number) {
  const wanted =
    most === Number.MAX_SAFE_INTEGER ? `a whole number from ${least}` : `a whole number from ${least} to ${most}`;
  return v.pipe(v.number(wanted), v.safeInteger(wanted), v.minValue(least, wanted), v.maxValue(most, wanted));
}

/** Any number within the bounds. */
export function numberFrom(least: number, most: number) {
  const wanted = `a number from ${least} to ${most}`;
  return v.pipe(v.number(wanted), v.minValue(least, wanted), v.maxValue(most, wanted));
}

/** A text that is not empty. */
export function nonEmpty(wanted: string) {
  return v.pipe(v.string(wanted), v.nonEmpty(wanted));
}

export function oneOf<const T extends readonly string[]>(names: T) {
  return v.picklist(names, names.length === 1 ? `"${names[0]}"` : `one of ${names.join(', ')}`);
}

/** A read-only list. */
export function listOf<const S extends Schema>(item: S, least = 0, most = Number.MAX_SAFE_INTEGER) {
  const wanted = `a list of ${most === Number.MAX_SAFE_INTEGER ? `at least ${least}` : `${least} to ${most}`}`;
  return v.pipe(v.array(item), v.minLength(least, wanted), v.maxLength(most, wanted), v.readonly());
}

/** An object that may have no other keys: a misspelled setting would silently not apply. */
export function settings<const T extends v.ObjectEntries>(entries: T) {
  const keys = Object.keys(entries).join(', ');
  const wanted = ({ expected }: Issue) => (expected === UNKNOWN_KEY ? `one of ${keys}` : `an object of ${keys}`);
  return v.pipe(v.custom<JsonObject>(isObject, `an object of ${keys}`), v.strictObject(entries, wanted));
}

type DeepReadonly<T> = { readonly [K in keyof T]: T[K] extends object ? DeepReadonly<T[K]> : T[K] };
/** What an object with these entries is read as. */
export type SettingsOf<T extends v.ObjectEntries> = DeepReadonly<v.InferOutput<v.ObjectSchema<T, undefined>>>;

/** An object with keys of the reader's choice, read as a Map. */
export function mapOf<const K extends v.GenericSchema<string>, const S extends Schema>(key: K, item: S) {
  return v.pipe(
    v.custom<JsonObject>(isObject, 'an object'),
    v.record(key, item),
    v.transform((entries): ReadonlyMap<string, v.InferOutput<S>> => new Map(Object.entries(entries))),
  );
}

/** All problems of a value, each with its field path below `path`. */
export function check<const S extends Schema>(
  schema: S,
  value: unknown,
  path = '',
): Result<v.InferOutput<S>, readonly Problem[]> {
  const parsed = v.safeParse(schema, value, { message: wantedBy });
  return parsed.success ? ok(parsed.output) : err(parsed.issues.map((issue) => problemOf(issue, path)));
}

/** The value, or its first problem in one line. */
export function parse<const S extends Schema>(schema: S, value: unknown): Result<v.InferOutput<S>> {
  const parsed = v.safeParse(schema, value, { message: wantedBy, abortEarly: true });
  return parsed.success ? ok(parsed.output) : err(describe(parsed.issues[0]));
}

export function parseJson<const S extends Schema>(schema: S, text: string): Result<v.InferOutput<S>> {
  const value = attempt(() => JSON.parse(text) as unknown);
  return value.ok ? parse(schema, value.value) : err('it is not JSON');
}

/** As `parseJson`, for a text whose `version` must be this one. */
export function parseVersionedJson<const S extends Schema>(
  schema: S,
  version: number,
  text: string,
): Result<v.InferOutput<S>> {
  const read = attempt(() => JSON.parse(text) as unknown);
  if (!read.ok) return err('it is not JSON');
  const given = field(read.value, 'version');
  if (given === undefined) return err('version: is missing');
  return given === version ? parse(schema, read.value) : err(`version: ${showValue(given)} is not ${version}`);
}

function problemOf(issue: Issue, base: string): Problem {
  const path = pathOf(issue, base);
  if (isUnknownKey(issue)) return invalid(path, valueAt(issue), 'is not a known key', `write ${issue.message}`);
  if (issue.input === undefined) return missing(path, 'add it');
  return invalid(path, issue.input, 'is not valid', `write ${issue.message}`);
}

function describe(issue: Issue): string {
  const path = pathOf(issue, '');
  const at = path === '' ? '' : `${path}: `;
  if (isUnknownKey(issue)) return `${at}is not a known key, expected ${issue.message}`;
  if (issue.input === undefined) return `${at}is missing`;
  return `${at}${showValue(issue.input)} is not ${issue.message}`;
}

const isUnknownKey = (issue: Issue): boolean => issue.type === 'strict_object' && issue.expected === UNKNOWN_KEY;

const valueAt = (issue: Issue): unknown => issue.path?.at(-1)?.value;

/** `gpus[0].index`, and `templates["x/y"]` for a key that is not an identifier. */
function pathOf({ path }: Issue, base: string): string {
  let at = base;
  for (const { key } of path ?? []) {
    if (typeof key === 'number') at += `[${key}]`;
    else if (!/^[A-Za-z_]\w{0,63}$/.test(String(key))) at = keyPath(at, String(key));
    else at += at === '' ? key : `.${key}`;
  }
  return at;
}

const NAMES: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  boolean: 'true or false',
  Array: 'a list',
  Object: 'an object',
};

/** What a schema without a message of its own wants: valibot writes `(string | null)`. */
function wantedBy({ expected }: Issue): string {
  const kinds = (expected ?? 'valid').replace(/^\((.*)\)$/, '$1').split(' | ');
  return kinds.map((kind) => NAMES[kind] ?? kind).join(' or ');
}
