// `cotenant driver`: has this machine's agent give the driver up, or take it again, or forgive a GPU its Xid.
import type { DriverState } from '../../agent/os/driver-handle.ts';
import type { GpuFault } from '../../policy/gpu-health.ts';
import { ask, errorOf, STATE_OPTION, stateFolder } from '../lib/agent-client.ts';
import { type Command, UsageError } from '../lib/command.ts';

const WORDS = ['release', 'take', 'status'];
const CLEAR = 'clear-xid';

export const driver: Command = {
  name: 'driver',
  summary: "Makes this machine's agent release the NVIDIA driver for an upgrade, or open it again.",
  usage: 'release | take | status | clear-xid GPU',
  options: { ...STATE_OPTION },
  notes:
    'While it is released no container is watched or stopped; the interposer still enforces limits. clear-xid puts a GPU back into use after an Xid; GPU is its UUID or index.',
  async run(parsed) {
    const [word = '', ...rest] = parsed.words;
    const folder = stateFolder(parsed);
    if (word === CLEAR) return clear(folder, rest);
    if (!WORDS.includes(word) || rest.length > 0)
      throw new UsageError(`want one of ${WORDS.join(', ')}, or ${CLEAR} and a GPU`);
    const answer =
      word === 'status' ? await ask(folder, 'GET', '/v1/driver') : await ask(folder, 'POST', `/v1/driver/${word}`);
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
  console.log(`${gpuUuid} is offered again; Xid ${xid} of ${new Date(atMs).toISOString()} is not held against it`);
  return 0;
}
