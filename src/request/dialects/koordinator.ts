// Koordinator: `koordinator.sh/gpu-core` and `gpu-memory-ratio` in percent of a GPU, `gpu-memory` in bytes, all of them
// totals over the GPUs of `gpu.shared`; `koordinator.sh/gpu` is compute and memory at once.
// Facts: koordinator.sh, "Device Scheduling" and "GPU Share With HAMi"; its webhook's rules for these resources.
import { PLACEMENT_ANNOTATION } from '../../api/names.ts';
import { type GpuShare, type MemoryAmount, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { type Checked, invalid, missing, type Problem } from '../../common/problem.ts';
import { MIB, parsePercent, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';
import { rightBytes, rightTotal, splitOver } from './fractions.ts';

const GPU = 'koordinator.sh/gpu';
const CORES = 'koordinator.sh/gpu-core';
const MEMORY = 'koordinator.sh/gpu-memory';
const RATIO = 'koordinator.sh/gpu-memory-ratio';
const COUNT = 'koordinator.sh/gpu.shared';
const NO_NUMBER = 'is above one GPU and no number of whole GPUs';

export const koordinator: Dialect = {
  name: 'koordinator',
  resources: [GPU, CORES, MEMORY, RATIO, COUNT],
  // Ascend and MLU devices have names of their own beside Koordinator's.
  notBeside: /^(huawei|cambricon|metax-tech)\.com\//,
  environment: [],
  schedulers: ['koord-scheduler'],
  choices: [
    { annotation: 'scheduling.koordinator.sh/device-allocate-hint', instead: `${PLACEMENT_ANNOTATION}: topology` },
    { annotation: 'scheduling.koordinator.sh/device-joint-allocate' },
    { annotation: 'scheduling.koordinator.sh/gpu-partition-spec', instead: `${PLACEMENT_ANNOTATION}: topology` },
  ],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked): Checked<Answer> {
  const problems: Problem[] = [];
  const refuse = (resource: string, wrong: string, right: string) => {
    problems.push(invalid(asked.amountPath(resource), asked.amounts.get(resource), wrong, right));
  };
  const percent = 'percent, 100 is one GPU';
  /** Undefined where nothing or 0 is written. */
  const amount = (resource: string, most: number, unit: string): number | undefined => {
    const text = asked.amounts.get(resource);
    if (text === undefined) return undefined;
    const parsed = unit === percent ? parsePercent(text, 0, most) : parseWhole(text, 0, most);
    if (parsed.ok) return parsed.value || undefined;
    const right = unit === percent ? rightTotal(text, gpus, parsed.error.right) : parsed.error.right;
    refuse(resource, parsed.error.wrong, resource === MEMORY ? rightBytes(text) : `${right}: ${unit}`);
    return undefined;
  };
  const counted = parseWhole(asked.amounts.get(COUNT) ?? '1', 1, MOST_GPUS);
  const gpus = counted.ok ? counted.value : 1;
  const both = amount(GPU, 100 * MOST_GPUS, percent);
  const cores = both ?? amount(CORES, 100 * MOST_GPUS, percent);
  const ratio = both ?? amount(RATIO, 100 * MOST_GPUS, percent);
  const bytes = amount(MEMORY, MOST_MEMORY_BYTES, 'bytes');
  const shared = amount(COUNT, MOST_GPUS, 'GPUs');
  if (problems.length > 0) return err(problems);
  const ratioName = both === undefined ? RATIO : GPU;

  if (both !== undefined && shared !== undefined) refuse(COUNT, `is not possible beside ${GPU}`, `leave out ${GPU}`);
  if (bytes !== undefined && ratio !== undefined)
    refuse(MEMORY, `is not possible beside ${ratioName}`, 'leave one of the two out');
  if (bytes === undefined && ratio === undefined)
    problems.push(missing(asked.amountPath(RATIO), `write percent of the memory, or ${MEMORY} in bytes`));
  if (bytes !== undefined && bytes < MIB) refuse(MEMORY, 'counts bytes', rightBytes(asked.amounts.get(MEMORY) ?? ''));
  const total = ratio ?? cores ?? 0;
  const below = Math.floor(total / 100) * 100;
  if (shared === undefined && below > 0 && total !== below)
    refuse(ratio === undefined ? CORES : ratioName, NO_NUMBER, `write ${below} or ${below + 100}`);
  if (problems.length > 0) return err(problems);
  const count = shared ?? Math.max(1, below / 100);
  const perGpu = (resource: string, amount: number | undefined): number | undefined => {
    if (amount === undefined) return undefined;
    const split = splitOver(amount, count, 100);
    if (!split.ok) refuse(resource, split.error.wrong, split.error.right);
    return split.ok ? split.value : undefined;
  };
  const ratioEach = perGpu(ratioName, ratio);
  const coresEach = both === undefined ? perGpu(CORES, cores) : ratioEach;
  if (problems.length > 0) return err(problems);
  const share: GpuShare = {
    memory: memoryOf(bytes === undefined ? undefined : bytes / count, ratioEach),
    ...(coresEach !== undefined && { coresPercent: coresEach }),
  };
  const ignored = both === undefined ? [] : [CORES, RATIO].filter((name) => asked.amounts.has(name));
  const warnings = ignored.map((name) => `${name}: no effect beside ${GPU}`);
  return { ok: true, value: { gpus: Array.from({ length: count }, () => share), warnings } };
}

/** Bytes are rounded up to whole MiB. */
function memoryOf(bytes: number | undefined, percent = 100): MemoryAmount {
  if (bytes !== undefined) return { kind: 'bytes', bytes: Math.ceil(bytes / MIB) * MIB };
  return percent === 100 ? { kind: 'whole' } : { kind: 'percent', percent };
}
