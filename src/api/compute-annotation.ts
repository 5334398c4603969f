// A change of a container's compute while it runs: the format of the annotation `cotenant.io/compute` and of the same
// change on the agent's socket. A setting that is left out stays as it is; null goes back to what the pod chose.
import * as v from 'valibot';
import { field, type JsonObject } from '../common/json.ts';
import { err, ok, type Result } from '../common/result.ts';
import { mapOf, oneOf, parse, parseJson, settings, whole } from '../common/schema.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  containerName,
  MOST_WEIGHT,
  PRIORITIES,
  parseComputePolicy,
} from './request.ts';

const policy = v.pipe(
  v.unknown(),
  v.transform((given) => (typeof given === 'string' ? (parseComputePolicy(given) ?? given) : given)),
  oneOf(COMPUTE_POLICIES),
);
const computeChange = settings({
  policy: v.exactOptional(v.nullable(policy)),
  priority: v.exactOptional(oneOf(PRIORITIES)),
  weight: v.exactOptional(v.nullable(whole(1, MOST_WEIGHT))),
  /** Of each of its GPUs; 0: no share. */
  coresPercent: v.exactOptional(whole(0, 100)),
  coresLimitPercent: v.exactOptional(v.nullable(whole(1, 100))),
});
export type ComputeChange = v.InferOutput<typeof computeChange>;

const changesByContainer = mapOf(containerName, computeChange);

export function parseComputeChange(value: unknown): Result<ComputeChange> {
  return parse(computeChange, value);
}

/** Reads the annotation: changes by container name. */
export function parseComputeChanges(text: string): Result<ReadonlyMap<string, ComputeChange>> {
  return parseJson(changesByContainer, text);
}

/** The annotation after one more change of these containers. A text that cannot be read is replaced. */
export function addComputeChange(
  text: string | undefined,
  containers: readonly string[],
  change: ComputeChange,
): string {
  const before = parseComputeChanges(text ?? '{}');
  const changes = new Map(before.ok ? before.value : []);
  for (const name of containers) changes.set(name, { ...changes.get(name), ...change });
  return JSON.stringify(Object.fromEntries([...changes].toSorted(([a], [b]) => (a < b ? -1 : 1))));
}

type Cores = { readonly coresPercent: number; readonly coresLimitPercent?: number };
type Compute<C extends Cores> = { readonly gpus: readonly C[]; readonly compute?: ComputeChoice };

/** A container's compute after the change. A limit must lie between the share and the whole GPU. */
export function applyComputeChange<C extends Cores>(
  before: Compute<C>,
  change: ComputeChange,
): Result<Required<Compute<C>>> {
  const gpus: C[] = [];
  for (const gpu of before.gpus) {
    const { coresLimitPercent, ...rest } = gpu;
    const coresPercent = change.coresPercent ?? gpu.coresPercent;
    const limit = change.coresLimitPercent === undefined ? coresLimitPercent : (change.coresLimitPercent ?? undefined);
    if (limit !== undefined && (coresPercent === 0 || limit < coresPercent)) {
      if (coresPercent === 0)
        return err(`coresLimitPercent: ${limit} without a share; set coresPercent too, or write null`);
      return err(`coresLimitPercent: ${limit} is below the share; write ${coresPercent} to 100, or null`);
    }
    gpus.push({ ...rest, coresPercent, ...(limit !== undefined && { coresLimitPercent: limit }) } as unknown as C);
  }
  const chosen = { ...before.compute } as JsonObject;
  const compute: Record<string, unknown> = {};
  for (const key of ['policy', 'priority', 'weight'] as const) {
    const value = change[key] === undefined ? field(chosen, key) : change[key];
    if (value !== null && value !== undefined) compute[key] = value;
  }
  return ok({ gpus, compute });
}
