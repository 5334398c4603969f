// Logs once which NVML readings a GPU lacks and what follows: on some machines (unified memory, vGPU guests,
// passed-through GPUs) some never exist. Failed calls are counted by a metric.
import type { Logger } from '../../common/logger.ts';
import { hasAllProcessLists, type Sample, type SampledGpu } from './sample.ts';

/** What failed is no property of the machine, and a driver that failed twice is asked again after up to 8 s. */
const SAMPLES = 12;

/** Each missing reading, with what follows from that. Empty for a GPU that is lost. */
export function missingCapabilities(gpu: SampledGpu): readonly string[] {
  if (!gpu.healthy || gpu.migEnabled || gpu.parent !== undefined) return [];
  return [
    ...(gpu.migModeUnknown ? ['its MIG mode: nothing can be granted on it'] : []),
    ...(gpu.totalBytes === undefined ? ['its memory size: nothing can be granted on it'] : []),
    ...(hasAllProcessLists(gpu)
      ? []
      : ['its processes: containers over their grant are not detected, and only the interposer enforces limits']),
    ...(gpu.hasProcessUtilization
      ? []
      : ['utilization by process: compute shares are not judged, and idle containers are not detected']),
    ...(gpu.utilizationPercent === undefined ? ['its utilization'] : []),
    ...(gpu.eccUncorrectedVolatile === undefined ? ['its memory errors: they are not counted'] : []),
    ...(gpu.powerMilliwatts === undefined ? ['its power draw'] : []),
    ...(gpu.powerLimitMilliwatts === undefined ? ['its power limit'] : []),
    ...(gpu.pcieReceivedBytes === undefined && gpu.nvlinkReceivedBytes === undefined
      ? ['its PCIe and NVLink traffic']
      : []),
    ...(gpu.reportsXids ? [] : ['its Xids: they are not counted and do not make it unhealthy']),
  ];
}

export function createCapabilityLog(log: Pick<Logger, 'info'>): { see(sample: Sample): void } {
  const seen = new Map<string, { readonly text: string; readonly samples: number }>();
  return {
    see(sample) {
      if (sample.problem !== undefined) return;
      for (const gpu of sample.gpus) {
        const text = missingCapabilities(gpu).join('; ');
        const before = seen.get(gpu.uuid);
        const samples = before?.text === text ? before.samples + 1 : 1;
        seen.set(gpu.uuid, { text, samples });
        if (samples === SAMPLES && text !== '') log.info(`${gpu.uuid}: the driver does not report ${text}`);
      }
    },
  };
}
