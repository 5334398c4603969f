// The dialects of the vGPU family, which HAMi, Volcano's vGPU plugin and vgpu-manager write in names of their own: a count of
// vGPUs on different GPUs, and the memory (MiB, or percent of the GPU) and compute (percent) of each.
// Facts: project-hami.io, "Device resource" and "Webhook"; github.com/volcano-sh/devices and the user guide of Volcano's vGPU;
// github.com/coldzerofear/vgpu-manager, README. A factor by which the other system's plugin may multiply memory is not in the pod.
import {
  COMPUTE_POLICY_ANNOTATION,
  GPU_MODEL_ANNOTATION,
  GPU_UUID_ANNOTATION,
  PLACEMENT_ANNOTATION,
} from '../../api/names.ts';
import { type DialectName, type MemoryAmount, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { type Checked, invalid, missing, type Problem } from '../../common/problem.ts';
import {
  binaryText,
  MIB,
  meantPercent,
  parsePercent,
  parseUnits,
  parseWhole,
  sameQuantity,
} from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect, ForeignChoice } from './dialect.ts';

type Names = {
  readonly name: DialectName;
  readonly count: string;
  readonly memory: string;
  readonly percentage?: string;
  readonly cores?: string;
  /** Its name in earlier versions. */
  readonly earlierCores?: string;
  /** 0 is high, 1 is not. */
  readonly priority?: string;
  /** A variable that switches limits off when it is true. */
  readonly off?: string;
  /** A variable that switches the limit of compute off when it is `disable`. */
  readonly coresPolicy?: string;
  readonly choices: readonly ForeignChoice[];
  readonly schedulers: readonly string[];
  readonly webhooks?: readonly string[];
};

function vgpuDialect(names: Names): Dialect {
  const { name, count, memory, percentage, cores, earlierCores, priority, choices, schedulers, webhooks } = names;
  const others = [cores, percentage, priority, earlierCores].filter((resource) => resource !== undefined);
  return {
    name,
    resources: [count, memory, ...others],
    environment: [names.off, names.coresPolicy].filter((variable) => variable !== undefined),
    schedulers,
    zeroIsNothing: true,
    choices,
    ...(webhooks && { signs: { webhooks } }),
    read: (asked, rules) => read(asked, names, rules),
  };
}

/** The same values as ours: UUIDs with commas, `binpack` or `spread`. */
const sameAs = (own: NonNullable<ForeignChoice['own']>, annotation: string): ForeignChoice => ({
  annotation,
  own,
  instead: own,
});
/** Parts of a model's name: ours take whole names. */
const ofModel = (annotation: string): ForeignChoice => ({ annotation, instead: GPU_MODEL_ANNOTATION });
/** GPUs of one NUMA node, or with the best links. */
const ofTopology = (annotation: string, usual: string): ForeignChoice => ({
  annotation,
  usual,
  instead: `${PLACEMENT_ANNOTATION}: topology`,
});
/** Limits by a library, or by instances that are made for the pod. */
const ofMode = (annotation: string): ForeignChoice => ({ annotation, usual: 'hami-core' });
/** UUIDs to leave out. */
const except = (annotation: string): ForeignChoice => ({
  ...sameAs(GPU_UUID_ANNOTATION, annotation),
  translate: (uuids) =>
    `!${uuids
      .split(',')
      .map((one) => one.trim())
      .join(',!')}`,
});

export const hami = vgpuDialect({
  name: 'hami',
  count: 'nvidia.com/gpu',
  memory: 'nvidia.com/gpumem',
  percentage: 'nvidia.com/gpumem-percentage',
  cores: 'nvidia.com/gpucores',
  priority: 'nvidia.com/priority',
  off: 'CUDA_DISABLE_CONTROL',
  coresPolicy: 'GPU_CORE_UTILIZATION_POLICY',
  choices: [
    ofModel('nvidia.com/use-gputype'),
    ofModel('nvidia.com/nouse-gputype'),
    sameAs(GPU_UUID_ANNOTATION, 'nvidia.com/use-gpuuuid'),
    except('nvidia.com/nouse-gpuuuid'),
    {
      ...sameAs(PLACEMENT_ANNOTATION, 'hami.io/gpu-scheduler-policy'),
      translate: (policy) => (policy === 'topology-aware' ? 'topology' : policy),
    },
    { annotation: 'hami.io/node-scheduler-policy', instead: PLACEMENT_ANNOTATION },
    ofTopology('nvidia.com/numa-bind', 'false'),
    ofMode('nvidia.com/vgpu-mode'),
  ],
  schedulers: ['hami-scheduler'],
  webhooks: ['vgpu.hami.io'],
});

const volcanoVgpu = vgpuDialect({
  name: 'volcano',
  count: 'volcano.sh/vgpu-number',
  memory: 'volcano.sh/vgpu-memory',
  percentage: 'volcano.sh/vgpu-memory-percentage',
  cores: 'volcano.sh/vgpu-cores',
  choices: [
    sameAs(GPU_UUID_ANNOTATION, 'volcano.sh/vgpu-use-gpuuuid'),
    except('volcano.sh/vgpu-nouse-gpuuuid'),
    ofMode('volcano.sh/vgpu-mode'),
  ],
  schedulers: ['volcano'],
});

/** Volcano's device plugin before its vGPUs: MiB of one GPU, or a number of whole GPUs, but not both. */
const OLDER = { name: 'volcano', count: 'volcano.sh/gpu-number', memory: 'volcano.sh/gpu-memory' } as const;

export const volcano: Dialect = {
  ...volcanoVgpu,
  resources: [...volcanoVgpu.resources, OLDER.count, OLDER.memory],
  read: readVolcano,
};

export const vgpuManager = vgpuDialect({
  name: 'vgpu-manager',
  count: 'nvidia.com/vgpu-number',
  memory: 'nvidia.com/vgpu-memory',
  cores: 'nvidia.com/vgpu-cores',
  choices: [
    ofModel('nvidia.com/include-gpu-type'),
    ofModel('nvidia.com/exclude-gpu-type'),
    sameAs(GPU_UUID_ANNOTATION, 'nvidia.com/include-gpu-uuid'),
    except('nvidia.com/exclude-gpu-uuid'),
    sameAs(PLACEMENT_ANNOTATION, 'nvidia.com/device-scheduler-policy'),
    { annotation: 'nvidia.com/node-scheduler-policy', instead: PLACEMENT_ANNOTATION },
    ofTopology('nvidia.com/device-topology-mode', 'none'),
    { annotation: 'nvidia.com/vgpu-compute-policy', usual: 'fixed', instead: COMPUTE_POLICY_ANNOTATION },
  ],
  earlierCores: 'nvidia.com/vgpu-core',
  schedulers: ['vgpu-scheduler'],
});

function readVolcano(asked: Asked, rules: Rules): Checked<Answer> {
  const [older] = [OLDER.count, OLDER.memory].filter((resource) => asked.amounts.has(resource));
  if (older === undefined) return volcanoVgpu.read(asked, rules);
  const other = [...asked.amounts.keys()].find((resource) => resource !== older);
  if (other !== undefined) {
    const wrong = `is not possible beside ${other}`;
    return err([invalid(asked.amountPath(older), asked.amounts.get(older), wrong, 'leave one of them out')]);
  }
  return read(asked, { ...OLDER, choices: [], schedulers: [] }, { ...rules, defaults: {} });
}

function read(asked: Asked, names: Names, { defaults }: Rules): Checked<Answer> {
  const problems: Problem[] = [];
  const warnings: string[] = [];
  /** Undefined where nothing, or a 0 that is allowed, is written: the other system's default holds. */
  const amount = (resource: string | undefined, most: number, unit: string, least = 0): number | undefined => {
    const text = resource === undefined ? undefined : asked.amounts.get(resource);
    if (resource === undefined || text === undefined) return undefined;
    const isPercent = unit.startsWith('percent');
    const parse = isPercent ? parsePercent : parseWhole;
    const parsed = resource === names.memory ? parseUnits(text, least, most, MIB) : parse(text, least, most);
    if (parsed.ok) return parsed.value || undefined;
    const [, percent] = (resource === names.memory && /^(\d+)\s*%$/.exec(text)) || [];
    const isUnclear = isPercent && parsed.error.meant === undefined;
    const usual = isUnclear ? 'write a whole number from 0 to 100' : parsed.error.right;
    const isOther = percent !== undefined && names.percentage !== undefined;
    const part = resource === names.count ? partOf(text, names) : undefined;
    const right = part ?? (isOther ? `write ${names.percentage}: ${percent}` : `${usual}: ${unit}`);
    problems.push(invalid(asked.amountPath(resource), text, parsed.error.wrong, right));
    return undefined;
  };
  const read = [names.count, names.memory, names.percentage, names.cores, names.earlierCores];
  if (!read.some((resource) => resource !== undefined && asked.amounts.has(resource)))
    problems.push(missing(asked.amountPath(names.count), 'write the number of GPUs'));
  const count = amount(names.count, MOST_GPUS, 'GPUs', 1) ?? 1;
  const mebibytes = amount(names.memory, MOST_MEMORY_BYTES / MIB, 'MiB of each GPU');
  const percent = amount(names.percentage, 100, 'percent of the memory of each GPU');
  const [most, percentOfEach] = [Number.MAX_SAFE_INTEGER, 'percent of the compute of each GPU'] as const;
  const cores = amount(names.cores, most, percentOfEach) ?? amount(names.earlierCores, most, percentOfEach);
  amount(names.priority, 1, '0 is high');
  if (problems.length > 0) return err(problems);
  const isHigh = names.priority !== undefined && sameQuantity(asked.amounts.get(names.priority), '0');
  if (cores !== undefined && cores > 100) warnings.push(`${names.cores}: ${cores} is taken as 100, all of each GPU`);
  if (mebibytes !== undefined && percent !== undefined)
    warnings.push(`${names.percentage}: no effect beside ${names.memory}`);
  if (names.coresPolicy !== undefined && asked.environment.get(names.coresPolicy)?.toLowerCase() === 'disable')
    warnings.push(`${names.coresPolicy}: no effect; for no limit of compute leave out ${names.cores}`);
  const memory = memoryOf(mebibytes, percent, defaults.gpuMemory);
  const share = { memory, ...(cores !== undefined && { coresPercent: Math.min(cores, 100) }) };
  const off = names.off !== undefined && asked.environment.get(names.off) === 'true';
  return {
    ok: true,
    value: {
      gpus: Array.from({ length: count }, () => share),
      ...(off && { memoryIsolation: 'off' as const }),
      ...(isHigh && { priority: 'high' as const }),
      warnings,
    },
  };
}

/** What is right in the place of a part of a GPU, or of an amount of memory, where GPUs are counted. */
function partOf(text: string, { memory, percentage }: Names): string | undefined {
  const percent = meantPercent(text);
  if (percent !== undefined && percent > 0 && percent <= 100)
    return percentage === undefined ? `write ${memory}, MiB, for a part of a GPU` : `write ${percentage}: ${percent}`;
  if (!/^[\d.]+[MGT]i$/.test(binaryText(text))) return undefined;
  const units = parseUnits(text, 1, MOST_MEMORY_BYTES / MIB, MIB);
  return units.ok || units.error.meant === undefined ? undefined : `write ${memory}: ${units.error.meant}`;
}

/** MiB win over percent; without either the namespace's default is meant, or the whole GPU. */
function memoryOf(
  mebibytes: number | undefined,
  percent: number | undefined,
  defaultBytes: number | undefined,
): MemoryAmount {
  if (mebibytes !== undefined) return { kind: 'bytes', bytes: mebibytes * MIB };
  if (percent === undefined && defaultBytes !== undefined) return { kind: 'bytes', bytes: defaultBytes };
  return percent === undefined || percent === 100 ? { kind: 'whole' } : { kind: 'percent', percent };
}
