// A GPU as placement sees it, and what one container is granted of it. Plain values; who gets what is decided in place.ts and
// place-pod.ts.

export type PlaceableGpu = {
  readonly gpuUuid: string;
  readonly model: string;
  /** What the driver leaves to programs. */
  readonly usableBytes: number;
  readonly healthy: boolean;
  /** Why it is not healthy, a clause; absent: it is, or nobody knows more. */
  readonly fault?: string;
  /** Why a limit on it would not hold: it takes nobody until that is mended. Absent: it holds. */
  readonly unfenced?: string;
  /** Takes nobody until this has gone, a clause; absent: it is open. */
  readonly closed?: string;
  /** Sum of what is granted on it already. */
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  readonly tenants: number;
};

/** What a pod, or several, needs of one GPU at the same time. */
export type GpuNeed = {
  readonly memoryBytes: number;
  readonly coresPercent: number;
  /** Containers on it. */
  readonly tenants: number;
};

/** What keeps others off a GPU. */
export type GpuStanding = Pick<PlaceableGpu, 'fault' | 'unfenced'>;

export type GpuGrant = {
  readonly gpuUuid: string;
  /** Counted against the GPU. */
  readonly memoryBytes: number;
  /** Enforced on the container. */
  readonly limitBytes: number;
  /** After the grant was made smaller: what its holder has still, more than `limitBytes`. */
  readonly heldBytes?: number;
  /** Percent of this GPU's compute; 0 = no limit was asked for. */
  readonly coresPercent: number;
  /** What it may have of it while others leave it idle; absent: what the policy says. */
  readonly coresLimitPercent?: number;
};

/** What the GPU must keep for it: more than it was granted while it holds what a smaller grant took away. */
export const countedBytes = (gpu: GpuGrant): number => Math.max(gpu.memoryBytes, gpu.heldBytes ?? 0);
