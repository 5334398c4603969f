// What the driver does not tell of a GPU, in words, and what follows from it: said once, for a machine on which something never is
// to be had (unified memory, a guest of vGPU, a GPU handed through) works less well than it looks. Counts of failed calls are the page's.
import { hasAllProcessLists, type Sample, type SampledGpu } from './sample.ts';

/** What failed is no property of the machine, and a driver that failed twice is asked again after up to 8 s. */
const SAMPLES = 12;

/** Clauses behind "the driver does not tell", each with what follows. Of a GPU that is lost nothing is said. */
export function missingCapabilities(gpu: SampledGpu): readonly string[] {
  if (!gpu.healthy || gpu.migEnabled || gpu.parent !== undefined) return [];
  return [
    ...(gpu.migModeUnknown ? ['whether MIG divides it: nothing can be granted on it'] : []),
    ...(gpu.totalBytes === undefined ? ['how much memory it has: nothing can be granted on it'] : []),
    ...(hasAllProcessLists(gpu)
      ? []
      : ['which processes use it: who is over a grant is not seen, and only the interposer holds limits']),
    ...(gpu.hasProcessUtilization
      ? []
      : ['how much compute each process uses: no share is judged, and nobody knows who is idle']),
    ...(gpu.utilizationPercent === undefined ? ['how busy it is'] : []),
    ...(gpu.eccUncorrectedVolatile === undefined ? ['errors of its memory: none is counted'] : []),
    ...(gpu.powerMilliwatts === undefined ? ['what power it draws'] : []),
    ...(gpu.powerLimitMilliwatts === undefined ? ['its power limit'] : []),
    ...(gpu.pcieReceivedBytes === undefined && gpu.nvlinkReceivedBytes === undefined
      ? ['what goes over its links']
      : []),
    ...(gpu.reportsXids ? [] : ['its Xids: they are neither counted nor held against it']),
  ];
}

export function createCapabilityLog(onChange: (text: string) => void): { see(sample: Sample): void } {
  const seen = new Map<string, { readonly text: string; readonly samples: number }>();
  return {
    see(sample) {
      if (sample.problem !== undefined) return;
      for (const gpu of sample.gpus) {
        const text = missingCapabilities(gpu).join('; ');
        const before = seen.get(gpu.uuid);
        const samples = before?.text === text ? before.samples + 1 : 1;
        seen.set(gpu.uuid, { text, samples });
        if (samples === SAMPLES && text !== '') onChange(`${gpu.uuid}: the driver does not tell ${text}`);
      }
    },
  };
}
