// Grants of plain processes: asked for on the agent's socket, placed by this agent alone, ended with their owner. Owns the
// answers to those who ask; the files are the registry's.
import { type Placed, place } from '../../placement/place.ts';
import type { CardShare } from '../../request/request.ts';
import { unifiedPath } from '../attribution/cgroup.ts';
import type { NodeState } from '../compare.ts';
import type { AgentConfiguration } from '../configuration.ts';
import type { Native } from '../native.ts';
import type { SampledCard } from '../sample.ts';
import { freeName, plainName } from './grant.ts';
import { grantedOn } from './granted.ts';
import type { LiveGrant, Registry } from './registry.ts';
import { resized } from './resize.ts';

export type GrantAsk = {
  readonly name: string;
  readonly container: string;
  readonly shares: readonly CardShare[];
  readonly gpuUuids: readonly string[];
  readonly isolateMemory: boolean;
  readonly owner: { readonly pid: number; readonly startTicks: number };
};

/** `later`: the same question may be answered otherwise in a moment. */
export type Refusal = { readonly refused: string; readonly later?: boolean };

/** What a card leaves to programs. */
export const usableBytes = (card: SampledCard): number =>
  Math.max(0, (card.totalBytes ?? 0) - (card.reservedBytes ?? 0));

/** Why nobody can be told anything about cards now; undefined: they can. */
export function unreadable(state: NodeState | undefined, isStale: boolean): Refusal | undefined {
  if (!state) return { refused: 'the driver has not been read yet', later: true };
  if (isStale) return { refused: 'the driver does not answer: there is no fresh sample', later: true };
  if (state.sample.problem !== undefined) return { refused: `there is no card: ${state.sample.problem}` };
  return undefined;
}

export function grantPlain(
  ask: GrantAsk,
  state: NodeState,
  registry: Registry,
  native: Native,
  configuration: Pick<AgentConfiguration, 'placement' | 'mostTenantsPerCard'>,
  notYet: (gpuUuids: readonly string[]) => Refusal | undefined,
): LiveGrant | Refusal {
  const owner = native.readProcess(ask.owner.pid);
  if (owner?.startTicks !== ask.owner.startTicks) {
    return { refused: `no process ${ask.owner.pid} with start time ${ask.owner.startTicks} on this node` };
  }
  const live = registry.list().map(({ grant }) => grant);
  const placed: Placed = place(
    ask.shares,
    state.devices.map(({ card }) => {
      const granted = grantedOn(live, card.uuid);
      return {
        gpuUuid: card.uuid,
        model: card.name,
        usableBytes: usableBytes(card),
        healthy: card.healthy,
        grantedBytes: granted.memoryBytes,
        grantedCoresPercent: granted.coresPercent,
        tenants: granted.tenants,
      };
    }),
    {
      placement: configuration.placement,
      mostTenantsPerCard: configuration.mostTenantsPerCard,
      gpuUuids: ask.gpuUuids,
    },
  );
  if (!placed.ok) return { refused: placed.reason };
  const wait = notYet(placed.cards.map(({ gpuUuid }) => gpuUuid));
  if (wait) return wait;
  return registry.create({
    namespace: 'local',
    pod: freeName(plainName(ask.name), (name) => live.some(({ pod }) => pod === name)),
    container: plainName(ask.container),
    createdMs: Date.now(),
    cards: placed.cards,
    isolateMemory: ask.isolateMemory,
    owner: { ...ask.owner, cgroup: unifiedPath(owner.cgroup) ?? '' },
  });
}

/** Another amount for a grant on the cards that it has. */
export function resizeGrant(
  id: string,
  memoryBytesPerCard: number,
  state: NodeState | undefined,
  registry: Registry,
): LiveGrant | Refusal {
  const entry = registry.get(id);
  if (!entry) return { refused: `no grant ${id} on this node` };
  const others = registry.list().flatMap(({ grant }) => (grant.id === id ? [] : [grant]));
  for (const own of entry.grant.cards) {
    const device = state?.devices.find(({ card }) => card.uuid === own.gpuUuid);
    const left = (device ? usableBytes(device.card) : 0) - grantedOn(others, own.gpuUuid).memoryBytes;
    if (memoryBytesPerCard > left)
      return { refused: `${own.gpuUuid} has ${left} bytes left for it, ${memoryBytesPerCard} are asked for` };
  }
  return registry.resize(
    id,
    entry.grant.cards.map((card) => resized(card, memoryBytesPerCard)),
  );
}
