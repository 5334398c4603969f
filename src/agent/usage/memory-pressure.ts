// Escalates a soft overrun of memory to a hard one when the GPU is out of memory for other grants. Pure; the verdict is
// made in src/policy/memory-verdict.ts.
import { type FreeMemory, judgeFreeMemory, type Tolerance } from '../../policy/memory-verdict.ts';
import { judgedUses } from './container-usage.ts';
import type { ReconciledContainer, ReconciledNode } from './node-usage.ts';

/** Returns the same state where no container is over. */
export function applyMemoryPressure(state: ReconciledNode, tolerance: Tolerance): ReconciledNode {
  const { containers, devices, sample } = state;
  if (!containers.some(({ verdict }) => verdict.severity === 'soft')) return state;
  const roomFor = (container: ReconciledContainer, gpuUuid: string): FreeMemory | undefined => {
    const freeBytes = devices.find(({ gpu }) => gpu.uuid === gpuUuid)?.gpu.freeBytes;
    if (freeBytes === undefined) return undefined;
    const others = containers.filter((one) => one !== container).flatMap(({ gpus }) => gpus);
    const owedBytes = others
      .filter((one) => one.gpuUuid === gpuUuid && one.memoryKnown)
      .reduce((sum, { limitBytes, usedBytes }) => sum + Math.max(0, limitBytes - usedBytes), 0);
    return { freeBytes, owedBytes };
  };
  const judged = containers.map((container): ReconciledContainer => {
    const { gpus, grant, verdict: before } = container;
    if (before.severity !== 'soft') return container;
    const roomOn = (gpuUuid: string) => roomFor(container, gpuUuid);
    const verdict = judgeFreeMemory(before, judgedUses(sample, grant, gpus), tolerance, roomOn);
    return verdict === before ? container : { ...container, verdict };
  });
  return { ...state, containers: judged };
}
