// `cotenant top`: watching this machine's agent.
import { setTimeout as delay } from 'node:timers/promises';
import { readView, STATE_OPTION, stateFolder } from './agent-client.ts';
import type { Command } from './command.ts';
import { nodeLines } from './table.ts';

export const top: Command = {
  name: 'top',
  summary: 'Shows the same, again every second, until it is interrupted.',
  usage: '',
  options: { ...STATE_OPTION },
  async run(parsed) {
    const folder = stateFolder(parsed);
    const stop = new AbortController();
    process.once('SIGINT', () => stop.abort());
    while (!stop.signal.aborted) {
      const text = nodeLines(await readView(folder)).join('\n');
      process.stdout.write(process.stdout.isTTY ? `\x1b[H\x1b[2J${text}\n` : `${text}\n\n`);
      await delay(1000, undefined, { signal: stop.signal }).catch(() => {});
    }
    return 0;
  },
};
