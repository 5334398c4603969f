// Samples from the output of a sampler, parsed as the agent does.

import { createSampleDecoder } from '../../../src/agent/sampling/delta-decoder.ts';
import type { Sample } from '../../../src/agent/sampling/sample.ts';

/** Reads the lines of one sampler; a line that the agent would refuse is an error. */
export function sampleReader(): (line: string) => Sample {
  const reader = createSampleDecoder();
  return (line) => {
    const sample = reader.read(line);
    if (!sample.ok) throw new Error(`the agent refuses what the sampler printed: ${sample.error}: ${line}`);
    return sample.value;
  };
}

/** Of a sampler that ended after its first sample because its standard input was closed. */
export const firstSample = (text: string): Sample => sampleReader()(text);
