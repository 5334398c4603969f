// The sampler as its own process on a simulated node, and functions that wait for a sample that looks as a test wants.
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { ExecutionContext } from 'ava';
import type { SampledGpu, Sample as WholeSample } from '../../../src/agent/sampling/sample.ts';
import { BUILD, environment, type SimulatedNode } from '../../support/native/node.ts';
import { sampleReader } from '../../support/product/sample.ts';

export type Sample = Omit<WholeSample, 'gpus'> & {
  readonly gpus: readonly (SampledGpu & Readonly<Record<string, unknown>>)[];
};

/** A sampler of this node, and functions to wait for its output. */
export function follow(
  t: ExecutionContext,
  node: SimulatedNode,
  gpus: number | undefined,
  env: Record<string, string> = {},
) {
  const paces = ['--interval-ms', '50', '--utilization-ms', '0', '--readings-ms', '250'];
  const args = [...paces, '--library', join(node.lib, 'libnvidia-ml.so.1')];
  const child = spawn(join(BUILD, 'cotenant-sampler'), args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: environment(env),
  });
  t.teardown(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const seen = { rounds: 0 };
  const read = sampleReader();
  /** The first sample from now on that looks so; every line on the way is one that the agent takes. */
  const until = async (looks: (sample: Sample) => boolean, what: string): Promise<Sample> => {
    for (const deadline = Date.now() + 30_000; Date.now() < deadline; ) {
      const { value, done } = await lines.next();
      if (done) throw new Error(`the sampler ended before ${what}`);
      const sample: Sample = read(String(value));
      if (gpus !== undefined) t.is(sample.gpus.length, gpus);
      t.true(sample.round > seen.rounds, 'rounds are counted');
      seen.rounds = sample.round;
      if (looks(sample)) return sample;
    }
    throw new Error(`not within 30 s: ${what}`);
  };
  return { child, until, seen };
}

/** The Xids of a sample: GPU, number, how often. */
export const xidsOf = (sample: Sample) => (sample.xids ?? []).map(({ gpu, xid, count }) => [gpu, xid, count]);
