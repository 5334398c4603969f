// A pod's GPU request, whatever dialect it was written in: the format of the request annotation, its types, and how
// many bytes a share is on a known GPU. `src/request/read-pod.ts` reads a request from a pod.

import * as v from 'valibot';
import { isObject } from '../common/json.ts';
import { MIB } from '../common/quantity.ts';
import { listOf, oneOf, whole } from '../common/schema.ts';
import { isContainerName } from './names.ts';

/** Off unless the operator switches them on: their names mean different things in different clusters. */
export const FOREIGN_DIALECT_NAMES = [
  'ack',
  'metagpu',
  'hami',
  'volcano',
  'vgpu-manager',
  'tke',
  'koordinator',
  'kai',
  'kubeshare',
  'nos',
  'nvidia',
  'huawei',
  'volcengine',
  'baidu',
] as const;
export const DIALECTS = ['cotenant', ...FOREIGN_DIALECT_NAMES] as const;
export type DialectName = (typeof DIALECTS)[number];

/** Variables of workloads whose value is the granted MiB, which the scheduler alone knows (`memoryAnnotation`). */
export const MEMORY_VARIABLES: Readonly<Partial<Record<DialectName, string>>> = { metagpu: 'METAGPU_MAX_MEM' };

export const CONTAINER_KINDS = ['init', 'sidecar', 'app'] as const;
export type ContainerKind = (typeof CONTAINER_KINDS)[number];

export const PLACEMENTS = ['binpack', 'spread', 'fragmentation', 'topology'] as const;
export type Placement = (typeof PLACEMENTS)[number];

/** In the order of cGPU's numbers, 0 to 5. */
export const COMPUTE_POLICIES = ['average', 'preemptive', 'weighted', 'fixed', 'soft', 'native'] as const;
export type ComputePolicy = (typeof COMPUTE_POLICIES)[number];

export const PRIORITIES = ['normal', 'high'] as const;
export type Priority = (typeof PRIORITIES)[number];

export const MEMORY_ISOLATIONS = ['on', 'off'] as const;
export type MemoryIsolation = (typeof MEMORY_ISOLATIONS)[number];

/** Enforcement modes, from the weakest. */
export const MODES = ['off', 'report', 'enforce'] as const;
export type Mode = (typeof MODES)[number];

/** A compute policy by its name or by cGPU's number. */
export function parseComputePolicy(text: string): ComputePolicy | undefined {
  return COMPUTE_POLICIES.find((name, number) => name === text || String(number) === text);
}

/** Of the weighted policy, and of the choice by tenants. */
export const MOST_WEIGHT = 1000;
/** More GPUs than one node has; keeps a hostile count from becoming a long list. */
export const MOST_GPUS = 64;
/** 1 PiB: more than a node of 64 GPUs has, and exact in a JavaScript number. */
export const MOST_MEMORY_BYTES = 2 ** 50;

const wholeMib = v.pipe(whole(MIB, MOST_MEMORY_BYTES), v.multipleOf(MIB, 'whole MiB in bytes'));

/** Percent of a GPU, in hundredths of a percent: a third of a GPU is 33.33. */
const percentOfGpu = v.pipe(
  v.number(),
  v.minValue(0.01),
  v.maxValue(99.99),
  v.check((percent) => Math.round(percent * 100) / 100 === percent, 'percent with at most two decimals'),
);

/** Memory of one GPU. `units` and `percent` get their size from the GPU (`resolveShare`). */
const memoryAmount = v.variant('kind', [
  v.object({ kind: v.literal('bytes'), bytes: wholeMib }),
  v.pipe(
    v.object({
      kind: v.literal('units'),
      units: whole(1, MOST_MEMORY_BYTES / MIB),
      unitBytes: wholeMib,
      rounding: v.literal('cgpu'),
    }),
    v.check(({ units, unitBytes }) => units * unitBytes <= MOST_MEMORY_BYTES, 'an amount that a node can have'),
  ),
  v.object({ kind: v.literal('percent'), percent: percentOfGpu }),
  v.object({ kind: v.literal('whole') }),
]);
export type MemoryAmount = v.InferOutput<typeof memoryAmount>;

/** What a container requests of one GPU. */
export const gpuShare = v.pipe(
  v.object({
    memory: memoryAmount,
    /** Only where the enforced amount differs from the reserved one. */
    memoryLimit: v.exactOptional(memoryAmount),
    /** Percent of this GPU's compute; absent where none was requested. */
    coresPercent: v.exactOptional(whole(1, 100)),
    /** What it may use while other containers leave it idle; absent: what the compute policy says. */
    coresLimitPercent: v.exactOptional(whole(1, 100)),
  }),
  v.check(
    ({ coresPercent, coresLimitPercent: limit }) => limit === undefined || limit >= (coresPercent ?? Infinity),
    'a GPU whose coresLimitPercent is not below its coresPercent',
  ),
);
export type GpuShare = v.InferOutput<typeof gpuShare>;

const isTextMap = (value: unknown): value is Readonly<Record<string, string>> =>
  isObject(value) && Object.values(value).every((text) => typeof text === 'string');

export const containerName = v.custom<string>(isContainerName, 'a container name');

/** Place among the pod's init containers and sidecars with a share; only in pods that have both, where it matters. */
export const initIndex = v.exactOptional(whole(0, Number.MAX_SAFE_INTEGER));

const containerRequest = v.object({
  name: containerName,
  kind: oneOf(CONTAINER_KINDS),
  initIndex,
  dialect: oneOf(DIALECTS),
  /** The dialect's own names with the text that was written for them; for messages, and to read the request again. */
  asked: v.custom<Readonly<Record<string, string>>>(isTextMap, 'an object of texts'),
  memoryIsolation: oneOf(MEMORY_ISOLATIONS),
  /** One entry per GPU. Shares of one container are on different GPUs. */
  gpus: listOf(gpuShare, 1, MOST_GPUS),
});
export type ContainerRequest = v.InferOutput<typeof containerRequest>;

/** A pod that requests shares of GPUs: its containers that do, and what was chosen for the pod. */
export const podRequest = v.object({
  priority: oneOf(PRIORITIES),
  placement: v.exactOptional(oneOf(PLACEMENTS)),
  computePolicy: v.exactOptional(oneOf(COMPUTE_POLICIES)),
  computeWeight: v.exactOptional(whole(1, MOST_WEIGHT)),
  /** Its containers get one GPU together; absent: each gets its own, which may be the same. */
  sameGpu: v.exactOptional(v.literal(true)),
  /** The enforcement mode that the namespace's rules set; absent: `enforce`. */
  enforcement: v.exactOptional(oneOf(['off', 'report'])),
  /** Any of these models, and none that is named with a `!`; empty: any model. */
  gpuModels: v.optional(listOf(v.pipe(v.string(), v.nonEmpty('a name'))), []),
  /** Only among these GPUs, and none that is named with a `!`; empty: any GPU. */
  gpuUuids: v.optional(listOf(v.pipe(v.string(), v.nonEmpty('a UUID'))), []),
  containers: v.pipe(
    listOf(containerRequest, 1),
    v.check(
      (list) => list.every(({ name }, index) => index === 0 || name > (list[index - 1]?.name ?? '')),
      'a list of containers by name, each of them once',
    ),
  ),
});
export type PodRequest = v.InferOutput<typeof podRequest>;

/** `A or B other than C`; `other than C` */
export function namedIn(list: readonly string[], separator: string): string {
  const without = list.filter((one) => one.startsWith('!')).map((one) => one.slice(1));
  const allowed = list.filter((one) => !one.startsWith('!')).join(separator);
  return [allowed, ...(without.length > 0 ? [`other than ${without.join(', ')}`] : [])].filter(Boolean).join(' ');
}

/** What was chosen for a container's compute; absent: the GPU's policy, no priority, a weight as large as its
 * percent. */
export type ComputeChoice = {
  readonly policy?: ComputePolicy;
  readonly priority?: Priority;
  readonly weight?: number;
};

/** Bytes of this GPU that the share reserves. More than the GPU has means that the GPU cannot hold it. */
export function resolveShare(share: GpuShare, gpuTotalBytes: number): number {
  return resolveAmount(share.memory, gpuTotalBytes);
}

/** Bytes of this GPU at which the share is enforced. */
export function resolveLimit(share: GpuShare, gpuTotalBytes: number): number {
  return resolveAmount(share.memoryLimit ?? share.memory, gpuTotalBytes);
}

/**
 * `units` follow cGPU: a GPU of T MiB has floor(T / unit) units, and n of them are floor(T x n / units) MiB, so that
 * all units together are the whole GPU. `percent` follows MetaGPU: floor(T / 100) x n MiB, rounded down where n has
 * decimals. Both in MiB, as those count.
 */
function resolveAmount(amount: MemoryAmount, gpuTotalBytes: number): number {
  const totalMiB = Math.floor(gpuTotalBytes / MIB);
  switch (amount.kind) {
    case 'bytes':
      return amount.bytes;
    case 'whole':
      return gpuTotalBytes;
    case 'percent':
      // In hundredths, which are whole numbers: a product of decimals can fall short of a whole MiB.
      return Math.floor((Math.floor(totalMiB / 100) * Math.round(amount.percent * 100)) / 100) * MIB;
    case 'units': {
      const units = Math.floor(totalMiB / (amount.unitBytes / MIB));
      // A GPU smaller than one unit: the literal size, which is more than the GPU has.
      if (units === 0) return amount.units * amount.unitBytes;
      return Math.floor((totalMiB * amount.units) / units) * MIB;
    }
  }
}

/** CUDA contexts take some 100 to 600 MiB of a GPU, by model and driver. */
const SMALL_BYTES = 512 * MIB;

/** A warning about a share in which few programs can start; undefined: none. */
export function smallShareWarning(bytesPerGpu: number): string | undefined {
  if (bytesPerGpu >= SMALL_BYTES) return undefined;
  const mib = Math.floor(bytesPerGpu / MIB);
  return `${mib} MiB of a GPU may not hold a CUDA context (100 to 600 MiB by GPU and driver): most programs need 512 MiB or more`;
}

/** More than any GPU has. */
const LARGE_BYTES = 2 ** 40;

/** A warning about a share that waits for ever, as where units were meant to be MiB; undefined: none. */
export function largeShareWarning(bytesPerGpu: number): string | undefined {
  if (bytesPerGpu < LARGE_BYTES) return undefined;
  return `${Math.floor(bytesPerGpu / MIB)} MiB are more than any GPU has: the pod will wait`;
}

/** Bytes to count for an amount before its GPU is known, or undefined where it depends on the GPU. */
export function nominalBytes(amount: MemoryAmount): number | undefined {
  if (amount.kind === 'bytes') return amount.bytes;
  return amount.kind === 'units' ? amount.units * amount.unitBytes : undefined;
}
