// compute.json in the state folder: the compute policies of this node and its GPUs that `cotenant set` changed, for the
// next agent.
import { join } from 'node:path';
import * as v from 'valibot';
import { COMPUTE_POLICIES } from '../../api/request.ts';
import type { Logger } from '../../common/logger.ts';
import { oneOf, whole } from '../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';

const nodeCompute = v.object({
  policy: v.exactOptional(oneOf(COMPUTE_POLICIES)),
  gpus: v.record(v.string(), oneOf(COMPUTE_POLICIES)),
  highCapPercent: v.exactOptional(whole(1, 100)),
});
/** Where a field is absent, the agent's settings and the Node's label apply. */
export type NodeCompute = v.InferOutput<typeof nodeCompute>;
const NOTHING_SET: NodeCompute = { gpus: {} };

export const COMPUTE_FORMAT: StateFormat<NodeCompute> = { version: 1, schema: nodeCompute };

type ComputeStore = {
  get(): NodeCompute;
  /** Throws if the file cannot be written; the stored policies then stay as they were. */
  put(compute: NodeCompute): void;
};

export function openComputeStore(stateFolder: string, log: Pick<Logger, 'warn'>): ComputeStore {
  const lost = 'compute policies that were set on this node no longer apply';
  const file = openStateFile(join(stateFolder, 'compute.json'), COMPUTE_FORMAT, { lost, log });
  let current = file.found ?? NOTHING_SET;
  return {
    get: () => current,
    put(compute) {
      file.write(compute);
      current = compute;
    },
  };
}
