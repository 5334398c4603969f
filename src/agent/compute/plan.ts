// Which grants launch by the arbiter, and what it is told of them. Pure; the arbiter's process is process.ts, what its policies
// make of requests is native/arbiter/policy.c.
import type { ComputePolicy } from '../../request/request.ts';
import { COMPUTE_POLICIES } from '../../request/rules.ts';
import type { Grant } from '../grants/grant.ts';

export type Planned = {
  readonly grant: Pick<Grant, 'id' | 'cards'>;
  readonly leased: boolean;
  readonly ledgerPath: string;
  readonly ledgerTurn: number;
};

/** A card whose compute nobody asked for any of is nobody's to divide, unless the policy divides it anyway. */
function isDivided(policy: ComputePolicy, percents: readonly number[]): boolean {
  if (policy === 'native') return false;
  if (policy === 'fixed' || policy === 'soft') return percents.some((percent) => percent > 0);
  return percents.length > 0;
}

function dividedCards(policy: ComputePolicy, grants: readonly Pick<Grant, 'cards'>[]): ReadonlySet<string> {
  const percents = Map.groupBy(
    grants.flatMap(({ cards }) => cards),
    ({ gpuUuid }) => gpuUuid,
  );
  return new Set(
    [...percents].flatMap(([gpuUuid, cards]) =>
      isDivided(
        policy,
        cards.map(({ coresPercent }) => coresPercent),
      )
        ? [gpuUuid]
        : [],
    ),
  );
}

/** Ids of the grants that launch by the arbiter: all that have a card which it divides. */
export function leasedGrants(
  policy: ComputePolicy,
  grants: readonly Pick<Grant, 'id' | 'cards'>[],
): ReadonlySet<string> {
  const divided = dividedCards(policy, grants);
  return new Set(grants.flatMap(({ id, cards }) => (cards.some(({ gpuUuid }) => divided.has(gpuUuid)) ? [id] : [])));
}

/** A ledger that was made anew is another page. */
export const pageId = ({ grant, ledgerTurn }: Pick<Planned, 'grant' | 'ledgerTurn'>): string =>
  `${grant.id}.${ledgerTurn}`;

/** The plan's lines but for its first and last; `placeOf`: the arbiter's number of a card. */
export function planLines(
  policy: ComputePolicy,
  instances: number,
  slots: number,
  entries: readonly Planned[],
  placeOf: (gpuUuid: string) => number,
): readonly string[] {
  const grants = entries.map(({ grant }) => grant);
  const divided = dividedCards(policy, grants);
  const leased = entries.filter((entry) => entry.leased);
  const cards = new Set(leased.flatMap(({ grant }) => grant.cards.map(({ gpuUuid }) => gpuUuid)));
  const number = (name: ComputePolicy) => COMPUTE_POLICIES.indexOf(name);
  return [
    ...[...cards].map(
      (gpuUuid) => `card ${placeOf(gpuUuid)} ${number(divided.has(gpuUuid) ? policy : 'native')} ${instances}`,
    ),
    ...leased.flatMap((entry) => [
      `page ${pageId(entry)} ${slots} ${entry.grant.cards.length} ${entry.ledgerPath}`,
      ...entry.grant.cards.map(
        ({ gpuUuid, coresPercent }) => `on ${placeOf(gpuUuid)} ${coresPercent * 10_000} 0 ${coresPercent} 0 0`,
      ),
    ]),
  ];
}
