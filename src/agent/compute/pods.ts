// What a pod chose of compute and what an operator gave it in place of that, by its annotations. Pure.
import type { CardGrant } from '../../placement/place.ts';
import { parsePodGrant } from '../../placement/pod-grant.ts';
import { type ComputeChange, changed, isWrong, readChanges } from '../../request/compute-change.ts';
import { field } from '../../request/json.ts';
import { COMPUTE_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../request/names.ts';
import { parseRecord } from '../../request/record.ts';
import type { ComputeChoice } from '../../request/request.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';

/** What was chosen for a pod, by what the webhook recorded of the pod. */
function choiceOf(annotations: unknown): ComputeChoice {
  const record = parseRecord(field(annotations, REQUEST_ANNOTATION));
  if (!record.ok) return {};
  const { computePolicy, priority, computeWeight } = record.value;
  return {
    ...(computePolicy && { policy: computePolicy }),
    ...(priority === 'high' && { priority }),
    ...(computeWeight !== undefined && { weight: computeWeight }),
  };
}

/** Limits of a container's cards, in their order. */
function coresLimitsOf(annotations: unknown, container: string): readonly (number | undefined)[] {
  const record = parseRecord(field(annotations, REQUEST_ANNOTATION));
  const found = record.ok ? record.value.containers.find(({ name }) => name === container) : undefined;
  return found?.cards.map(({ coresLimitPercent }) => coresLimitPercent) ?? [];
}

/** What a container of the pod has, with what was chosen for it. */
export const chosenBy = (
  annotations: unknown,
  container: string,
  cards: readonly CardGrant[],
): Pick<Grant, 'cards'> & { readonly compute: ComputeChoice } => {
  const limits = coresLimitsOf(annotations, container);
  return {
    cards: cards.map(({ coresLimitPercent: _, ...card }, index) => {
      const limit = limits[index];
      return { ...card, ...(limit !== undefined && { coresLimitPercent: limit }) };
    }),
    compute: choiceOf(annotations),
  };
};

/** Grants of a pod as its annotations have them now; those that stay as they are are left out. */
export function overridden(
  podUid: string,
  annotations: unknown,
  grants: readonly Grant[],
): readonly (Pick<Grant, 'id' | 'cards' | 'compute' | 'computeOverride'> | { readonly wrong: string })[] {
  const given = field(annotations, COMPUTE_ANNOTATION);
  const text = typeof given === 'string' ? given : '';
  const own = grants.filter((grant) => podUidOf(grant) === podUid && (grant.computeOverride ?? '') !== text);
  if (own.length === 0) return [];
  const changes = text === '' ? new Map<string, ComputeChange>() : readChanges(text);
  if (isWrong(changes)) return [{ wrong: changes.wrong }];
  const granted = parsePodGrant(String(field(annotations, GRANT_ANNOTATION) ?? ''));
  return own.map((grant) => {
    const asked = 'wrong' in granted ? undefined : granted.containers.find(({ name }) => name === grant.container);
    const cards = grant.cards.map((card, index) => ({
      ...card,
      coresPercent: asked?.cards[index]?.coresPercent ?? card.coresPercent,
    }));
    const next = changed(chosenBy(annotations, grant.container, cards), changes.get(grant.container) ?? {});
    return isWrong(next)
      ? { wrong: `${grant.container}: ${next.wrong}` }
      : { id: grant.id, ...next, computeOverride: text };
  });
}
