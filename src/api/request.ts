// What a container asks for, whatever dialect it was written in, and how much memory that is on a known GPU.
// Owns the value and its arithmetic; reading it from a pod (read.ts) and storing it in one (record.ts) are elsewhere.

import { MIB } from '../common/quantity.ts';
import type { Mode } from '../policy/mode.ts';

export type DialectName = 'cotenant' | 'ack' | 'metagpu';
export type ContainerKind = 'init' | 'sidecar' | 'app';
export type Placement = 'binpack' | 'spread' | 'fragmentation';
export type ComputePolicy = 'average' | 'preemptive' | 'weighted' | 'fixed' | 'soft' | 'native';
export type Priority = 'normal' | 'high';
export type MemoryIsolation = 'on' | 'off';

/** Memory of one GPU. Bytes are whole MiB; `units` and `percent` get their size from the GPU (`resolveShare`). */
export type MemoryAmount =
  | { readonly kind: 'bytes'; readonly bytes: number }
  | { readonly kind: 'units'; readonly units: number; readonly unitBytes: number; readonly rounding: 'cgpu' }
  | { readonly kind: 'percent'; readonly percent: number }
  | { readonly kind: 'whole' };

/** What is needed of one GPU. `memoryLimit` is there only where it is enforced at another amount than is reserved. */
export type GpuShare = {
  readonly memory: MemoryAmount;
  readonly memoryLimit?: MemoryAmount;
  /** Percent of this GPU's compute, 1..100; absent where none was asked for. */
  readonly coresPercent?: number;
  /** What it may have of it while others leave it idle, from `coresPercent` to 100; absent: what the policy says. */
  readonly coresLimitPercent?: number;
};

/** What was chosen for a container's compute; absent: the GPU's policy, no priority, a weight as large as its percent. */
export type ComputeChoice = {
  readonly policy?: ComputePolicy;
  readonly priority?: Priority;
  readonly weight?: number;
};

export type Request = {
  readonly dialect: DialectName;
  /** One entry per GPU, never empty. Shares of one container lie on different GPUs. */
  readonly gpus: readonly GpuShare[];
  readonly memoryIsolation: MemoryIsolation;
  /** The dialect's own names with the text that was written for them; for messages, and to read the request again. */
  readonly asked: Readonly<Record<string, string>>;
};

export type ContainerRequest = Request & { readonly name: string; readonly kind: ContainerKind };

/** A pod that asks for a share: the containers that do (sorted by name, never empty) and what was chosen for the pod. */
export type PodRequest = {
  readonly containers: readonly ContainerRequest[];
  readonly priority: Priority;
  readonly placement?: Placement;
  readonly computePolicy?: ComputePolicy;
  readonly computeWeight?: number;
  /** The mode of enforcement that the namespace's rules have for it; absent: `enforce`. */
  readonly enforcement?: Mode;
  /** Any of these models; empty: any model. */
  readonly gpuModels: readonly string[];
  /** Only among these GPUs; empty: any GPU. */
  readonly gpuUuids: readonly string[];
};

/** Of the weighted policy, and of the choice by tenants. */
export const MOST_WEIGHT = 1000;
/** More GPUs than one node holds; keeps a hostile count from becoming a long list. */
export const MOST_GPUS = 64;
/** 1 PiB: more than a node of 64 GPUs holds, and exact in a JavaScript number. */
export const MOST_MEMORY_BYTES = 2 ** 50;

/** Bytes of this GPU that the share reserves. More than the GPU has means that the GPU cannot hold it. */
export function resolveShare(share: GpuShare, gpuTotalBytes: number): number {
  return resolveAmount(share.memory, gpuTotalBytes);
}

/** Bytes of this GPU at which the share is enforced. */
export function resolveLimit(share: GpuShare, gpuTotalBytes: number): number {
  return resolveAmount(share.memoryLimit ?? share.memory, gpuTotalBytes);
}

/**
 * `units` follow cGPU: a GPU of T MiB has floor(T / unit) units, and n of them are floor(T x n / units) MiB, so that all
 * units together are the whole GPU. `percent` follows MetaGPU: floor(T / 100) x n MiB. Both in MiB, as those count.
 */
function resolveAmount(amount: MemoryAmount, gpuTotalBytes: number): number {
  const totalMiB = Math.floor(gpuTotalBytes / MIB);
  switch (amount.kind) {
    case 'bytes':
      return amount.bytes;
    case 'whole':
      return gpuTotalBytes;
    case 'percent':
      return Math.floor(totalMiB / 100) * amount.percent * MIB;
    case 'units': {
      const units = Math.floor(totalMiB / (amount.unitBytes / MIB));
      // A GPU smaller than one unit: the literal size, which is more than the GPU has.
      if (units === 0) return amount.units * amount.unitBytes;
      return Math.floor((totalMiB * amount.units) / units) * MIB;
    }
  }
}

/** Bytes to count for an amount before its GPU is known, or undefined where only the GPU can tell. */
export function nominalBytes(amount: MemoryAmount): number | undefined {
  if (amount.kind === 'bytes') return amount.bytes;
  return amount.kind === 'units' ? amount.units * amount.unitBytes : undefined;
}
