// `cotenant driver`: makes this machine's agent release or reopen the driver, or clears the Xid fault of a GPU.
import type { DriverState } from '../../agent/os/driver-handle.ts';
import type { GpuFault } from '../../policy/gpu-health.ts';
import { ask, errorOf, STATE_OPTION, stateFolder } from '../lib/agent-client.ts';
import { type Command, UsageError } from '../lib/command.ts';

const ACTIONS = ['release', 'take', 'status'];
const CLEAR = 'clear-xid';

export const driver: Command = {
  name: 'driver',
  summary: "Makes this machine's agent release the NVIDIA driver for an upgrade, or open it again.",
  usage: 'release | take | status | clear-xid GPU',
  options: { ...STATE_OPTION },
  notes:
    'While it is released no container is watched or stopped; the interposer still enforces limits. clear-xid puts a GPU back into use after an Xid; GPU is its UUID or index.',
  async run(parsed) {
    const [action = '', ...rest] = parsed.words;
    const folder = stateFolder(parsed);
    if (action === CLEAR) return clear(folder, rest);
    if (!ACTIONS.includes(action) || rest.length > 0)
      throw new UsageError(`want one of ${ACTIONS.join(', ')}, or ${CLEAR} and a GPU`);
    const answer =
      action === 'status' ? await ask(folder, 'GET', '/v1/driver') : await ask(folder, 'POST', `/v1/driver/${action}`);
    if (answer.status !== 200) {
      console.error(`cotenant: ${errorOf(answer)}`);
      return 1;
    }
    const { releasedMs, held } = answer.body as DriverState;
    if (releasedMs === undefined) {
      console.log('the agent has the driver open');
      return 0;
    }
    console.log(`released since ${new Date(releasedMs).toISOString()}; no container is watched or stopped`);
    if (held === 0) return 0;
    console.error(`cotenant: ${held} of its processes hang in the driver and still have it open`);
    return 1;
  },
};

async function clear(folder: string, [gpu, ...rest]: readonly string[]): Promise<number> {
  if (gpu === undefined || rest.length > 0) throw new UsageError(`${CLEAR}: want one GPU, by UUID or index`);
  const answer = await ask(folder, 'POST', `/v1/driver/${CLEAR}`, { gpu });
  if (answer.status !== 200) {
    console.error(`cotenant: ${errorOf(answer)}`);
    return 1;
  }
  const { gpuUuid, xid, atMs } = answer.body as Pick<GpuFault, 'gpuUuid' | 'xid' | 'atMs'>;
  console.log(`${gpuUuid} is in use again: Xid ${xid} of ${new Date(atMs).toISOString()} is cleared`);
  return 0;
}
