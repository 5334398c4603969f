// Settings of isolation: what is measured and tried on each GPU, and which Xids make a GPU unhealthy.
import * as v from 'valibot';
import { GPU_MODES, gpuUuid } from '../../api/gpu.ts';
import { isObject } from '../../common/json.ts';
import { nonEmpty, type SettingsOf, whole } from '../../common/schema.ts';
import { DEFAULT_XID_LIST, parseXidList, XID_LIST } from '../../policy/gpu-health.ts';

const XIDS_WANTED = "Xids with commas (default, N, -N), none of them one that a tenant's program raises";

/** valibot accepts a list as a record; `isObject` does not. */
const GpuModes = v.pipe(
  v.custom<Record<string, unknown>>(isObject, 'a map from the UUID of a GPU to exclusive or none'),
  v.record(gpuUuid, v.picklist(GPU_MODES, `one of ${GPU_MODES.join(', ')}`)),
);

export const ISOLATION_ENTRIES = {
  /** GPUs that are not shared, by UUID. */
  gpuModes: v.optional(GpuModes, {}),
  /** Measures on each GPU what a context costs, with a process of its own. */
  calibrate: v.optional(v.boolean(), true),
  /** Tries with a process of its own on each GPU whether the interposer enforces a grant. */
  canary: v.optional(v.boolean(), true),
  /** Sets the driver's own memory limits for grants, where the driver has them. */
  driverLimits: v.optional(v.boolean(), true),
  cudaLibrary: v.optional(nonEmpty('a library name or path'), 'libcuda.so.1'),
  /** Xids after which a GPU accepts no new containers until it was reset. */
  unhealthyXids: v.optional(
    v.pipe(
      v.string(XIDS_WANTED),
      v.regex(XID_LIST, XIDS_WANTED),
      v.check((list) => parseXidList(list).ok, XIDS_WANTED),
    ),
    DEFAULT_XID_LIST,
  ),
  /** Number of the interposer's engine that containers run; 0: that of the agent's build. */
  interposerEngine: v.optional(whole(0, 999_999_999), 0),
};

export type IsolationSettings = SettingsOf<typeof ISOLATION_ENTRIES> & {
  readonly stateFolder: string;
  readonly nvmlLibrary: string;
};
