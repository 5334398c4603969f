// What `cotenant set` said of this node's compute, in the state folder: it outlives the agent. Owns what the file says.
import { join } from 'node:path';
import { COMPUTE_POLICIES, type ComputePolicy } from '../../api/request.ts';
import { field, isObject, isWithin } from '../../common/json.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';

export type NodeCompute = {
  readonly policy?: ComputePolicy;
  readonly gpus: Readonly<Record<string, ComputePolicy>>;
  readonly highCapPercent?: number;
};
export const NOTHING_SET: NodeCompute = { gpus: {} };

const isPolicy = (given: unknown): given is ComputePolicy => COMPUTE_POLICIES.some((name) => name === given);

export const COMPUTE_FORMAT: StateFormat<NodeCompute> = {
  version: 1,
  read(value) {
    const [policy, gpus, cap] = ['policy', 'gpus', 'highCapPercent'].map((key) => field(value, key));
    if (policy !== undefined && !isPolicy(policy)) return { wrong: 'its policy is none' };
    if (!isObject(gpus) || !Object.values(gpus).every(isPolicy)) return { wrong: 'its GPUs are no policies' };
    if (cap !== undefined && !isWithin(cap, 1, 100)) return { wrong: 'its highCapPercent is no percentage' };
    return {
      ...(policy && { policy }),
      gpus: gpus as Readonly<Record<string, ComputePolicy>>,
      ...(cap !== undefined && { highCapPercent: cap }),
    };
  },
};

export type ComputeStore = {
  get(): NodeCompute;
  /** Throws where it cannot be kept: nothing has changed then. */
  put(compute: NodeCompute): void;
};

export function openComputeStore(stateFolder: string, onProblem: (text: string) => void): ComputeStore {
  const lost = 'what was set of this node and its GPUs does not hold';
  const file = openStateFile(join(stateFolder, 'compute.json'), COMPUTE_FORMAT, { lost, onProblem });
  let held = file.found ?? NOTHING_SET;
  return {
    get: () => held,
    put(compute) {
      file.write(compute);
      held = compute;
    },
  };
}
