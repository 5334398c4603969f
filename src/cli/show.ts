// `cotenant top`, `inspect`, `why` and `set`: what the node's agent knows, and changing a grant while it is in use.
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer } from '../agent/admin.ts';
import type { ActionRecord } from '../agent/enforcement/record.ts';
import type { View } from '../agent/view.ts';
import { MIB, parseWhole } from '../request/quantity.ts';
import { MOST_MEMORY_BYTES } from '../request/request.ts';
import { ask, errorOf, readView, STATE_OPTION, stateFolder } from './agent-client.ts';
import { type Command, flag, text, UsageError } from './command.ts';
import { actionRows, cardRows, tenantRows } from './table.ts';

const JSON_OPTION = { json: { type: 'boolean', help: 'as JSON' } } as const;

async function page(folder: string): Promise<string> {
  const view = await readView(folder);
  const head = view.self.up
    ? `driver ${view.driverVersion}, mode ${view.self.mode}`
    : `the driver does not answer: ${view.self.problem}`;
  return [head, '', ...cardRows(view), '', ...tenantRows(view), '', ...actionRows(view, 5)].join('\n');
}

export const inspect: Command = {
  name: 'inspect',
  summary: 'Shows cards, grants, use and what was done, once.',
  usage: '[--json]',
  options: { ...JSON_OPTION, ...STATE_OPTION },
  async run(parsed) {
    const folder = stateFolder(parsed);
    console.log(flag(parsed, 'json') ? JSON.stringify(await readView(folder), null, 2) : await page(folder));
    return 0;
  },
};

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
      const text = await page(folder);
      process.stdout.write(process.stdout.isTTY ? `\x1b[H\x1b[2J${text}\n` : `${text}\n\n`);
      await delay(1000, undefined, { signal: stop.signal }).catch(() => {});
    }
    return 0;
  },
};

export const why: Command = {
  name: 'why',
  summary: 'Says what was done to a tenant of this node, and why.',
  usage: 'TENANT-OR-ID',
  options: { ...JSON_OPTION, ...STATE_OPTION },
  notes:
    'Pods that are pending or refused are explained here once the scheduler is there; until then: kubectl describe pod.',
  async run(parsed) {
    const [name, ...rest] = parsed.words;
    if (name === undefined || rest.length > 0) throw new UsageError('want one tenant, by name or id');
    const folder = stateFolder(parsed);
    const known = tenantsNamed(await readView(folder), name);
    const records = await actionsOn(folder, name);
    if (records.length === 0 && known.length === 0) {
      console.error(`cotenant: no tenant ${name} on this node, and nothing was done to one of that name`);
      return 1;
    }
    if (flag(parsed, 'json')) console.log(JSON.stringify(records, null, 2));
    else if (records.length === 0) console.log(`nothing was done to ${name}`);
    for (const record of flag(parsed, 'json') ? [] : records) {
      console.log(`${new Date(record.atMs).toISOString()} ${record.action}: ${record.message} (${record.result})`);
    }
    return 0;
  },
};

/** Ids of the tenants that somebody calls so; a grant that no sample has seen yet is not among them. */
function tenantsNamed(view: View, name: string): string[] {
  const ids = view.containers.flatMap(({ grantId, namespace, pod }) =>
    [grantId, pod, `${namespace}/${pod}`].includes(name) ? [grantId] : [],
  );
  return [...new Set(ids)];
}

async function actionsOn(folder: string, name: string): Promise<readonly ActionRecord[]> {
  const answer = await ask(folder, 'GET', `/v1/actions?of=${encodeURIComponent(name)}`);
  if (answer.status !== 200) throw new Error(errorOf(answer));
  return answer.body as readonly ActionRecord[];
}

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
