// What an operator changes about a container's compute while it runs: read from the agent's socket or from a pod's annotation,
// written by the CLI. Pure. What is left out stays as it is; null takes back what was chosen.
import { field, isObject, isWithin, type JsonObject } from '../common/json.ts';
import { isContainerName } from './names.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  type ComputePolicy,
  MOST_WEIGHT,
  PRIORITIES,
  type Priority,
  parseComputePolicy,
} from './request.ts';

export type ComputeChange = {
  readonly policy?: ComputePolicy | null;
  readonly priority?: Priority;
  readonly weight?: number | null;
  /** Of each of its GPUs; 0: no amount. */
  readonly coresPercent?: number;
  readonly coresLimitPercent?: number | null;
};

type Wrong = { readonly wrong: string };
type Reader = (value: unknown) => boolean;

const isPolicy: Reader = (value) => typeof value === 'string' && parseComputePolicy(value) !== undefined;
const KEYS: Readonly<Record<keyof ComputeChange, readonly [Reader, string]>> = {
  policy: [(value) => value === null || isPolicy(value), `one of ${COMPUTE_POLICIES.join(', ')}, or null`],
  priority: [(value) => PRIORITIES.some((name) => name === value), `one of ${PRIORITIES.join(', ')}`],
  weight: [(value) => value === null || isWithin(value, 1, MOST_WEIGHT), `1 to ${MOST_WEIGHT}, or null`],
  coresPercent: [(value) => isWithin(value, 0, 100), '0 to 100'],
  coresLimitPercent: [(value) => value === null || isWithin(value, 1, 100), '1 to 100, or null'],
};

export const isWrong = <T extends object>(value: T | Wrong): value is Wrong => 'wrong' in value;

export function readChange(value: unknown): ComputeChange | Wrong {
  if (!isObject(value)) return { wrong: `want a map of ${Object.keys(KEYS).join(', ')}` };
  const change: Record<string, unknown> = {};
  for (const [key, given] of Object.entries(value)) {
    const rule = Object.hasOwn(KEYS, key) ? KEYS[key as keyof ComputeChange] : undefined;
    if (!rule) return { wrong: `${key}: no such setting; known are ${Object.keys(KEYS).join(', ')}` };
    const [isGood, right] = rule;
    if (!isGood(given)) return { wrong: `${key}: ${JSON.stringify(given)}; want ${right}` };
    change[key] = key === 'policy' && typeof given === 'string' ? parseComputePolicy(given) : given;
  }
  return change;
}

/** The annotation's text: changes by the container's name. */
export function readChanges(text: string): ReadonlyMap<string, ComputeChange> | Wrong {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { wrong: 'it is not JSON' };
  }
  if (!isObject(value)) return { wrong: 'want a map from container to its change' };
  const changes = new Map<string, ComputeChange>();
  for (const [name, given] of Object.entries(value)) {
    const change = readChange(given);
    if (!isContainerName(name)) return { wrong: `${JSON.stringify(name)} is no container's name` };
    if (isWrong(change)) return { wrong: `${name}: ${change.wrong}` };
    changes.set(name, change);
  }
  return changes;
}

/** The annotation after one more change of these containers. */
export function addChange(text: string | undefined, containers: readonly string[], change: ComputeChange): string {
  const before = text === undefined ? new Map<string, ComputeChange>() : readChanges(text);
  const changes = new Map(isWrong(before) ? [] : before);
  for (const name of containers) changes.set(name, { ...changes.get(name), ...change });
  return JSON.stringify(Object.fromEntries([...changes].toSorted(([a], [b]) => (a < b ? -1 : 1))));
}

type Cores = { readonly coresPercent: number; readonly coresLimitPercent?: number };
type Compute<C extends Cores> = { readonly gpus: readonly C[]; readonly compute?: ComputeChoice };

/** What comes of it. A limit must lie between the share and the whole GPU. */
export function changed<C extends Cores>(of: Compute<C>, change: ComputeChange): Required<Compute<C>> | Wrong {
  const gpus: C[] = [];
  for (const gpu of of.gpus) {
    const { coresLimitPercent: before, ...rest } = gpu;
    const coresPercent = change.coresPercent ?? gpu.coresPercent;
    const limit = change.coresLimitPercent === undefined ? before : (change.coresLimitPercent ?? undefined);
    if (limit !== undefined && (coresPercent === 0 || limit < coresPercent)) {
      const right = coresPercent === 0 ? 'want a share beside it' : `want ${coresPercent} to 100`;
      return { wrong: `coresLimitPercent: ${limit}; ${right}, or null` };
    }
    gpus.push({ ...rest, coresPercent, ...(limit !== undefined && { coresLimitPercent: limit }) } as unknown as C);
  }
  const kept = { ...of.compute } as JsonObject;
  const next: Record<string, unknown> = {};
  for (const key of ['policy', 'priority', 'weight'] as const) {
    const value = change[key] === undefined ? field(kept, key) : change[key];
    if (value !== null && value !== undefined) next[key] = value;
  }
  return { gpus, compute: next };
}
