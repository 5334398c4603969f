// NVIDIA's KAI scheduler and Run:ai: a fraction of a GPU, or MiB, in annotations of the pod, for one of its containers;
// and NVIDIA's newer form, `nvidia.com/container.<name>.gpu-memory.request` and `.limit`, for each container by its name.
// Facts: github.com/kai-scheduler/KAI-Scheduler, docs/gpu-sharing; docs.nvidia.com/run-ai, "GPU Memory Fractions" and
// "Migrate GPU Fractions".
import { GPU_CORES } from '../../api/names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  type MemoryAmount,
  MOST_GPUS,
  MOST_MEMORY_BYTES,
} from '../../api/request.ts';
import { type JsonObject, textAt } from '../../common/json.ts';
import { type Checked, forbidden, invalid, keyPath, missing, type Problem } from '../../common/problem.ts';
import { formatBytes, MIB, parseUnits, parseWhole } from '../../common/quantity.ts';
import { err } from '../../common/result.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect, PodAmounts } from './dialect.ts';
import { bytesAmount, percentAmount, rightAbove, rightFraction } from './fractions.ts';

const FRACTION = 'gpu-fraction';
/** As Run:ai and as KAI write it. */
const FRACTION_LIMITS = ['gpu-fraction-limit', 'gpu-fraction.limit'] as const;
const MEMORY = 'gpu-memory';
const MEMORY_LIMITS = ['gpu-memory-limit', 'gpu-memory.limit'] as const;
const COUNT = 'gpu-fraction-num-devices';
const CONTAINER = 'gpu-fraction-container-name';
const PER_CONTAINER = 'nvidia.com/container.';
const REQUEST_END = '.gpu-memory.request';
const LIMIT_END = '.gpu-memory.limit';

const annotationPath = (key: string) => keyPath('metadata.annotations', key);

export const kai: Dialect = {
  name: 'kai',
  resources: [],
  podKeys: [FRACTION, ...FRACTION_LIMITS, MEMORY, ...MEMORY_LIMITS, COUNT, PER_CONTAINER],
  choices: [{ annotation: 'gpu-sm-percentage', instead: GPU_CORES }],
  readPod,
  environment: [],
  schedulers: ['kai-scheduler', 'runai-scheduler'],
  zeroIsNothing: false,
  signs: { deployments: ['kai-scheduler/kai-scheduler-default'] },
  read,
  variables,
};

function readPod(annotations: JsonObject): readonly PodAmounts[] {
  const taken = (keys: readonly string[]) =>
    new Map(keys.flatMap((key) => (Object.hasOwn(annotations, key) ? [[key, String(annotations[key])] as const] : [])));
  const found: PodAmounts[] = [];
  if ([FRACTION, MEMORY, COUNT].some((key) => Object.hasOwn(annotations, key))) {
    const container = textAt(annotations, CONTAINER);
    const amounts = taken([FRACTION, ...FRACTION_LIMITS, MEMORY, ...MEMORY_LIMITS, COUNT]);
    found.push({ ...(container !== undefined && { container }), amounts, path: annotationPath(CONTAINER) });
  }
  const named = new Map<string, string[]>();
  for (const key of Object.keys(annotations)) {
    const end = [REQUEST_END, LIMIT_END].find((one) => key.endsWith(one));
    if (end === undefined || !key.startsWith(PER_CONTAINER)) continue;
    const container = key.slice(PER_CONTAINER.length, -end.length);
    named.set(container, [...(named.get(container) ?? []), key]);
  }
  for (const [container, keys] of named)
    found.push({ container, amounts: taken(keys), path: annotationPath(keys[0] ?? PER_CONTAINER) });
  return found;
}

function read(asked: Asked, rules: Rules): Checked<Answer> {
  const keys = [...asked.amounts.keys()];
  const ofContainer = keys.filter((key) => key.startsWith(PER_CONTAINER));
  const problems: Problem[] = [];
  if (ofContainer.length > 0 && ofContainer.length < keys.length) {
    const [other = ''] = keys.filter((key) => !key.startsWith(PER_CONTAINER));
    const wrong = `is for the container that ${ofContainer[0]} is for`;
    return err([invalid(annotationPath(other), asked.amounts.get(other), wrong, 'leave one of the two out')]);
  }
  const share = ofContainer.length > 0 ? readNamed(asked, ofContainer, problems) : readFraction(asked, problems);
  const countText = asked.amounts.get(COUNT) ?? '1';
  const count = parseWhole(countText, 1, MOST_GPUS);
  if (!count.ok) problems.push(invalid(annotationPath(COUNT), countText, count.error.wrong, count.error.right));
  if (!count.ok || share === undefined || problems.length > 0) return err(problems);
  if (share.limit !== undefined && !rules.allowMemoryOvercommit) {
    const [key, text] = share.limit;
    const wrong = 'is more than what is reserved, and overcommit is not allowed here';
    return err([
      forbidden(annotationPath(key), text, wrong, 'leave it out, or have allowMemoryOvercommit switched on'),
    ]);
  }
  return { ok: true, value: { gpus: Array.from({ length: count.value }, () => share.gpu), warnings: [] } };
}

/** `limit`: the annotation of a limit above the reserved amount. */
type Share = { readonly gpu: GpuShare; readonly limit?: readonly [key: string, text: string] };

function readFraction({ amounts }: Asked, problems: Problem[]): Share | undefined {
  const [fraction, memory] = [amounts.get(FRACTION), amounts.get(MEMORY)];
  if (fraction !== undefined && memory !== undefined) {
    problems.push(
      invalid(annotationPath(MEMORY), memory, `is not possible beside ${FRACTION}`, 'leave one of them out'),
    );
    return undefined;
  }
  // As KAI's webhook.
  if (fraction === undefined && memory === undefined) {
    problems.push(missing(annotationPath(FRACTION), `write the part of each GPU, or leave out ${COUNT}`));
    return undefined;
  }
  const [key, limitKeys] =
    fraction === undefined ? ([MEMORY, MEMORY_LIMITS] as const) : ([FRACTION, FRACTION_LIMITS] as const);
  const limitKey = limitKeys.find((one) => amounts.has(one)) ?? limitKeys[0];
  /** `reserved`: of which it is the limit. */
  const readAmount = (name: string, reserved?: MemoryAmount): MemoryAmount | undefined => {
    const text = amounts.get(name);
    if (text === undefined) return undefined;
    const least = reserved && sizeOf(reserved);
    if (fraction !== undefined) return percentAmount(text, annotationPath(name), problems, (least ?? 0) / 100);
    const [leastUnits, most] = [Math.max(1, (least ?? 0) / MIB), MOST_MEMORY_BYTES / MIB];
    const mebibytes = parseUnits(text, 1, most, MIB);
    if (mebibytes.ok) return { kind: 'bytes', bytes: mebibytes.value * MIB };
    const { meant } = mebibytes.error;
    const isFraction = name === MEMORY && /^\s*0?[.,]\d+\s*$|%\s*$/.test(text);
    const isBelow = meant === undefined || meant < leastUnits;
    const bounds = least === undefined ? mebibytes.error.right : `write a whole number from ${leastUnits} to ${most}`;
    const right = isFraction ? `${rightFraction(text)} as ${FRACTION}` : `${isBelow ? bounds : `write ${meant}`}: MiB`;
    problems.push(invalid(annotationPath(name), text, mebibytes.error.wrong, right));
    return undefined;
  };
  const reserved = readAmount(key);
  const limit = readAmount(limitKey, reserved);
  return withLimit(reserved, limit, [limitKey, amounts.get(limitKey) ?? ''], problems);
}

/** A missing request is the limit, and a missing limit the request. */
function readNamed({ amounts }: Asked, keys: readonly string[], problems: Problem[]): Share | undefined {
  const readBytes = (end: string, reserved?: MemoryAmount): MemoryAmount | undefined => {
    const key = keys.find((one) => one.endsWith(end));
    const text = key === undefined ? undefined : amounts.get(key);
    if (key === undefined || text === undefined) return undefined;
    return bytesAmount(text, annotationPath(key), problems, reserved && sizeOf(reserved));
  };
  const request = readBytes(REQUEST_END);
  const limit = readBytes(LIMIT_END, request);
  const limitKey = keys.find((key) => key.endsWith(LIMIT_END)) ?? '';
  return withLimit(request ?? limit, limit, [limitKey, amounts.get(limitKey) ?? ''], problems);
}

function withLimit(
  memory: MemoryAmount | undefined,
  limit: MemoryAmount | undefined,
  written: readonly [key: string, text: string],
  problems: Problem[],
): Share | undefined {
  if (memory === undefined) return undefined;
  if (limit === undefined || sizeOf(limit) === sizeOf(memory)) return { gpu: { memory } };
  if (sizeOf(limit) > sizeOf(memory)) return { gpu: { memory, memoryLimit: limit }, limit: written };
  const right = memory.kind === 'bytes' ? rightSize(memory.bytes, written[0]) : rightAbove(sizeOf(memory) / 100);
  problems.push(invalid(annotationPath(written[0]), written[1], 'is less than what is reserved', right));
  return undefined;
}

const rightSize = (bytes: number, key: string): string =>
  key.startsWith(PER_CONTAINER) ? `write "${formatBytes(bytes)}" or more` : `write ${bytes / MIB} or more: MiB`;

/** For comparison of two amounts of one kind. */
function sizeOf(amount: MemoryAmount): number {
  if (amount.kind === 'bytes') return amount.bytes;
  return amount.kind === 'percent' ? amount.percent : 100;
}

/**
 * The part of a GPU, which KAI's binder sets under both names. Of an amount of memory it is that of the GPU that was
 * chosen, which nothing here knows.
 */
function variables({ gpus: [gpu] }: ContainerRequest): Readonly<Record<string, string>> {
  if (gpu === undefined || (gpu.memory.kind !== 'percent' && gpu.memory.kind !== 'whole')) return {};
  const part = String(sizeOf(gpu.memory) / 100);
  return { GPU_PORTION: part, RUNAI_NUM_OF_GPUS: part };
}
