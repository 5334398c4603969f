// Dialects of three clouds, which count compute in percent of a GPU, memory in units of a fixed size, and both as totals
// over the GPUs of a container: Tencent's (gpu-manager and its successor qGPU), Huawei's (CCE) and Volcengine's (mGPU).
// Facts: github.com/tkestack/gpu-manager, README; cloud.tencent.com/document/product/457, "Using qGPU" and "Using qGPU
// Online/Offline Hybrid Deployment"; support.huaweicloud.com, CCE user guide, "Using GPU Virtualization" and "Equal
// Distribution Scheduling on Virtual GPUs"; Volcano's design "Device API support for mGPU scheduling".
import { COMPUTE_POLICY_ANNOTATION } from '../../api/names.ts';
import { type GpuShare, MOST_GPUS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { type JsonObject, textAt } from '../../common/json.ts';
import { type Checked, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { GIB, MIB, parsePercent, parseUnits, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Answer, Asked, Dialect, PodAmounts } from './dialect.ts';
import { rightTotal, splitOver } from './fractions.ts';

type Names = {
  /** 100 and its multiples are whole GPUs where the number of GPUs is not given. */
  readonly cores: string;
  readonly memory: string;
  readonly unitBytes: number;
  /** Memory may be asked for alone. */
  readonly memoryAlone?: boolean;
  /** Compute that others leave idle: nothing is reserved. */
  readonly idleCores?: string;
  /** The number of GPUs over which the amounts are split. */
  readonly count?: (asked: Asked) => { readonly path: string; readonly text: string } | undefined;
  /** An annotation: the most compute that a container may use while others leave it idle. */
  readonly coresLimit?: string;
};

const GPU_MANAGER_LIMIT = 'tencent.com/vcuda-core-limit';
const GPU_MANAGER: Names = {
  cores: 'tencent.com/vcuda-core',
  memory: 'tencent.com/vcuda-memory',
  unitBytes: 256 * MIB,
  coresLimit: GPU_MANAGER_LIMIT,
};
const QGPU: Names = {
  cores: 'tke.cloud.tencent.com/qgpu-core',
  memory: 'tke.cloud.tencent.com/qgpu-memory',
  unitBytes: GIB,
  memoryAlone: true,
  idleCores: 'tke.cloud.tencent.com/qgpu-core-greedy',
};
/** `online` pods have the GPU before the others. */
const QGPU_CLASS = 'tke.cloud.tencent.com/app-class';

const HUAWEI_COUNT = 'volcano.sh/gpu-num';
const HUAWEI: Names = {
  cores: 'volcano.sh/gpu-core.percentage',
  memory: 'volcano.sh/gpu-mem.128Mi',
  unitBytes: 128 * MIB,
  memoryAlone: true,
  count: ({ labels }) => {
    const text = textAt(labels, HUAWEI_COUNT);
    return text === undefined ? undefined : { path: keyPath('metadata.labels', HUAWEI_COUNT), text };
  },
};

/** The numbers of GPUs of all containers, in their order. */
const VOLCENGINE_COUNTS = 'vke.volcengine.com/container-multiple-gpu';
const VOLCENGINE: Names = {
  cores: 'vke.volcengine.com/mgpu-core',
  memory: 'vke.volcengine.com/mgpu-memory',
  unitBytes: MIB,
  count: ({ amounts }) => {
    const text = amounts.get(VOLCENGINE_COUNTS);
    return text === undefined ? undefined : { path: keyPath('metadata.annotations', VOLCENGINE_COUNTS), text };
  },
};

const resourcesOf = ({ cores, memory, idleCores }: Names): readonly string[] => [
  cores,
  memory,
  ...(idleCores === undefined ? [] : [idleCores]),
];

export const tke: Dialect = {
  name: 'tke',
  resources: [...resourcesOf(GPU_MANAGER), ...resourcesOf(QGPU)],
  podNotes: [GPU_MANAGER_LIMIT, QGPU_CLASS],
  environment: [],
  schedulers: [],
  zeroIsNothing: true,
  signs: { deployments: ['kube-system/qgpu-scheduler'] },
  read: readTke,
};

export const huawei: Dialect = {
  name: 'huawei',
  resources: resourcesOf(HUAWEI),
  podNotes: [HUAWEI_COUNT],
  environment: [],
  schedulers: ['volcano'],
  zeroIsNothing: true,
  read: (asked) => read(asked, HUAWEI),
};

export const volcengine: Dialect = {
  name: 'volcengine',
  resources: resourcesOf(VOLCENGINE),
  podKeys: [VOLCENGINE_COUNTS],
  readPod: readCounts,
  environment: [],
  schedulers: ['volcano'],
  choices: [{ annotation: 'vke.volcengine.com/mgpu-compute-policy', instead: COMPUTE_POLICY_ANNOTATION }],
  zeroIsNothing: true,
  read: (asked) => read(asked, VOLCENGINE),
};

function readTke(asked: Asked): Checked<Answer> {
  const [ofQgpu, ofManager] = [QGPU, GPU_MANAGER].map((names) =>
    resourcesOf(names).find((resource) => asked.amounts.has(resource)),
  );
  if (ofQgpu === undefined) return read(asked, GPU_MANAGER);
  if (ofManager !== undefined) {
    const wrong = `is not possible beside ${ofQgpu}`;
    return err([invalid(asked.amountPath(ofManager), asked.amounts.get(ofManager), wrong, 'leave one of them out')]);
  }
  const answer = read(asked, QGPU);
  const isOnline = textAt(asked.annotations, QGPU_CLASS) === 'online';
  return answer.ok && isOnline ? { ok: true, value: { ...answer.value, priority: 'high' } } : answer;
}

/** The first number is for the first container. 1 is what a container without a number has, and 0 is for none. */
function readCounts(annotations: JsonObject): readonly PodAmounts[] {
  const path = keyPath('metadata.annotations', VOLCENGINE_COUNTS);
  return (textAt(annotations, VOLCENGINE_COUNTS)?.split(',') ?? []).flatMap((text, container) =>
    ['0', '1'].includes(text.trim()) ? [] : [{ container, amounts: new Map([[VOLCENGINE_COUNTS, text.trim()]]), path }],
  );
}

function read(asked: Asked, names: Names): Checked<Answer> {
  const problems: Problem[] = [];
  const { cores: ownCores, idleCores, memory: memoryName } = names;
  const isIdle = idleCores !== undefined && asked.amounts.has(idleCores);
  const coresName = isIdle ? idleCores : ownCores;
  const coresText = asked.amounts.get(coresName);
  if (isIdle && asked.amounts.has(ownCores)) {
    const wrong = `is not possible beside ${idleCores}`;
    return err([invalid(asked.amountPath(ownCores), asked.amounts.get(ownCores), wrong, 'leave one of the two out')]);
  }
  if (coresText === undefined && !names.memoryAlone)
    return err([missing(asked.amountPath(coresName), `${memoryName} needs an amount of ${coresName}`)]);
  const cores = coresText === undefined ? undefined : parsePercent(coresText, 1, isIdle ? 100 : 100 * MOST_GPUS);
  if (cores && !cores.ok) {
    const given = parseWhole(names.count?.(asked)?.text ?? '1', 1, MOST_GPUS);
    const right = `${rightTotal(coresText ?? '', given.ok ? given.value : 1, cores.error.right)}: 100 is one GPU`;
    return err([invalid(asked.amountPath(coresName), coresText, cores.error.wrong, right)]);
  }
  const count = readCount(asked, names, isIdle ? undefined : cores?.value);
  if (!count.ok) return count;
  const share = { count: count.value, problems };
  const coresEach = isIdle
    ? undefined
    : perGpu(cores?.value, { ...share, text: coresText, path: asked.amountPath(coresName), most: 100 });
  if (coresEach === 100) return wholeGpus(count.value, asked, memoryName);

  const text = asked.amounts.get(memoryName);
  const unit = names.unitBytes === MIB ? 'MiB' : `units of ${names.unitBytes / MIB} MiB`;
  const units = parseUnits(text ?? '', 1, MOST_MEMORY_BYTES / names.unitBytes, names.unitBytes);
  const memoryPath = asked.amountPath(memoryName);
  if (text === undefined) problems.push(missing(memoryPath, `write ${unit} beside ${coresName}`));
  else if (!units.ok) {
    const right = count.value > 1 ? `write a multiple of ${count.value}` : units.error.right;
    problems.push(invalid(memoryPath, text, units.error.wrong, `${right}: ${unit}`));
  }
  const unitsEach = units.ok ? perGpu(units.value, { ...share, text, path: memoryPath }) : undefined;
  const limit = readLimit(names, asked, coresEach, problems);
  if (problems.length > 0 || unitsEach === undefined) return err(problems);
  const gpu: GpuShare = {
    memory: { kind: 'bytes', bytes: unitsEach * names.unitBytes },
    ...(coresEach !== undefined && { coresPercent: coresEach }),
    ...(limit !== undefined && { coresLimitPercent: limit }),
  };
  const warnings = isIdle ? [`${coresName}: reserves nothing here; compute that others leave idle may be used`] : [];
  return { ok: true, value: { gpus: Array.from({ length: count.value }, () => gpu), warnings } };
}

/** An amount of memory beside whole GPUs is ignored, as by Tencent's. */
function wholeGpus(count: number, asked: Asked, memory: string): Checked<Answer> {
  const warnings = asked.amounts.has(memory) ? [`${memory}: no effect beside whole GPUs`] : [];
  return { ok: true, value: { gpus: Array.from({ length: count }, () => ({ memory: { kind: 'whole' } })), warnings } };
}

/** From 1; where it is not written, as many as the compute is whole GPUs. */
function readCount(asked: Asked, { cores: name, count }: Names, cores: number | undefined): Checked<number> {
  const written = count?.(asked);
  if (written !== undefined) {
    const parsed = parseWhole(written.text, 1, MOST_GPUS);
    if (parsed.ok) return parsed;
    return err([invalid(written.path, written.text, parsed.error.wrong, `${parsed.error.right}: GPUs`)]);
  }
  if (cores === undefined || cores < 100) return { ok: true, value: 1 };
  if (cores % 100 === 0) return { ok: true, value: cores / 100 };
  const below = Math.floor(cores / 100) * 100;
  const wrong = 'is above one GPU and no number of whole GPUs';
  return err([invalid(asked.amountPath(name), asked.amounts.get(name), wrong, `write ${below} or ${below + 100}`)]);
}

type Total = {
  readonly count: number;
  readonly text: string | undefined;
  readonly path: string;
  readonly most?: number;
  readonly problems: Problem[];
};

/** What each GPU has of an amount, or undefined with a problem added. */
function perGpu(amount: number | undefined, { count, text, path, most, problems }: Total): number | undefined {
  if (amount === undefined) return undefined;
  const split = splitOver(amount, count, most);
  if (split.ok) return split.value;
  problems.push(invalid(path, text, split.error.wrong, split.error.right));
  return undefined;
}

function readLimit(names: Names, asked: Asked, cores: number | undefined, problems: Problem[]): number | undefined {
  const text = names.coresLimit === undefined ? undefined : textAt(asked.annotations, names.coresLimit);
  if (names.coresLimit === undefined || text === undefined) return undefined;
  const limit = parsePercent(text, cores ?? 1, 100);
  if (limit.ok) return limit.value;
  const right = `${limit.error.right}: percent of the GPU, from ${names.cores} up`;
  problems.push(invalid(keyPath('metadata.annotations', names.coresLimit), text, limit.error.wrong, right));
  return undefined;
}
