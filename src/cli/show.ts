// `cotenant top` and `set`: watching this machine's agent, and changing a grant while it is in use.
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer } from '../agent/admin.ts';
import { MIB, parseWhole } from '../request/quantity.ts';
import { MOST_MEMORY_BYTES } from '../request/request.ts';
import { ask, errorOf, readView, STATE_OPTION, stateFolder, tenantsNamed } from './agent-client.ts';
import { type Command, text, UsageError } from './command.ts';
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

export const set: Command = {
  name: 'set',
  summary: 'Gives a tenant of this node another amount of GPU memory; its processes follow at their next request.',
  usage: 'TENANT-OR-ID --gpu-memory SIZE',
  options: {
    'gpu-memory': { type: 'string', short: 'm', value: 'SIZE', help: 'memory on each of its cards, whole MiB' },
    ...STATE_OPTION,
  },
  notes: 'Shrinking below what is in use refuses further requests; nothing is taken away.',
  async run(parsed) {
    const [name, ...rest] = parsed.words;
    const memory = text(parsed, 'gpu-memory');
    if (name === undefined || rest.length > 0 || memory === undefined)
      throw new UsageError('want one tenant, by name or id, and --gpu-memory');
    const bytes = parseWhole(memory, MIB, MOST_MEMORY_BYTES);
    if (!bytes.ok) throw new UsageError(`--gpu-memory ${memory} ${bytes.wrong}; ${bytes.right}`);
    if (bytes.value % MIB !== 0) throw new UsageError(`--gpu-memory ${memory}: want whole MiB`);
    const folder = stateFolder(parsed);
    const ids = tenantsNamed(await readView(folder), name);
    const [id = name] = ids;
    if (ids.length > 1) throw new UsageError(`${ids.length} tenants are called ${name}; say which: ${ids.join(', ')}`);
    const answer = await ask(folder, 'PATCH', `/v1/grants/${encodeURIComponent(id)}`, {
      memoryBytes: bytes.value,
    });
    if (answer.status !== 200) {
      console.error(`cotenant: ${errorOf(answer)}`);
      return 1;
    }
    for (const card of (answer.body as GrantAnswer).cards)
      console.log(`${name}: ${card.memoryBytes / MIB} MiB on ${card.gpuUuid}`);
    return 0;
  },
};
