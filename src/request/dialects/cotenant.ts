// The `cotenant.io/*` resources: totals over the container's GPUs, which are split equally, so that scheduler and
// quotas can add them up.
import { GPU, GPU_CORES, GPU_MEMORY, OWN_RESOURCES } from '../../api/names.ts';
import { type GpuShare, type MemoryAmount, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { type Checked, invalid, type Problem } from '../../common/problem.ts';
import {
  binaryText,
  floorUnits,
  formatBytes,
  MIB,
  meantBytes,
  meantPercent,
  parsePercent,
  parseQuantity,
  parseWhole,
  wholeUnits,
} from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

export const cotenant: Dialect = {
  name: 'cotenant',
  resources: OWN_RESOURCES,
  environment: [],
  schedulers: [],
  zeroIsNothing: false,
  read,
};

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const gpusText = asked.amounts.get(GPU);
  const gpus = parseWhole(gpusText ?? '1', 1, MOST_GPUS);
  if (!gpus.ok) {
    const right =
      partOfGpu(gpusText ?? '') ?? `${gpus.error.right}, or leave ${GPU} out where the container needs no GPU`;
    return err([invalid(asked.amountPath(GPU), gpusText, gpus.error.wrong, right)]);
  }
  const problems: Problem[] = [];
  const memoryText = asked.amounts.get(GPU_MEMORY);
  const coresText = asked.amounts.get(GPU_CORES);
  const bytes =
    memoryText === undefined ? rules.defaults.gpuMemory : perGpuBytes(memoryText, gpus.value, asked, problems);
  const cores = coresText === undefined ? undefined : perGpuCores(coresText, gpus.value, asked, problems);
  if (problems.length > 0) return err(problems);
  // Without an amount of memory, or a default of the namespace, the request is for the whole GPU.
  const memory: MemoryAmount = bytes === undefined ? { kind: 'whole' } : { kind: 'bytes', bytes };
  const share: GpuShare = cores === undefined ? { memory } : { memory, coresPercent: cores };
  const warnings =
    bytes === undefined && cores !== undefined
      ? [`${GPU_MEMORY} is not set, so all memory of the GPU is reserved and no other container fits on it`]
      : [];
  return { ok: true, value: { gpus: Array.from({ length: gpus.value }, () => share), warnings } };
}

/** What is right in the place of half a GPU, or of an amount of memory, where GPUs are counted. */
export function partOfGpu(text: string): string | undefined {
  // The API server writes 0.5 as "500m".
  if (/^(0?[.,]\d+|\d{1,3}m|\d+\s*%)$/.test(text))
    return `write ${GPU_MEMORY}, such as "4Gi", and ${GPU_CORES} in percent for a part of a GPU`;
  const memory = binaryText(text);
  // A number of thousands, which the API server writes as "4k", is no amount of memory.
  return /^[\d.]+[MGT]i$/.test(memory) ? `write ${GPU_MEMORY}: ${memory}` : undefined;
}

/** Whole MiB for each GPU, or undefined with a problem added. */
function perGpuBytes(text: string, gpus: number, asked: Asked, problems: Problem[]): number | undefined {
  const path = asked.amountPath(GPU_MEMORY);
  const refuse = (wrong: string, right: string) => {
    problems.push(invalid(path, text, wrong, right));
    return undefined;
  };
  const parsed = parseQuantity(text);
  if (!parsed.ok) {
    const meant = binaryText(text);
    if (meant === text) return refuse(parsed.error, 'write an amount such as "4Gi" or "1536Mi"');
    const again: Problem[] = [];
    perGpuBytes(meant, gpus, asked, again);
    return refuse(parsed.error, again[0]?.right ?? `write "${meant}"`);
  }
  const step = gpus * MIB;
  const most = `at most ${formatBytes(MOST_MEMORY_BYTES)}`;
  const least = `write at least ${formatBytes(step)}${gpus > 1 ? ` (1Mi on each of ${gpus} GPUs)` : ''}`;
  if (parsed.value.numerator <= 0n) return refuse('is not more than 0', `${least}, or leave it out`);
  const steps = wholeUnits(parsed.value, BigInt(step));
  const below = floorUnits(parsed.value, BigInt(step));
  if (below * BigInt(step) > BigInt(MOST_MEMORY_BYTES)) return refuse('is more than any node has', `write ${most}`);
  if (steps !== undefined) return Number(steps) * MIB;
  // The API server writes 8000 as "8k" and 0.5 as "500m": a number without a unit, or of milli for "M".
  // Larger ones were meant in bytes: 1048576 are 1 MiB, and as many MiB no GPU has.
  const isBare = /^\d+$/.test(text) && parsed.value.numerator < BigInt(MIB);
  if (isBare || (below === 0n && /^[\d.]+([km]|[eE]\d+)?$/.test(text))) {
    const meant = meantBytes(parsed.value, gpus);
    return refuse('counts bytes, and is not whole MiB', `write ${meant}${gpus > 1 ? ', the total' : ''}`);
  }
  const wrong =
    gpus > 1 ? `is not a whole number of MiB on each of ${gpus} GPUs` : 'is not a whole number of MiB on the GPU';
  const near = [below, below + 1n].filter((count) => count > 0n).map((count) => `"${mebibytes(count, gpus)}"`);
  return refuse(wrong, `write ${near.join(' or ')}${binaryTwin(text, step)}`);
}

/** In Mi, so that both suggestions have the same unit. */
function mebibytes(steps: bigint, gpus: number): string {
  return `${steps * BigInt(gpus)}Mi`;
}

/** Most writers of "4G" mean "4Gi". Nothing where that is no whole number of `step` bytes. */
function binaryTwin(text: string, step: number): string {
  const twin = `${text.replace('k', 'K')}i`;
  const bytes = /^\d+[kMGTP]$/.test(text) ? parseQuantity(twin) : undefined;
  const isWhole = bytes?.ok === true && wholeUnits(bytes.value, BigInt(step)) !== undefined;
  return isWhole ? ` (or "${twin}", if binary units were meant)` : '';
}

/** Whole percent for each GPU, or undefined with a problem added. */
function perGpuCores(text: string, gpus: number, asked: Asked, problems: Problem[]): number | undefined {
  const path = asked.amountPath(GPU_CORES);
  const whole = parsePercent(text, gpus, 100 * gpus);
  const meaning = `${100 * gpus} is all compute of ${gpus === 1 ? 'the GPU' : `${gpus} GPUs`}`;
  if (!whole.ok) {
    const each = gpus === 1 ? undefined : meantPercent(text);
    const isTotal = each !== undefined && each >= 1 && each <= 100;
    const right = isTotal ? `write ${each * gpus} for ${each} of each GPU` : whole.error.right;
    problems.push(invalid(path, text, whole.error.wrong, `${right} (${meaning}), or leave it out`));
    return undefined;
  }
  const share = Math.floor(whole.value / gpus);
  if (share * gpus === whole.value) return share;
  const right = `write ${share * gpus} or ${(share + 1) * gpus}, the total over all GPUs`;
  problems.push(invalid(path, text, `cannot be split equally over ${gpus} GPUs in whole percent`, right));
  return undefined;
}
