// What a stop for memory rests on: what the driver tells of one container's card and of everybody there, and what is left of a
// container's use where some of its processes are on their way out. Plain values in, plain values out; whether that is ground
// enough is src/policy/memory-evidence.ts.

import type { Told } from '../../policy/memory-evidence.ts';
import { judge, type MemoryVerdict, type Tolerance } from '../../policy/memory-verdict.ts';
import { judgedUses } from '../usage/container-usage.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { keyOf } from './targets.ts';

/** Undefined where the driver does not tell how much of the card is in use. */
export function toldOf(
  { grant: { id }, cards }: ContainerState,
  gpuUuid: string,
  { containers, devices, sample }: NodeState,
): Told | undefined {
  const card = devices.find((entry) => entry.card.uuid === gpuUuid)?.card;
  if (card?.usedBytes === undefined) return undefined;
  const own = cards.find((entry) => entry.gpuUuid === gpuUuid)?.processes ?? [];
  const allBytes = sample.processes
    .flatMap((process) => process.cards)
    .filter((use) => use.card === card.index && use.listed)
    .reduce((sum, use) => sum + (use.bytes ?? 0), 0);
  // In use, and in no list. A container's own word counts only for others, and for no more than it was granted and does not show.
  const unlistedBytes = containers
    .filter(({ grant }) => grant.id !== id)
    .flatMap((other) => other.cards.filter((entry) => entry.gpuUuid === gpuUuid))
    .reduce((sum, { ledger, limitBytes, usedBytes }) => {
      const roomBytes = Math.max(0, limitBytes - usedBytes);
      return sum + Math.min(ledger.managedBytes, roomBytes);
    }, 0);
  return {
    own: own.map(({ usedBytes = 0, inLedger }) => ({ bytes: usedBytes, inLedger })),
    allBytes,
    usedBytes: card.usedBytes,
    unlistedBytes,
  };
}

/** The verdict on those of a container's processes that a stop was not for. */
export function verdictWithout(
  { grant, cards }: ContainerState,
  hit: ReadonlySet<string>,
  { sample }: NodeState,
  tolerance: Tolerance,
): MemoryVerdict {
  if (!grant.isolateMemory) return { severity: 'within' };
  const rest = cards.map((card) => {
    const gone = card.processes.filter((process) => hit.has(keyOf(process)));
    const sum = (of: typeof gone) => of.reduce((total, { usedBytes = 0 }) => total + usedBytes, 0);
    const bypass = gone.filter(({ inLedger }) => !inLedger);
    return { ...card, usedBytes: card.usedBytes - sum(gone), bypassBytes: card.bypassBytes - sum(bypass) };
  });
  return judge(judgedUses(sample, grant, rest), tolerance);
}
