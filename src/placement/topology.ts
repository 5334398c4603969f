// Which GPUs of a node reach one another best, for `topology`. Pure.
import { levelBetween, type NodeGpu } from './node.ts';
import { type Cost, compareCosts } from './score.ts';

/** Sets that are tried at most: enough for 16 GPUs; of more, a set that is not the best may be taken. */
const MOST_SETS = 20_000;

/**
 * `count` of these GPUs, which are in the order of their costs, whose worst path is the best possible; of several such
 * sets the one that costs least. Undefined: no set is accepted.
 */
export function closestGpus<T extends Cost & { readonly gpu: NodeGpu }>(
  ranked: readonly T[],
  count: number,
  accepts: (set: readonly T[]) => boolean,
): readonly T[] | undefined {
  const levels = new Set(ranked.flatMap(({ gpu }, at) => ranked.slice(0, at).map((one) => levelBetween(gpu, one.gpu))));
  let tried = 0;
  for (const level of [...levels].sort((a, b) => b - a)) {
    let best: (Cost & { readonly set: readonly T[] }) | undefined;
    const extend = (set: readonly T[], cost: Cost, from: number): void => {
      const missing = count - set.length;
      for (const [at, one] of ranked.entries()) {
        if (at < from || tried > MOST_SETS) continue;
        // All that follow cost as much or more.
        if (best && compareCosts(plus(cost, one, missing), best) >= 0) return;
        if (set.some(({ gpu }) => levelBetween(gpu, one.gpu) < level)) continue;
        tried += 1;
        const [longer, sum] = [[...set, one], plus(cost, one)];
        if (missing > 1) extend(longer, sum, at + 1);
        else if (accepts(longer)) best = { ...sum, set: longer };
      }
    };
    extend([], { first: 0, second: 0 }, 0);
    if (best) return best.set;
  }
  return undefined;
}

const plus = (sum: Cost, { first, second }: Cost, times = 1): Cost => ({
  first: sum.first + times * first,
  second: sum.second + times * second,
});
