// The compute of this node's cards: who said which policy holds, what operators change of it while containers run, and that the
// arbiter is told at once. Owns what lives from change to change; what follows from it is decided by policy.ts and plan.ts.
import { parsePodGrant } from '../../placement/pod-grant.ts';
import { type ComputeChange, changed, isWrong, readChanges } from '../../request/compute-change.ts';
import { field } from '../../request/json.ts';
import {
  COMPUTE_ANNOTATION,
  COMPUTE_POLICY_ANNOTATION,
  GRANT_ANNOTATION,
  REQUEST_ANNOTATION,
} from '../../request/names.ts';
import { parseRecord } from '../../request/record.ts';
import type { ComputeChoice, ComputePolicy } from '../../request/request.ts';
import { policyNamed } from '../../request/rules.ts';
import type { AgentConfiguration } from '../configuration.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import { grantedOn } from '../grants/granted.ts';
import type { Refusal } from '../grants/plain.ts';
import type { LiveGrant, Registry } from '../grants/registry.ts';
import type { ComputeUse } from './account.ts';
import { createArbiter } from './arbiter.ts';
import { type CardPolicy, leasedGrants, type PolicyChoices, policiesOf, policyOfCard } from './policy.ts';
import { openComputeStore } from './store.ts';

/** Of a grant on one card, for whoever looks. */
export type ShareState = {
  /** What holds there now. */
  readonly policy: ComputePolicy;
  readonly use: ComputeUse | undefined;
};

/** For the node, or for one card of it; null takes back what was set before. */
export type NodeComputeChange = {
  readonly gpuUuid?: string;
  readonly policy?: ComputePolicy | null;
  readonly highCapPercent?: number | null;
};

export type Shares = {
  /** Which of these launch by the arbiter. */
  leasedOf(grants: readonly Grant[]): ReadonlySet<string>;
  /** Who holds a grant, or how, has changed. */
  follow(registry: Pick<Registry, 'list'>): void;
  ofCard(gpuUuid: string): CardPolicy;
  readonly highCapPercent: () => number;
  stateOf(entries: readonly LiveGrant[]): (grantId: string, card: number) => ShareState;
  set(change: NodeComputeChange, registry: Pick<Registry, 'reconsider'>): void;
  /** Labels of the Node as they are now. */
  label(labels: Readonly<Record<string, string>>, registry: Pick<Registry, 'reconsider'>): void;
  close(): Promise<void>;
};

type Settings = Pick<
  AgentConfiguration,
  'stateFolder' | 'computePolicy' | 'computePolicies' | 'highCapPercent' | 'mostTenantsPerCard'
>;

export function openShares(settings: Settings, onProblem: (text: string) => void): Shares {
  const { computePolicy, computePolicies, mostTenantsPerCard } = settings;
  const store = openComputeStore(settings.stateFolder, onProblem);
  const arbiter = createArbiter({ onProblem });
  let labelled: ComputePolicy | undefined;
  const choices = (): PolicyChoices => ({
    configured: computePolicy,
    label: labelled,
    set: store.get().policy,
    configuredOfCards: computePolicies,
    setOfCards: store.get().cards,
  });
  const ofCard = (gpuUuid: string) => policyOfCard(choices(), gpuUuid);
  const policyOf = (gpuUuid: string) => ofCard(gpuUuid).policy;
  const highCapPercent = () => store.get().highCapPercent ?? settings.highCapPercent;

  return {
    leasedOf: (grants) => leasedGrants(policyOf, grants),
    follow(registry) {
      arbiter.follow(registry.list(), { policyOf, instances: mostTenantsPerCard, highCapPercent: highCapPercent() });
    },
    ofCard,
    highCapPercent,
    stateOf(entries) {
      const policies = policiesOf(
        policyOf,
        entries.map(({ grant }) => grant),
      );
      const leased = new Set(entries.flatMap((entry) => (entry.leased ? [entry.grant.id] : [])));
      return (grantId, card) => ({
        policy: (leased.has(grantId) ? policies.get(grantId)?.[card] : undefined) ?? 'native',
        use: leased.has(grantId) ? arbiter.use(grantId, card) : undefined,
      });
    },
    set({ gpuUuid, policy, highCapPercent: cap }, registry) {
      const { policy: nodePolicy, cards, highCapPercent: capBefore } = store.get();
      const { [gpuUuid ?? '']: _, ...otherCards } = cards;
      const ofNode = gpuUuid !== undefined || policy === undefined ? nodePolicy : (policy ?? undefined);
      const capNow = cap === undefined ? capBefore : (cap ?? undefined);
      store.put({
        ...(ofNode && { policy: ofNode }),
        cards:
          gpuUuid === undefined || policy === undefined
            ? cards
            : { ...otherCards, ...(policy && { [gpuUuid]: policy }) },
        ...(capNow !== undefined && { highCapPercent: capNow }),
      });
      registry.reconsider();
    },
    label(labels, registry) {
      const text = labels[COMPUTE_POLICY_ANNOTATION];
      const policy = text === undefined ? undefined : policyNamed(text);
      if (text !== undefined && policy === undefined)
        onProblem(
          `label ${COMPUTE_POLICY_ANNOTATION} of this node says "${text}", which is no policy, and is passed over`,
        );
      if (policy === labelled) return;
      labelled = policy;
      registry.reconsider();
    },
    close: arbiter.close,
  };
}

/** What a container of a pod chose, by what the webhook recorded of the pod. */
export function choiceOf(annotations: unknown): ComputeChoice {
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
export function coresLimitsOf(annotations: unknown, container: string): readonly (number | undefined)[] {
  const record = parseRecord(field(annotations, REQUEST_ANNOTATION));
  const found = record.ok ? record.value.containers.find(({ name }) => name === container) : undefined;
  return found?.cards.map(({ coresLimitPercent }) => coresLimitPercent) ?? [];
}

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
    const limits = coresLimitsOf(annotations, grant.container);
    const asked = 'wrong' in granted ? undefined : granted.containers.find(({ name }) => name === grant.container);
    const cards = grant.cards.map(({ coresLimitPercent: _, ...card }, index) => {
      const limit = limits[index];
      const coresPercent = asked?.cards[index]?.coresPercent ?? card.coresPercent;
      return { ...card, coresPercent, ...(limit !== undefined && { coresLimitPercent: limit }) };
    });
    const next = changed({ cards, compute: choiceOf(annotations) }, changes.get(grant.container) ?? {});
    return isWrong(next)
      ? { wrong: `${grant.container}: ${next.wrong}` }
      : { id: grant.id, ...next, computeOverride: text };
  });
}

/** Another share on cards where the others leave less than that is refused. */
export function changeOf(
  grant: Grant,
  change: ComputeChange,
  others: readonly Grant[],
): Pick<Grant, 'cards' | 'compute'> | Refusal {
  const next = changed(grant, change);
  if (isWrong(next)) return { refused: next.wrong };
  for (const [index, { gpuUuid, coresPercent }] of next.cards.entries()) {
    const left = 100 - grantedOn(others, gpuUuid).coresPercent;
    if (coresPercent > Math.max(left, grant.cards[index]?.coresPercent ?? 0))
      return {
        refused: `${gpuUuid} has ${Math.max(0, left)} % of its compute left for it, ${coresPercent} % are asked for`,
      };
  }
  return next;
}
