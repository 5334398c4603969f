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
import { parseWhole, withoutMarks } from '../../common/quantity.ts';
import {
  choice,
  flag,
  given,
  type Options,
  type Parsed,
  percent,
  text,
  texts,
  UsageError,
  whole,
} from '../lib/command.ts';
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
  gpuUuids: texts(parsed, 'gpu').map(gpuOf),
  isolateMemory: !flag(parsed, 'no-memory-isolation'),
  compute: computeOf(parsed),
});

/** Which GPUs there are the agent knows. */
function gpuOf(uuid: string): string {
  const bare = withoutMarks(uuid);
  if (bare === '') throw new UsageError(`${given('gpu', uuid)}: want the UUID of a GPU, as nvidia-smi -L shows it`);
  if (bare.includes(','))
    throw new UsageError(`${given('gpu', uuid)}: want one GPU; write --gpu ${bare.split(/[\s,]+/).join(' --gpu ')}`);
  if (bare !== uuid) throw new UsageError(`${given('gpu', uuid)}: want the UUID of a GPU; write ${bare}`);
  return uuid;
}

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
  const cores = percent(parsed, 'gpu-cores', { least: gpus, most: 100 * gpus, gpus });
  const coresPercent = cores === undefined ? undefined : coresOfEach(cores, gpus);
  const coresLimitPercent = percent(parsed, 'gpu-cores-limit', { least: 1, most: 100, leastMeant: coresPercent });
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
