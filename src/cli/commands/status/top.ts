// `cotenant top`: shows this machine's agent every second, with keys for sorting and processes; the screen is in
// output/top-screen.ts.
import { setTimeout as delay } from 'node:timers/promises';
import { readSnapshot, STATE_OPTION, stateFolder } from '../../lib/agent-client.ts';
import { type Command, choice, flag } from '../../lib/command.ts';
import { SORTS, type Sort, topLines } from '../../output/top-screen.ts';

const ROUND_MS = 1000;
/** Without a terminal, or with one that reports no width or 0. */
const WIDTH = 80;
/** Narrower screens show no complete name. */
const LEAST_WIDTH = 40;
const SORT_KEYS: Readonly<Record<string, Sort>> = { c: 'gpu', m: 'memory', s: 'sm', n: 'name' };
const INTERRUPT = '\u0003';

export const top: Command = {
  name: 'top',
  summary: 'Shows GPUs, the containers that use them and their grants, refreshed every second.',
  usage: '[--sort gpu|memory|sm|name] [--processes]',
  options: {
    sort: { value: 'KEY', choices: SORTS, help: 'order: gpu (default), memory, sm or name' },
    processes: { help: 'show single processes below each container' },
    ...STATE_OPTION,
  },
  notes: 'On a terminal: p shows or hides processes; c, m, s and n sort by GPU, memory, SM and name; q ends it.',
  async run(parsed) {
    const folder = stateFolder(parsed);
    const look = { sort: choice(parsed, 'sort', SORTS) ?? 'gpu', processes: flag(parsed, 'processes') };
    const stop = new AbortController();
    let pause = new AbortController();
    process.once('SIGINT', () => stop.abort());
    const release = onKeys((key) => {
      if (key === 'q' || key === INTERRUPT) stop.abort();
      if (key === 'p') look.processes = !look.processes;
      look.sort = SORT_KEYS[key] ?? look.sort;
      pause.abort();
    });
    try {
      while (!stop.signal.aborted) {
        pause = new AbortController();
        const width = Math.max(LEAST_WIDTH, process.stdout.columns || WIDTH);
        const { isTTY, rows } = process.stdout;
        const size = isTTY && rows > 0 ? { width, height: rows } : { width };
        const shown = topLines(await readSnapshot(folder), { ...look, ...size }).join('\n');
        process.stdout.write(isTTY ? `\x1b[H\x1b[2J${shown}\n` : `${shown}\n\n`);
        const signal = AbortSignal.any([stop.signal, pause.signal]);
        await delay(ROUND_MS, undefined, { signal }).catch(() => {});
      }
    } finally {
      release();
    }
    return 0;
  },
};

/** Reads single keys from the terminal, without a newline; no keys if standard input is not a terminal. */
function onKeys(pressed: (key: string) => void): () => void {
  const { stdin, stdout } = process;
  if (!stdin.isTTY || !stdout.isTTY) return () => {};
  stdin.setRawMode(true);
  stdin.setEncoding('utf8');
  const each = (keys: string) => {
    for (const key of keys) pressed(key);
  };
  stdin.on('data', each);
  return () => {
    stdin.off('data', each);
    stdin.setRawMode(false);
    stdin.pause();
  };
}
