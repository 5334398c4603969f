// What a stop for memory rests on: what the driver tells of one container's GPU and of everybody there, and what is left of a
// container's use where some of its processes are on their way out. Plain values in, plain values out; whether that is ground
// enough is src/policy/memory-evidence.ts.

import type { Told } from '../../policy/memory-evidence.ts';
import { judge, type MemoryVerdict, type Tolerance } from '../../policy/memory-verdict.ts';
import { judgedUses } from '../usage/container-usage.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { keyOf } from './targets.ts';

/** Undefined where the driver does not tell how much of the GPU is in use. */
export function toldOf(
  { grant: { id }, gpus }: ContainerState,
  gpuUuid: string,
  { containers, devices, sample }: NodeState,
): Told | undefined {
  const gpu = devices.find((entry) => entry.gpu.uuid === gpuUuid)?.gpu;
  if (gpu?.usedBytes === undefined) return undefined;
  const own = gpus.find((entry) => entry.gpuUuid === gpuUuid)?.processes ?? [];
  const allBytes = sample.processes
    .flatMap((process) => process.gpus)
    .filter((use) => use.gpu === gpu.index && use.listed)
    .reduce((sum, use) => sum + (use.bytes ?? 0), 0);
  // In use, and in no list. A container's own word counts only for others, and for no more than it was granted and does not show.
  const unlistedBytes = containers
    .filter(({ grant }) => grant.id !== id)
    .flatMap((other) => other.gpus.filter((entry) => entry.gpuUuid === gpuUuid))
    .reduce((sum, { ledger, limitBytes, usedBytes }) => {
      const roomBytes = Math.max(0, limitBytes - usedBytes);
      return sum + Math.min(ledger.managedBytes, roomBytes);
    }, 0);
  return {
    own: own.map(({ usedBytes = 0, inLedger }) => ({ bytes: usedBytes, inLedger })),
    allBytes,
    usedBytes: gpu.usedBytes,
    unlistedBytes,
  };
}

/** The verdict on those of a container's processes that a stop was not for. */
export function verdictWithout(
  { grant, gpus }: ContainerState,
  hit: ReadonlySet<string>,
  { sample }: NodeState,
  tolerance: Tolerance,
): MemoryVerdict {
  if (!grant.isolateMemory) return { severity: 'within' };
  const rest = gpus.map((gpu) => {
    const gone = gpu.processes.filter((process) => hit.has(keyOf(process)));
    const sum = (of: typeof gone) => of.reduce((total, { usedBytes = 0 }) => total + usedBytes, 0);
    const bypass = gone.filter(({ inLedger }) => !inLedger);
    return { ...gpu, usedBytes: gpu.usedBytes - sum(gone), bypassBytes: gpu.bypassBytes - sum(bypass) };
  });
  return judge(judgedUses(sample, grant, rest), tolerance);
}
