// What a pod chose of compute and what an operator gave it in place of that, by its annotations. Pure.

import { applyComputeChange, parseComputeChanges } from '../../api/compute-annotation.ts';
import type { GpuGrant } from '../../api/gpu.ts';
import { parsePodGrant } from '../../api/grant-annotation.ts';
import { COMPUTE_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import type { ComputeChoice } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { field } from '../../common/json.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import { grantedOn } from '../grants/sums.ts';

/** What was chosen for a pod, by what the webhook recorded of the pod. */
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

/** Limits of a container's GPUs, in their order. */
function coresLimitsOf(annotations: unknown, container: string): readonly (number | undefined)[] {
  const record = parsePodRequest(field(annotations, REQUEST_ANNOTATION));
  const found = record.ok ? record.value.containers.find(({ name }) => name === container) : undefined;
  return found?.gpus.map(({ coresLimitPercent }) => coresLimitPercent) ?? [];
}

/** What a container of the pod has, with what was chosen for it. */
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

export type Override = Pick<Grant, 'id' | 'gpus' | 'compute' | 'computeOverride'>;

/**
 * Grants of a pod as its annotations have them now; those that stay as they are are left out. All of what the annotation says, or
 * nothing of it: what cannot be read, is of no container with a share, or is more than the others leave of a GPU.
 */
export function readOverrides(
  podUid: string,
  annotations: unknown,
  grants: readonly Grant[],
): readonly Override[] | { readonly wrong: string } {
  const given = field(annotations, COMPUTE_ANNOTATION);
  const text = typeof given === 'string' ? given : '';
  const ofPod = grants.filter((grant) => podUidOf(grant) === podUid);
  const own = ofPod.filter((grant) => (grant.computeOverride ?? '') !== text);
  if (own.length === 0) return [];
  const read = parseComputeChanges(text === '' ? '{}' : text);
  if (!read.ok) return { wrong: read.error };
  const changes = read.value;
  const names = ofPod.map(({ container }) => container);
  const unknown = [...changes.keys()].find((name) => !names.includes(name));
  if (unknown !== undefined)
    return { wrong: `${unknown}: no container with a share has this name; there are ${names.join(', ')}` };
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
    if (!next.ok) return { wrong: `${grant.container}: ${next.error}` };
    overrides.set(grant.id, { id: grant.id, ...next.value, computeOverride: text });
  }
  const then = grants.map((grant) => ({ ...grant, ...overrides.get(grant.id) }));
  const wrong = overbooked(podUid, grants, then);
  return wrong === undefined ? [...overrides.values()] : { wrong };
}

/** Who has more than there is already may keep it, and have less. */
function overbooked(podUid: string, now: readonly Grant[], then: readonly Grant[]): string | undefined {
  const isOfIt = (grant: Grant) => podUidOf(grant) === podUid;
  const own = then.filter(isOfIt);
  for (const gpuUuid of new Set(own.flatMap(({ gpus }) => gpus.map((gpu) => gpu.gpuUuid)))) {
    const sum = (grants: readonly Grant[]) => grantedOn(grants, gpuUuid).coresPercent;
    if (sum(then) <= Math.max(100, sum(now))) continue;
    const left = Math.max(0, 100 - sum(then.filter((grant) => !isOfIt(grant))));
    return `${gpuUuid} has ${left} % of its compute left for the pod, ${sum(own)} % are asked for`;
  }
  return undefined;
}
