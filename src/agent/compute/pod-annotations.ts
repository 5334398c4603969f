// Reads a pod's compute settings from its annotations: its own choice, and an operator's override. Pure.

import { applyComputeChange, parseComputeChanges } from '../../api/compute-annotation.ts';
import type { GpuGrant } from '../../api/gpu.ts';
import { parsePodGrant } from '../../api/grant-annotation.ts';
import { COMPUTE_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import type { ComputeChoice } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { field } from '../../common/json.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import { grantedOn } from '../grants/sums.ts';

/** The pod's own choice, from the request that the webhook recorded. */
function choiceOf(annotations: unknown): ComputeChoice {
  const record = parsePodRequest(field(annotations, REQUEST_ANNOTATION));
  if (!record.ok) return {};
  const { computePolicy, priority, computeWeight } = record.value;
  return {
    ...(computePolicy && { policy: computePolicy }),
    ...(priority === 'high' && { priority }),
    ...(computeWeight !== undefined && { weight: computeWeight }),
  };
}

/** Compute limits of a container's GPUs, in the order of the request. */
function coresLimitsOf(annotations: unknown, container: string): readonly (number | undefined)[] {
  const record = parsePodRequest(field(annotations, REQUEST_ANNOTATION));
  const found = record.ok ? record.value.containers.find(({ name }) => name === container) : undefined;
  return found?.gpus.map(({ coresLimitPercent }) => coresLimitPercent) ?? [];
}

/** A container's GPUs and compute settings by the pod's own choice. */
export const computeChoice = (
  annotations: unknown,
  container: string,
  gpus: readonly GpuGrant[],
): Pick<Grant, 'gpus'> & { readonly compute: ComputeChoice } => {
  const limits = coresLimitsOf(annotations, container);
  return {
    gpus: gpus.map(({ coresLimitPercent: _, ...gpu }, index) => {
      const limit = limits[index];
      return { ...gpu, ...(limit !== undefined && { coresLimitPercent: limit }) };
    }),
    compute: choiceOf(annotations),
  };
};

type Override = Pick<Grant, 'id' | 'gpus' | 'compute' | 'computeOverride'>;

/**
 * The pod's grants that its override annotation changes. The annotation applies as a whole or not at all: an error if it
 * cannot be parsed, names a container without a grant, or asks for more of a GPU than other grants leave.
 */
export function readOverrides(
  podUid: string,
  annotations: unknown,
  grants: readonly Grant[],
): Result<readonly Override[]> {
  const given = field(annotations, COMPUTE_ANNOTATION);
  const text = typeof given === 'string' ? given : '';
  const ofPod = grants.filter((grant) => podUidOf(grant) === podUid);
  const own = ofPod.filter((grant) => (grant.computeOverride ?? '') !== text);
  if (own.length === 0) return ok([]);
  const read = parseComputeChanges(text === '' ? '{}' : text);
  if (!read.ok) return err(read.error);
  const changes = read.value;
  const names = ofPod.map(({ container }) => container);
  const unknown = [...changes.keys()].find((name) => !names.includes(name));
  if (unknown !== undefined)
    return err(`${unknown}: no container with a grant has this name; the pod has ${names.join(', ')}`);
  const granted = parsePodGrant(String(field(annotations, GRANT_ANNOTATION) ?? ''));
  const overrides = new Map<string, Override>();
  for (const grant of own) {
    const asked = granted.ok ? granted.value.containers.find(({ name }) => name === grant.container) : undefined;
    const gpus = grant.gpus.map((gpu, index) => ({
      ...gpu,
      coresPercent: asked?.gpus[index]?.coresPercent ?? gpu.coresPercent,
    }));
    const next = applyComputeChange(
      computeChoice(annotations, grant.container, gpus),
      changes.get(grant.container) ?? {},
    );
    if (!next.ok) return err(`${grant.container}: ${next.error}`);
    overrides.set(grant.id, { id: grant.id, ...next.value, computeOverride: text });
  }
  const then = grants.map((grant) => ({ ...grant, ...overrides.get(grant.id) }));
  const wrong = overcommitText(podUid, grants, then);
  return wrong === undefined ? ok([...overrides.values()]) : err(wrong);
}

/** A GPU that is overcommitted already may stay so, and its grants may shrink. */
function overcommitText(podUid: string, now: readonly Grant[], then: readonly Grant[]): string | undefined {
  const isOfIt = (grant: Grant) => podUidOf(grant) === podUid;
  const own = then.filter(isOfIt);
  for (const gpuUuid of new Set(own.flatMap(({ gpus }) => gpus.map((gpu) => gpu.gpuUuid)))) {
    const sum = (grants: readonly Grant[]) => grantedOn(grants, gpuUuid).coresPercent;
    if (sum(then) <= Math.max(100, sum(now))) continue;
    const left = Math.max(0, 100 - sum(then.filter((grant) => !isOfIt(grant))));
    return `${gpuUuid} has ${left} % of its compute left for the pod, but ${sum(own)} % are requested`;
  }
  return undefined;
}
