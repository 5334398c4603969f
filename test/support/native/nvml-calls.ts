// Counts calls of NVML by name: a library in the driver's place (test/bench/drivers/counting.c) in front of a simulated
// node's, for whichever processes open it.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, type SimulatedNode, type Teardown, temporaryFolder } from './node.ts';

const RECORD_BYTES = 64;

export type NvmlCalls = {
  readonly library: string;
  readonly env: Readonly<Record<string, string>>;
  /** By name, those that were made. */
  read(): ReadonlyMap<string, number>;
};

export function countNvmlCalls(scope: Teardown, node: SimulatedNode): NvmlCalls {
  const file = join(temporaryFolder(scope), 'calls');
  return {
    library: join(BUILD, 'bench/counting/libnvidia-ml.so.1'),
    env: { COTENANT_BENCH_NVML: join(node.lib, 'libnvidia-ml.so.1'), COTENANT_BENCH_CALLS: file },
    read() {
      const records = existsSync(file) ? readFileSync(file) : Buffer.alloc(0);
      const calls = new Map<string, number>();
      for (let at = 0; at < records.length; at += RECORD_BYTES) {
        const count = Number(records.readBigUInt64LE(at));
        const name = records.toString('latin1', at + 8, at + RECORD_BYTES).replace(/\0+$/, '');
        if (count > 0) calls.set(name, count);
      }
      return calls;
    },
  };
}

/** A thread of the sampler waits for events again and again, whatever else is done: no work of the driver. */
export const isWait = (name: string): boolean => name.startsWith('nvmlEventSetWait');
