// Reads the tenant's annotations of a pod: placement, compute policy, weight and limits, priority, isolation,
// enforcement mode, GPUs, templates. Checks their values and whether the namespace's rules allow them.

import {
  COMPUTE_POLICY_ANNOTATION,
  COMPUTE_WEIGHT_ANNOTATION,
  CORES_LIMIT_ANNOTATION,
  ENFORCEMENT_ANNOTATION,
  GPU_MODEL_ANNOTATION,
  GPU_UUID_ANNOTATION,
  MEMORY_ISOLATION_ANNOTATION,
  PLACEMENT_ANNOTATION,
  PRIORITY_ANNOTATION,
  TEMPLATE_ANNOTATION,
} from '../api/names.ts';
import {
  COMPUTE_POLICIES,
  type ComputePolicy,
  type MemoryIsolation,
  MODES,
  MOST_GPUS,
  type Mode,
  PLACEMENTS,
  type Placement,
  PRIORITIES,
  type Priority,
  parseComputePolicy,
} from '../api/request.ts';
import { field, type JsonObject } from '../common/json.ts';
import { forbidden, invalid, keyPath, type Problem } from '../common/problem.ts';
import { meantPercent, parsePercent, parseWhole, withoutMarks } from '../common/quantity.ts';
import { notWeakerThan } from '../policy/mode.ts';
import type { Dialect, ForeignChoice } from './dialects/dialect.ts';
import { mayBeUnlimited, type Rules } from './rules/namespace-rules.ts';

export type Choices = {
  readonly placement: Placement | undefined;
  readonly computePolicy: ComputePolicy | undefined;
  readonly computeWeight: number | undefined;
  /** Percent over all GPUs: of the only container with a share, or of each of the named containers. */
  readonly coresLimits: number | ReadonlyMap<string, number> | undefined;
  readonly priority: Priority;
  readonly memoryIsolation: MemoryIsolation | undefined;
  /** Not weaker than the namespace's. */
  readonly enforcement: Mode | undefined;
  readonly gpuModels: readonly string[];
  readonly gpuUuids: readonly string[];
  /** One template for the only container, or a template for each of the named containers. */
  readonly templates: string | ReadonlyMap<string, string> | undefined;
};

const LONGEST_LIST = 32;
const LONGEST_PROPOSAL = 200;
/** Names in a list with commas. With a `!` it is one to leave out. */
type Names = { readonly pattern: RegExp; readonly what: string; readonly example: string };
const UUIDS: Names = {
  pattern: /^!?GPU-[0-9A-Za-z-]{1,60}$/,
  what: 'the UUID of a GPU',
  example: 'GPU-8f3c0d52-...',
};
const MODELS: Names = {
  pattern: /^!?[\w .:+/()-]{1,100}$/,
  what: 'the model of a GPU',
  example: 'NVIDIA H200,Tesla T4',
};
/** Enough for a list of that length whose entries hold two of Kubernetes' longest names each. */
const LONGEST_TEXT = 8192;

export function annotationPath(key: string): string {
  return keyPath('metadata.annotations', key);
}

/** Values that are wrong or not allowed are added to `problems`, and read as not chosen. */
export function readChoices(annotations: JsonObject, rules: Rules, problems: Problem[]): Choices {
  const text = (key: string): string | undefined => {
    const value = field(annotations, key);
    if (value === undefined) return undefined;
    if (typeof value === 'string' && value.length <= LONGEST_TEXT) return value;
    const [wrong, right] =
      typeof value === 'string'
        ? [`is longer than ${LONGEST_TEXT} characters`, 'write a shorter text']
        : ['is not text', 'write a text'];
    problems.push(invalid(annotationPath(key), value, wrong, right));
    return undefined;
  };
  const one = <T extends string>(
    key: string,
    known: readonly T[],
    allowed: readonly T[],
    named = (value: string): T | undefined => known.find((name) => name === value),
  ): T | undefined => {
    const value = text(key);
    if (value === undefined) return undefined;
    const chosen = named(value);
    const right =
      allowed.length > 0
        ? `write ${allowed.length > 1 ? 'one of ' : ''}${allowed.join(', ')}`
        : 'leave it out: this namespace allows no choice';
    const isEmpty = value.trim() === '';
    if (chosen === undefined)
      problems.push(invalid(annotationPath(key), value, isEmpty ? 'is empty' : 'is not known', right));
    else if (!allowed.includes(chosen)) problems.push(notAllowed(key, value, right));
    else return chosen;
    return undefined;
  };
  const list = (key: string, allowed: boolean, names: Names): readonly string[] => {
    const value = text(key);
    if (value === undefined) return [];
    if (!allowed) problems.push(notAllowed(key, value, 'leave it out'));
    else {
      const entries = value.split(',').map((entry) => entry.trim());
      const problem = wrongList(entries, names);
      if (problem === undefined) return [...new Set(entries)].sort();
      problems.push(invalid(annotationPath(key), value, problem.wrong, problem.right));
    }
    return [];
  };
  const isolation: readonly MemoryIsolation[] = mayBeUnlimited(rules) ? ['on', 'off'] : ['on'];
  return {
    placement: one(PLACEMENT_ANNOTATION, PLACEMENTS, rules.placements),
    computePolicy: one(COMPUTE_POLICY_ANNOTATION, COMPUTE_POLICIES, rules.computePolicies, parseComputePolicy),
    computeWeight: readWeight(text(COMPUTE_WEIGHT_ANNOTATION), rules, problems),
    coresLimits: readCoresLimits(text(CORES_LIMIT_ANNOTATION), rules, problems),
    priority: one(PRIORITY_ANNOTATION, PRIORITIES, rules.priorities) ?? 'normal',
    memoryIsolation: one(MEMORY_ISOLATION_ANNOTATION, ['on', 'off'], isolation),
    enforcement: one(ENFORCEMENT_ANNOTATION, MODES, notWeakerThan(rules.enforcement)),
    gpuModels: list(GPU_MODEL_ANNOTATION, rules.allowGpuModel, MODELS),
    gpuUuids: list(GPU_UUID_ANNOTATION, rules.allowGpuUuid, UUIDS),
    templates: readTemplates(text(TEMPLATE_ANNOTATION), rules, problems),
  };
}

/**
 * The annotations with ours in the place of those of other systems that mean the same, where the namespace allows the
 * value and the pod has none of ours. A warning names those that are not read.
 */
export function withForeignChoices(
  { annotations, labels }: { readonly annotations: JsonObject; readonly labels: JsonObject },
  dialects: readonly Dialect[],
  rules: Rules,
  warnings: string[],
): JsonObject {
  const own = new Map<string, unknown>();
  for (const choice of dialects.flatMap(({ choices = [] }) => choices)) {
    const { annotation, own: key, translate, instead } = choice;
    const written = field(choice.isLabel ? labels : annotations, annotation);
    if (written === undefined || written === choice.usual) continue;
    const value = typeof written === 'string' && translate ? translate(written) : written;
    if (key === undefined || !isAllowed(key, String(value), rules))
      warnings.push(`${annotation}: not read${instead ? `; write ${instead}, where it is allowed` : ''}`);
    else if (field(annotations, key) === undefined && own.has(key) && String(value).startsWith('!'))
      own.set(key, `${own.get(key)},${value}`);
    else if (field(annotations, key) !== undefined || own.has(key))
      warnings.push(`${annotation}: no effect beside ${key}`);
    else own.set(key, value);
  }
  return own.size === 0 ? annotations : { ...annotations, ...Object.fromEntries(own) };
}

function isAllowed(key: NonNullable<ForeignChoice['own']>, value: string, rules: Rules): boolean {
  if (key === PLACEMENT_ANNOTATION) return rules.placements.some((placement) => placement === value);
  return rules.allowGpuUuid && value.split(',').every((uuid) => UUIDS.pattern.test(uuid.trim()));
}

/** What is wrong with a list of names, or undefined. What was meant is proposed where that is clear. */
function wrongList(entries: readonly string[], { pattern, what, example }: Names) {
  const named = entries.filter((entry) => entry !== '');
  if (named.length === 0) return { wrong: 'is empty', right: `write ${what}, such as "${example}", or leave it out` };
  if (entries.length > LONGEST_LIST)
    return { wrong: `is a list of ${entries.length} names`, right: `write at most ${LONGEST_LIST}` };
  const both = named.find((entry) => named.includes(`!${entry}`));
  const stray = named.find((entry) => !pattern.test(entry));
  if (stray === undefined && named.length === entries.length)
    return both === undefined
      ? undefined
      : { wrong: `names "${both}" and leaves it out`, right: 'write one of the two' };
  const meant = named.map((entry) => withoutMarks(entry).replace(/^(!?)gpu-/, '$1GPU-'));
  const proposal = meant.join(',');
  const isClear = proposal.length <= LONGEST_PROPOSAL && meant.every((entry) => pattern.test(entry));
  const right = isClear ? `write "${proposal}"` : `write names with commas, such as "${example}"`;
  if (stray === undefined) return { wrong: 'has an empty name', right };
  return { wrong: named.length === 1 ? `is not ${what}` : `has a name that is not ${what}`, right };
}

function notAllowed(key: string, value: string, right: string): Problem {
  return forbidden(annotationPath(key), value, 'is not allowed in this namespace', right);
}

function readWeight(text: string | undefined, rules: Rules, problems: Problem[]): number | undefined {
  if (text === undefined) return undefined;
  const most = rules.mostComputeWeight;
  if (most === 0) {
    problems.push(notAllowed(COMPUTE_WEIGHT_ANNOTATION, text, 'leave it out, or have mostComputeWeight raised'));
    return undefined;
  }
  const weight = parseWhole(text, 1, most);
  if (weight.ok) return weight.value;
  problems.push(invalid(annotationPath(COMPUTE_WEIGHT_ANNOTATION), text, weight.error.wrong, weight.error.right));
  return undefined;
}

/** `80`, or `main=80,helper=40`. */
function readCoresLimits(text: string | undefined, rules: Rules, problems: Problem[]): Choices['coresLimits'] {
  if (text === undefined) return undefined;
  // The soft policy gives a container all idle compute, so where it is allowed a limit is allowed too.
  if (!rules.computePolicies.includes('soft')) {
    problems.push(notAllowed(CORES_LIMIT_ANNOTATION, text, 'leave it out, or have the policy soft allowed'));
    return undefined;
  }
  const read = (value: string) => parsePercent(value, 1, 100 * MOST_GPUS);
  const refuse = (entry: string, why?: string, right?: string) => {
    const end = entry.indexOf('=') + 1;
    const percent = read(entry.slice(end));
    const meant = why === undefined && !percent.ok ? percent.error.meant : undefined;
    const clear = meant === undefined ? right : `write "${entry.slice(0, end).trim()}${meant}"`;
    const usual = 'write percent over all its GPUs, such as "80", or container=percent with commas';
    const wrong = why ?? 'is not a percentage';
    problems.push(invalid(annotationPath(CORES_LIMIT_ANNOTATION), entry, wrong, clear ?? usual));
  };
  if (/^\s*\d*,\d+\s*$/.test(text) && meantPercent(text) !== undefined) {
    refuse(text);
    return undefined;
  }
  const percentOf = (value: string) => {
    const percent = read(value);
    return percent.ok ? percent.value : undefined;
  };
  return readByContainer(text, percentOf, refuse);
}

/**
 * Reads `value`, or `container=value` with commas: one value, or those of the named containers. `read` returns undefined
 * for a value that is refused. At most one entry more than is allowed is looked at.
 */
function readByContainer<T>(
  text: string,
  read: (value: string) => T | undefined,
  refuse: (entry: string, why?: string, right?: string) => void,
): T | ReadonlyMap<string, T> | undefined {
  const chosen = new Map<string, T>();
  const entries = text.split(',').slice(0, LONGEST_LIST + 1);
  if (entries.some((entry) => entry.trim() === '')) {
    const rest = entries.filter((entry) => entry.trim() !== '').join(',');
    let isRight = rest !== '' && rest.length <= LONGEST_PROPOSAL;
    if (isRight)
      readByContainer(rest, read, () => {
        isRight = false;
      });
    refuse(text, rest === '' ? 'is empty' : 'has an empty entry', isRight ? `write "${rest.trim()}"` : undefined);
    return undefined;
  }
  for (const entry of entries) {
    // No regular expression: one with several ways to read the same blanks takes time that grows with their cube.
    const equals = entry.indexOf('=');
    const container = entry.slice(0, Math.max(equals, 0)).trim();
    const value = read(entry.slice(equals + 1).trim());
    const isUnclear = chosen.has(container) || (container === '' && text.includes(','));
    if (value === undefined || isUnclear || chosen.size >= LONGEST_LIST) {
      refuse(entry, isUnclear ? 'lacks a container, or names one twice' : undefined);
      return undefined;
    }
    chosen.set(container, value);
  }
  return chosen.get('') ?? chosen;
}

/** `small`, or `main=small,helper=tiny`. */
function readTemplates(text: string | undefined, rules: Rules, problems: Problem[]): Choices['templates'] {
  if (text === undefined) return undefined;
  const path = annotationPath(TEMPLATE_ANNOTATION);
  if (rules.templates.size === 0) {
    const right = `leave it out and write amounts under resources.limits`;
    problems.push(forbidden(path, text, 'names a template, but no templates are configured', right));
    return undefined;
  }
  const refuse = (entry: string, why = 'is not a configured template', right?: string) => {
    const usual = `write one of ${[...rules.templates.keys()].join(', ')}, or container=template with commas`;
    problems.push(invalid(path, entry, why, right ?? usual));
  };
  return readByContainer(text, (template) => (rules.templates.has(template) ? template : undefined), refuse);
}
