// `cotenant driver`: has this machine's agent give the driver up, or take it again.
import type { DriverState } from '../agent/driver.ts';
import { ask, errorOf, STATE_OPTION, stateFolder } from './agent-client.ts';
import { type Command, UsageError } from './command.ts';

const WORDS = ['release', 'take', 'status'];

export const driver: Command = {
  name: 'driver',
  summary: "Has this machine's agent give the driver up for an upgrade of it, or take it again.",
  usage: 'release | take | status',
  options: { ...STATE_OPTION },
  notes: 'While it is given up nobody is watched or stopped; limits that the interposer holds go on.',
  async run(parsed) {
    const [word = '', ...rest] = parsed.words;
    if (!WORDS.includes(word) || rest.length > 0) throw new UsageError(`want one of ${WORDS.join(', ')}`);
    const folder = stateFolder(parsed);
    const answer =
      word === 'status' ? await ask(folder, 'GET', '/v1/driver') : await ask(folder, 'POST', `/v1/driver/${word}`);
    if (answer.status !== 200) {
      console.error(`cotenant: ${errorOf(answer)}`);
      return 1;
    }
    const { releasedMs, held } = answer.body as DriverState;
    if (releasedMs === undefined) {
      console.log('the agent has the driver');
      return 0;
    }
    console.log(`given up since ${new Date(releasedMs).toISOString()}; nobody is watched or stopped`);
    if (held === 0) return 0;
    console.error(`cotenant: ${held} of its processes hang in the driver and hold it all the same`);
    return 1;
  },
};
