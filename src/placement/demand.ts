// What a pod needs of each card at the same time: its containers do not all run at once. Pure.
import { countedBytes } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';

export type CardNeed = {
  readonly memoryBytes: number;
  readonly coresPercent: number;
  /** Containers on it. */
  readonly tenants: number;
};

/**
 * Need per card (by UUID) of one pod: the larger of its biggest init container and the sum of its containers, sidecars added,
 * since init containers run one after the other before the rest and sidecars beside both.
 */
export function needOf(containers: readonly Pick<ContainerGrant, 'kind' | 'cards'>[]): ReadonlyMap<string, CardNeed> {
  const uuids = new Set(containers.flatMap(({ cards }) => cards.map(({ gpuUuid }) => gpuUuid)));
  const most = (pick: (card: ContainerGrant['cards'][number]) => number, gpuUuid: string): number => {
    const of = (wanted: ContainerGrant['kind']) =>
      containers.flatMap(({ kind, cards }) =>
        kind === wanted ? cards.filter((card) => card.gpuUuid === gpuUuid) : [],
      );
    const sum = (cards: ContainerGrant['cards']) => cards.reduce((total, card) => total + pick(card), 0);
    return sum(of('sidecar')) + Math.max(0, sum(of('app')), ...of('init').map(pick));
  };
  return new Map(
    [...uuids].map((gpuUuid) => [
      gpuUuid,
      {
        memoryBytes: most(countedBytes, gpuUuid),
        coresPercent: most((card) => card.coresPercent, gpuUuid),
        tenants: most(() => 1, gpuUuid),
      },
    ]),
  );
}
