// Xids of GPUs, counted from sample to sample: pure. Bounded, whatever the driver comes up with.

import type { Sample, SampledGpu } from '../sampling/sample.ts';

/**
 * After these the whole GPU is to be reset or the node restarted, whichever process caused them: NVIDIA's own Xid
 * catalog says RESET_GPU, RESTART_BM or a workflow that ends so. docs/operate/faults.md says what each means.
 */
export const RESETTING_XIDS: readonly number[] = [
  46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158,
];
/** Memory that fails, and one process at most with it. */
export const CONTAINED_XIDS: readonly number[] = [63, 92, 94];

export type XidTotal = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  /** A number, or `other` beyond the most kinds that are counted apart. */
  readonly xid: string;
  readonly count: number;
  /** Wall clock of the last one; undefined: none yet. */
  readonly lastMs: number | undefined;
};

/** Kinds that are counted apart on one GPU. */
const MOST_KINDS = 48;
const OTHER = 'other';

const gpuKey = (gpuUuid: string, gpuIndex: number): string => `${gpuIndex} ${gpuUuid}`;
/** Those that alerts are about stand with 0 from the start, so that the first one is an increase. */
export function countXids(before: readonly XidTotal[], sample: Sample): readonly XidTotal[] {
  const raised = sample.xids ?? [];
  const stands = new Set(before.map(({ gpuUuid, gpuIndex }) => gpuKey(gpuUuid, gpuIndex)));
  if (raised.length === 0 && sample.gpus.every((gpu) => !gpu.reportsXids || stands.has(gpuKey(gpu.uuid, gpu.index))))
    return before;
  const totals = new Map(before.map((total) => [`${total.gpuUuid} ${total.xid}`, total]));
  const kinds = new Map<string, number>();
  const add = ({ uuid: gpuUuid, index: gpuIndex }: SampledGpu, code: number, count: number, atMs?: number) => {
    const full = (kinds.get(gpuUuid) ?? 0) >= MOST_KINDS;
    const xid = full && !totals.has(`${gpuUuid} ${code}`) ? OTHER : String(code);
    const key = `${gpuUuid} ${xid}`;
    const last = totals.get(key);
    if (!last) kinds.set(gpuUuid, (kinds.get(gpuUuid) ?? 0) + 1);
    const lastMs = atMs === undefined ? last?.lastMs : Math.max(atMs, last?.lastMs ?? 0);
    totals.set(key, { gpuUuid, gpuIndex, xid, count: (last?.count ?? 0) + count, lastMs });
  };
  for (const { gpuUuid } of before) kinds.set(gpuUuid, (kinds.get(gpuUuid) ?? 0) + 1);
  for (const gpu of sample.gpus)
    for (const code of gpu.reportsXids ? [...RESETTING_XIDS, ...CONTAINED_XIDS] : []) add(gpu, code, 0);
  for (const { gpu, xid, count, atMs } of raised) {
    const on = sample.gpus.find(({ index }) => index === gpu);
    if (on) add(on, xid, count, atMs);
  }
  return [...totals.values()];
}
