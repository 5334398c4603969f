// What pods a cluster gets, learned from those that hold shares now: the knowledge behind `fragmentation`. Pure.
import type { Allocations } from './allocations.ts';
import { createFragmentation, type Fragmentation, type Shape } from './fragmentation.ts';

/** The commonest; rarer ones change nothing that is seen. */
const MOST_SHAPES = 100;

export function learnWorkload(allocations: Allocations): Fragmentation {
  const supplies = new Map<string, number>();
  const usable = new Map<string, number>();
  for (const name of allocations.nodeNames())
    for (const { gpuUuid, model, usableBytes } of allocations.gpusOf(name)?.gpus ?? []) {
      const key = model.toLowerCase();
      supplies.set(key, (supplies.get(key) ?? 0) + 1);
      usable.set(gpuUuid, usableBytes);
    }
  const shapes = new Map<string, Shape>();
  for (const { demand, cores = 0, gpuModels = [] } of allocations.all()) {
    const parts = [...demand].map(([gpuUuid, { memoryBytes, coresPercent }]) =>
      Math.max((1000 * memoryBytes) / (usable.get(gpuUuid) ?? Number.POSITIVE_INFINITY), 10 * coresPercent),
    );
    if (parts.length === 0) continue;
    const models = gpuModels.filter((model) => !model.startsWith('!')).map((model) => model.toLowerCase());
    const shape = { gpus: parts.length, milli: Math.min(1000, Math.ceil(Math.max(...parts))), cores, models };
    const key = JSON.stringify(shape);
    shapes.set(key, { ...shape, frequency: (shapes.get(key)?.frequency ?? 0) + 1 });
  }
  const commonest = [...shapes.values()].sort((a, b) => b.frequency - a.frequency).slice(0, MOST_SHAPES);
  return createFragmentation(
    commonest,
    [...supplies].map(([model, gpus]) => ({ model, gpus })),
  );
}
