// `cotenant driver`: makes this machine's agent release or reopen the driver, or clears the Xid fault of a GPU.
import type { DriverState } from '../../../agent/os/driver-handle.ts';
import type { GpuFault } from '../../../policy/gpu-health.ts';
import { demand, STATE_OPTION, stateFolder } from '../../lib/agent-client.ts';
import { type Command, Refused, UsageError } from '../../lib/command.ts';

const ACTIONS = ['release', 'take', 'status'];
const CLEAR = 'clear-xid';

export const driver: Command = {
  name: 'driver',
  summary: "Makes this machine's agent release the NVIDIA driver for an upgrade, or open it again.",
  usage: 'release | take | status | clear-xid GPU',
  options: STATE_OPTION,
  notes:
    'While it is released no container is watched or stopped; the interposer still enforces limits. clear-xid puts a GPU back into use after an Xid; GPU is its UUID or index.',
  takesOperands: true,
  async run(parsed) {
    const [action = '', ...rest] = parsed.operands;
    const folder = stateFolder(parsed);
    if (action === CLEAR) return clear(folder, rest);
    if (!ACTIONS.includes(action) || rest.length > 0)
      throw new UsageError(`want one of ${ACTIONS.join(', ')}, or ${CLEAR} and a GPU`);
    const [method, path] = action === 'status' ? ['GET', '/v1/driver'] : ['POST', `/v1/driver/${action}`];
    const { releasedMs, held } = await demand<DriverState>(folder, method, path);
    if (releasedMs === undefined) {
      console.log('the agent has the driver open');
      return 0;
    }
    console.log(`released since ${new Date(releasedMs).toISOString()}; no container is watched or stopped`);
    if (held > 0) throw new Refused(`${held} of its processes hang in the driver and still have it open`);
    return 0;
  },
};

async function clear(folder: string, [gpu, ...rest]: readonly string[]): Promise<number> {
  if (gpu === undefined || rest.length > 0) throw new UsageError(`${CLEAR}: want one GPU, by UUID or index`);
  const { gpuUuid, xid, atMs } = await demand<GpuFault>(folder, 'POST', `/v1/driver/${CLEAR}`, { gpu });
  console.log(`${gpuUuid} is in use again: Xid ${xid} of ${new Date(atMs).toISOString()} is cleared`);
  return 0;
}
