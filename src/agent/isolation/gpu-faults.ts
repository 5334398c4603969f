// GPUs that an Xid made unhealthy, across samples and restarts: gpu-faults.json in the state folder, and the log lines
// when a fault begins or ends. src/policy/gpu-health.ts decides which Xids count and what proves a reset.
import { join } from 'node:path';
import * as v from 'valibot';
import { readBootId } from '../../common/boot-id.ts';
import type { Logger } from '../../common/logger.ts';
import { listOf } from '../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { faultText, type GpuFault, parseXidList, updateFaults } from '../../policy/gpu-health.ts';
import type { Sample } from '../sampling/sample.ts';

type GpuFaults = {
  see(sample: Sample): void;
  of(gpuUuid: string): GpuFault | undefined;
  /** The reason as a clause; undefined: the GPU has no fault. */
  textOf(gpuUuid: string): string | undefined;
  /** By an operator's command; undefined: the GPU had no fault. */
  clear(gpuUuid: string): GpuFault | undefined;
  list(): readonly GpuFault[];
};

type GpuFaultsOptions = {
  readonly stateFolder: string;
  /** In the form that `parseXidList` reads. */
  readonly unhealthyXids: string;
  readonly log: Pick<Logger, 'warn'>;
  /** Identifies the boot of the machine. */
  readonly bootId?: string;
};

/** More than a node can have GPUs. */
const MOST = 256;

const count = v.pipe(v.number(), v.minValue(0), v.finite());
const fault = v.object({
  gpuUuid: v.string(),
  xid: count,
  atMs: v.pipe(count, v.maxValue(8.64e15)),
  bootId: v.string(),
  driverVersion: v.string(),
  lost: v.boolean(),
  counts: v.record(v.string(), count),
});

export const FAULTS_FORMAT: StateFormat<{ readonly faults: readonly GpuFault[] }> = {
  version: 1,
  schema: v.object({ faults: listOf(fault, 0, MOST) }),
};

export function openGpuFaults(options: GpuFaultsOptions): GpuFaults {
  const { stateFolder, unhealthyXids, log, bootId = readBootId() } = options;
  const xids = parseXidList(unhealthyXids);
  if (!xids.ok) throw new Error(`unhealthyXids: ${xids.error}`);
  const lost = 'GPUs that an Xid made unhealthy get new containers';
  const file = openStateFile(join(stateFolder, 'gpu-faults.json'), FAULTS_FORMAT, { lost, log });
  let faults: readonly GpuFault[] = file.found?.faults ?? [];
  /** Without the counters: their growth is not worth a write, because smaller stored values still show a reset. */
  const keyOf = (list: readonly GpuFault[]) => JSON.stringify(list.map(({ counts: _, ...fault }) => fault));
  let kept = keyOf(faults);

  const keep = () => {
    const key = keyOf(faults);
    if (key === kept) return;
    try {
      file.write({ faults });
      kept = key;
    } catch (error) {
      log.warn(`cannot store GPU faults for the next agent: ${(error as Error).message}`);
    }
  };

  const of = (gpuUuid: string) => faults.find((fault) => fault.gpuUuid === gpuUuid);
  return {
    of,
    textOf(gpuUuid) {
      const fault = of(gpuUuid);
      return fault && faultText(fault);
    },
    see(sample) {
      if (sample.problem !== undefined) return;
      const { driverVersion, gpus } = sample;
      const raised = (sample.xids ?? []).flatMap(({ gpu, xid, atMs }) => {
        const gpuUuid = gpus.find(({ index }) => index === gpu)?.uuid;
        return gpuUuid === undefined ? [] : [{ gpuUuid, xid, atMs }];
      });
      const before = faults;
      const next = updateFaults(before, { bootId, driverVersion, gpus, raised }, xids.value);
      faults = next.faults;
      for (const { fault, why } of next.ended)
        log.warn(`${fault.gpuUuid} gets new containers again after Xid ${fault.xid}: ${why}`);
      for (const fault of faults) {
        if (before.some(({ gpuUuid, atMs }) => gpuUuid === fault.gpuUuid && atMs === fault.atMs)) continue;
        log.warn(`${fault.gpuUuid} gets no new containers: ${faultText(fault)}; running containers are left alone`);
      }
      keep();
    },
    clear(gpuUuid) {
      const cleared = of(gpuUuid);
      if (!cleared) return undefined;
      faults = faults.filter((fault) => fault !== cleared);
      log.warn(`${gpuUuid} gets new containers again after Xid ${cleared.xid}: cleared by command`);
      keep();
      return cleared;
    },
    list: () => faults,
  };
}
