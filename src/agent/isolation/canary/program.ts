// Runs the canary's program, cotenant-canary, once, and reads what it prints.
import { dirname } from 'node:path';
import { type CanaryFacts, type CanaryRun, WITHIN_BYTES } from '../../../policy/isolation-check.ts';
import type { HelperRunner } from '../../os/helper-process.ts';

/** Undefined: the driver was released meanwhile. */
export type RunCanary = (run: {
  readonly gpuUuid: string;
  readonly beyondBytes: number;
  /** Shared objects, separated by blanks; empty: none. */
  readonly preload: string;
  /** Folder of the cgroup (unified hierarchy) that it enters first. */
  readonly group?: string;
}) => Promise<CanaryRun | undefined>;

const TIMEOUT_MS = 20_000;
/** The name by which programs load the driver; a full path would bypass a preloaded interposer. */
const DRIVER = 'libcuda.so.1';

export const canaryProgram =
  (tools: HelperRunner, cudaLibrary: string): RunCanary =>
  async ({ gpuUuid, beyondBytes, preload, group }) => {
    const { LD_PRELOAD: _, LD_LIBRARY_PATH: inherited = '', ...env } = process.env;
    const folders = [...(cudaLibrary.includes('/') ? [dirname(cudaLibrary)] : []), ...(inherited ? [inherited] : [])];
    const args = ['--within', String(WITHIN_BYTES), '--beyond', String(beyondBytes), '--cuda', DRIVER];
    const answer = await tools.run({
      program: 'cotenant-canary',
      args: group === undefined ? args : [...args, '--group', group],
      env: {
        ...env,
        CUDA_VISIBLE_DEVICES: gpuUuid,
        ...(folders.length > 0 && { LD_LIBRARY_PATH: folders.join(':') }),
        ...(preload && { LD_PRELOAD: preload }),
      },
      timeoutMs: TIMEOUT_MS,
    });
    if (!answer) return undefined;
    try {
      return JSON.parse(answer.stdout) as CanaryFacts;
    } catch {
      return { broken: answer.problem ?? 'its output cannot be read' };
    }
  };

/** For a GPU that was not calibrated; contexts of today's GPUs are smaller. */
export const ASSUMED_CONTEXT_BYTES = 1024 ** 3;
