// The options that ask for a share of this machine's GPUs, for `run` and for `docker run` and the like, and what they
// mean.
import type { GrantBody } from '../../agent/admin-api.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  type GpuShare,
  MOST_MEMORY_BYTES,
  MOST_WEIGHT,
  PRIORITIES,
} from '../../api/request.ts';
import { parseWhole } from '../../common/quantity.ts';
import { choice, flag, type Options, type Parsed, text, texts, UsageError, whole } from '../lib/command.ts';
import { coresOfEach, memoryOfEach, memoryProblem } from '../lib/split-amounts.ts';
import { policyOption } from './set.ts';

const WHOLE = 'whole';

export const SHARE_OPTIONS: Options = {
  'gpu-memory': {
    short: 'm',
    value: 'SIZE',
    help: 'GPU memory, contexts included, in total over its GPUs; whole MiB per GPU (2Gi, 513Mi); whole: whole GPUs',
  },
  gpus: { short: 'n', value: 'N', help: 'number of GPUs (default 1)' },
  'gpu-cores': {
    value: 'PERCENT',
    help: 'percent of compute in total; not enforced on GPUs whose policy is native',
  },
  'gpu-cores-limit': { value: 'PERCENT', help: 'what it may have of each GPU while others leave it idle' },
  gpu: { multiple: true, value: 'UUID', help: 'only on this GPU; may be given several times' },
  policy: { value: 'POLICY', choices: COMPUTE_POLICIES, help: 'how its compute is divided, as set has it' },
  priority: { value: 'PRIORITY', choices: PRIORITIES, help: 'normal or high' },
  weight: { value: 'N', help: `under the weighted policy, 1 to ${MOST_WEIGHT}` },
  'no-memory-isolation': { help: 'count GPU memory, but refuse no allocation' },
};

export type Share = Pick<GrantBody, 'gpuUuids' | 'isolateMemory'> & {
  readonly shares: GpuShare[];
  readonly compute: ComputeChoice;
};

export const shareOf = (parsed: Parsed, shares = sharesOf(parsed)): Share => ({
  shares,
  gpuUuids: [...texts(parsed, 'gpu')],
  isolateMemory: !flag(parsed, 'no-memory-isolation'),
  compute: computeOf(parsed),
});

function computeOf(parsed: Parsed): ComputeChoice {
  const policy = policyOption(parsed) ?? undefined;
  const priority = choice(parsed, 'priority', PRIORITIES);
  const weight = whole(parsed, 'weight', 1, MOST_WEIGHT);
  return { ...(policy && { policy }), ...(priority && { priority }), ...(weight !== undefined && { weight }) };
}

/** Equal shares: amounts are totals over the GPUs. */
export function sharesOf(parsed: Parsed): GpuShare[] {
  const gpus = whole(parsed, 'gpus', 1, 16) ?? 1;
  const memory = text(parsed, 'gpu-memory');
  if (memory === undefined) throw new UsageError('--gpu-memory is missing (a size such as 2Gi)');
  return equalShares(parsed, memoryOf(memory, gpus), gpus);
}

export function equalShares(parsed: Parsed, memory: GpuShare['memory'], gpus: number): GpuShare[] {
  const cores = whole(parsed, 'gpu-cores', gpus, 100 * gpus);
  const coresLimitPercent = whole(parsed, 'gpu-cores-limit', 1, 100);
  const coresPercent = cores === undefined ? undefined : coresOfEach(cores, gpus);
  if (coresLimitPercent !== undefined && coresLimitPercent < (coresPercent ?? Infinity))
    throw new UsageError(
      coresPercent === undefined
        ? '--gpu-cores-limit needs --gpu-cores'
        : `--gpu-cores-limit ${coresLimitPercent}: want ${coresPercent} to 100, for --gpu-cores is ${coresPercent} of each GPU`,
    );
  const share: GpuShare = {
    memory,
    ...(coresPercent !== undefined && { coresPercent }),
    ...(coresLimitPercent !== undefined && { coresLimitPercent }),
  };
  return Array.from({ length: gpus }, () => share);
}

function memoryOf(memory: string, gpus: number): GpuShare['memory'] {
  if (memory === WHOLE) return { kind: 'whole' };
  const total = parseWhole(memory, 1, MOST_MEMORY_BYTES);
  if (!total.ok) throw new UsageError(memoryProblem(memory, total.error.wrong, gpus));
  return { kind: 'bytes', bytes: memoryOfEach(memory, total.value, gpus) };
}
