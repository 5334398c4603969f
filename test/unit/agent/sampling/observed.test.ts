// Lines that the sampler printed on real and simulated drivers (test/gpu/observed, step nvml.sampler), as the agent's
// decoder reads them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { createSampleDecoder } from '../../../../src/agent/sampling/delta-decoder.ts';
import { gpuWithProcessData } from '../../../../src/agent/sampling/sample.ts';

const OBSERVED = join(import.meta.dirname, '../../../gpu/observed');

type Row = { readonly pid: number; readonly holdsBytes: number; readonly driverBytes: number };
type Step = {
  readonly id: string;
  readonly status: string;
  readonly data: { readonly lines: readonly string[]; readonly processes: readonly Row[] };
};

const observed = readdirSync(OBSERVED)
  .filter((name) => name.endsWith('.json'))
  .flatMap((name) => {
    const { steps } = JSON.parse(readFileSync(join(OBSERVED, name), 'utf8')) as { readonly steps: readonly Step[] };
    return steps
      .filter(({ id, status }) => id === 'nvml.sampler' && status === 'answered')
      .map((step) => ({ name, step }));
  });

test('there is a run of the sampler', (t) => {
  t.true(observed.length > 0);
});

for (const { name, step } of observed) {
  test(`the sampler's lines in ${name} name each process with what it holds`, (t) => {
    const decoder = createSampleDecoder();
    for (const line of step.data.lines) {
      const sample = decoder.read(line);
      if (!sample.ok) throw new Error(sample.error);
      const [gpu] = sample.value.gpus;
      t.truthy(gpu && gpuWithProcessData(sample.value, gpu.uuid), 'healthy, with its process lists');
      for (const { pid, holdsBytes, driverBytes } of step.data.processes) {
        const process = sample.value.processes.find((one) => one.pid === pid);
        t.is(process?.gpus[0]?.bytes, driverBytes, `process ${pid}`);
        t.true(driverBytes > holdsBytes, 'with its context');
        t.truthy(process?.startTicks, 'known by its start');
      }
    }
  });
}
