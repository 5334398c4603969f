// A GPU as placement sees it, what one container is granted of it, and the sum of such grants. Plain values; placement
// decisions are in src/placement.
import * as v from 'valibot';

/** `GPU-` and a UUID in lower case, as NVML writes it. */
const GPU_UUID = /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
export const gpuUuid = v.pipe(v.string(), v.regex(GPU_UUID, 'the UUID of a GPU'));

/** `exclusive`: only for a container that asks for all its memory. `none`: for no container with a share; it is left to
 * other software. */
export const GPU_MODES = ['exclusive', 'none'] as const;
export type GpuMode = (typeof GPU_MODES)[number];

export type PlaceableGpu = {
  readonly gpuUuid: string;
  readonly model: string;
  /** Memory that the driver leaves to programs. */
  readonly usableBytes: number;
  readonly healthy: boolean;
  /** Why it is not healthy, a clause; absent: it is healthy, or the reason is unknown. */
  readonly fault?: string;
  /** Why a limit on it would not hold, a clause: it accepts no new containers until then. Absent: limits hold. */
  readonly unfenced?: string;
  /** Absent: it is shared. */
  readonly mode?: GpuMode;
  /** Why it accepts no new containers now, a clause; absent: it does. */
  readonly blocked?: string;
  /** Sum of the grants on it. */
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  readonly tenants: number;
};

/** What keeps new containers off a GPU. */
export type GpuStanding = Pick<PlaceableGpu, 'fault' | 'unfenced' | 'mode'>;

export type GpuGrant = {
  readonly gpuUuid: string;
  /** Counted against the GPU. */
  readonly memoryBytes: number;
  /** Enforced on the container. */
  readonly limitBytes: number;
  /** After the grant was made smaller: what the container still holds, more than `limitBytes`. */
  readonly heldBytes?: number;
  /** Percent of this GPU's compute; 0: no limit was requested. */
  readonly coresPercent: number;
  /** What it may use while other containers leave it idle; absent: what the compute policy says. */
  readonly coresLimitPercent?: number;
};

/** What several containers need of one GPU at the same time. */
export type GpuDemand = {
  readonly memoryBytes: number;
  readonly coresPercent: number;
  /** Containers on it. */
  readonly tenants: number;
};

/** Memory that the GPU must keep for a grant: more than was granted while the container holds what a smaller grant took
 * away. */
export const countedBytes = (gpu: GpuGrant): number => Math.max(gpu.memoryBytes, gpu.heldBytes ?? 0);
