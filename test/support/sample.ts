// Samples from what a sampler printed, as the agent reads them.

import { createSampleDecoder } from '../../src/agent/sampling/delta-decoder.ts';
import type { Sample } from '../../src/agent/sampling/sample.ts';

/** A reader of one sampler's lines, for which a line that the agent refuses is an error. */
export function sampleReader(): (line: string) => Sample {
  const reader = createSampleDecoder();
  return (line) => {
    const sample = reader.read(line);
    if ('wrong' in sample) throw new Error(`the agent refuses what the sampler printed: ${sample.wrong}: ${line}`);
    return sample;
  };
}

/** Of a sampler that ended after its first sample, for its standard input was at its end. */
export const firstSample = (text: string): Sample => sampleReader()(text);
