// cnvrg.io MetaGPU: 100 units are one GPU, 150 are one whole GPU and half of a second one.
// A remainder is never split over two GPUs, which MetaGPU does silently where no single GPU has enough left.

import { type GpuShare, type MemoryAmount, MOST_GPUS } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { type Checked, forbidden, invalid, keyPath } from '../../common/problem.ts';
import { parsePercent, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const UNITS = 'cnvrg.io/metagpu';
const LIMIT_ANNOTATION = 'gpu-mem-limit.cnvrg.io/metagpu';

export const metagpu: Dialect = {
  name: 'metagpu',
  resources: [UNITS],
  podNotes: [LIMIT_ANNOTATION],
  environment: [],
  schedulers: [],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const text = asked.amounts.get(UNITS);
  const units = parsePercent(text, 1, 100 * MOST_GPUS);
  if (!units.ok)
    return err([invalid(asked.amountPath(UNITS), text, units.error.wrong, `${units.error.right}: 100 is one GPU`)]);
  const gpus = Math.ceil(units.value / 100);
  const reserved = percentPerGpu(units.value, gpus);
  const limitText = textAt(asked.annotations, LIMIT_ANNOTATION);
  if (limitText === undefined)
    return { ok: true, value: { gpus: reserved.map((percent) => share(percent)), warnings: [] } };

  const path = keyPath('metadata.annotations', LIMIT_ANNOTATION);
  const limit = parseWhole(limitText, units.value, 100 * gpus);
  if (!limit.ok) {
    const right = `${limit.error.right}: from what is reserved up to all memory of ${gpus === 1 ? 'the GPU' : `${gpus} GPUs`}`;
    return err([invalid(path, limitText, limit.error.wrong, right)]);
  }
  if (limit.value > units.value && !rules.allowMemoryOvercommit) {
    const wrong = `is more than the ${units.value} units that ${UNITS} reserves, and overcommit is not allowed here`;
    return err([forbidden(path, limitText, wrong, `write ${units.value}, or have allowMemoryOvercommit switched on`)]);
  }
  const limits = percentPerGpu(limit.value, gpus);
  return { ok: true, value: { gpus: reserved.map((percent, gpu) => share(percent, limits[gpu])), warnings: [] } };
}

/** Full GPUs first, the remainder on the last one. */
function percentPerGpu(units: number, gpus: number): number[] {
  return Array.from({ length: gpus }, (_, gpu) => (gpu < gpus - 1 ? 100 : units - 100 * (gpus - 1)));
}

function share(percent: number, limit: number = percent): GpuShare {
  const memory = amount(percent);
  return limit === percent ? { memory } : { memory, memoryLimit: amount(limit) };
}

function amount(percent: number): MemoryAmount {
  return percent === 100 ? { kind: 'whole' } : { kind: 'percent', percent };
}
