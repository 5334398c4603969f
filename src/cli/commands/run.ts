// `cotenant run`: runs a command with a grant, with the same limits page, usage ledger and agent as a container.
// Forwards signals, ends with the command, and leaves neither grant nor cgroup behind.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer, GrantBody } from '../../agent/admin-api.ts';
import type { ActionRecord } from '../../agent/enforcement/action-record.ts';
import { loadNative } from '../../agent/os/addon.ts';
import { tenantGroup, unifiedMount, unifiedPath } from '../../agent/os/cgroup.ts';
import { type GpuShare, MOST_MEMORY_BYTES, smallShareWarning } from '../../api/request.ts';
import { MIB, parseWhole } from '../../common/quantity.ts';
import { ask, errorOf, STATE_OPTION, stateFolder } from '../lib/agent-client.ts';
import { type Command, flag, type Parsed, text, texts, UsageError, whole } from '../lib/command.ts';

const FORWARDED_SIGNALS: readonly NodeJS.Signals[] = [
  'SIGINT',
  'SIGTERM',
  'SIGHUP',
  'SIGQUIT',
  'SIGUSR1',
  'SIGUSR2',
  'SIGCONT',
];
/** Longest time that a starting agent needs to calibrate its GPUs. */
const START_TIMEOUT_MS = 60_000;

export const run: Command = {
  name: 'run',
  summary: 'Runs a command with a share of a GPU: it sees only that share and cannot exceed it.',
  usage: '--gpu-memory 2Gi [options] -- COMMAND [ARGUMENT ...]',
  options: {
    'gpu-memory': {
      short: 'm',
      value: 'SIZE',
      help: 'GPU memory, contexts included, in total over its GPUs; whole MiB per GPU (2Gi, 513Mi)',
    },
    gpus: { short: 'n', value: 'N', help: 'number of GPUs (default 1)' },
    'gpu-cores': {
      value: 'PERCENT',
      help: 'percent of compute in total; not enforced on GPUs whose policy is native',
    },
    gpu: { multiple: true, value: 'UUID', help: 'only on this GPU; may be given several times' },
    name: { value: 'NAME', help: "name in metrics and tables (default: the command's)" },
    'no-memory-isolation': { help: 'count GPU memory, but refuse no allocation' },
    quiet: { short: 'q', help: 'print only errors' },
    ...STATE_OPTION,
  },
  notes: 'The exit code is that of the command, 128 + N where signal N ended it, 125 if there is no grant.',
  takesOperands: true,
  async run(parsed) {
    const command = parsed.operands;
    if (command.length === 0) throw new UsageError('the command is missing; write it after --');
    const folder = stateFolder(parsed);
    const native = loadNative();
    const self = native.readProcess(process.pid);
    if (!self) throw new Error('/proc cannot be read');
    const shares = sharesOf(parsed);
    const name = text(parsed, 'name') ?? basename(command[0] ?? '');
    const body: GrantBody = {
      name,
      container: basename(command[0] ?? ''),
      shares,
      gpuUuids: texts(parsed, 'gpu'),
      isolateMemory: !flag(parsed, 'no-memory-isolation'),
      pid: process.pid,
      startTicks: self.startTicks,
    };
    const grant = await askForGrant(folder, body);
    if (typeof grant === 'string') {
      console.error(`cotenant: no grant: ${grant}`);
      return 125;
    }
    const print = (line: string) => {
      if (!flag(parsed, 'quiet')) console.error(`cotenant: ${line}`);
    };
    const amounts = grant.gpus.map((gpu) => `${gpu.memoryBytes / MIB} MiB on ${gpu.gpuUuid}`).join(', ');
    print(`${name}: ${amounts}`);
    const small = smallShareWarning(Math.min(...grant.gpus.map((gpu) => gpu.memoryBytes)));
    if (small !== undefined) print(`warning: ${small}`);
    if (shares[0]?.coresPercent !== undefined)
      print(
        `${shares[0].coresPercent} % of each GPU's compute${grant.leased ? '' : ' is recorded, but not enforced: the policy is native'}`,
      );
    try {
      return await runWithGrant(command, grant, folder, print);
    } finally {
      await ask(folder, 'DELETE', `/v1/grants/${grant.id}`).catch(() => {}); // an agent that is away ends the grant when it is back
    }
  },
};

/** Equal shares: amounts are totals over the GPUs. */
export function sharesOf(parsed: Parsed): GpuShare[] {
  const gpus = whole(parsed, 'gpus', 1, 16) ?? 1;
  const memory = text(parsed, 'gpu-memory');
  if (memory === undefined) throw new UsageError('--gpu-memory is missing (a size such as 2Gi)');
  const total = parseWhole(memory, 1, MOST_MEMORY_BYTES);
  if (!total.ok) throw new UsageError(`--gpu-memory ${memory} ${total.error.wrong}; ${total.error.right}, such as 2Gi`);
  const bytes = total.value / gpus;
  if (!Number.isSafeInteger(bytes) || bytes <= 0 || bytes % MIB !== 0) {
    throw new UsageError(`--gpu-memory ${memory} on ${gpus} GPU(s): want a whole number of MiB on each`);
  }
  const cores = whole(parsed, 'gpu-cores', gpus, 100 * gpus);
  if (cores === undefined) return Array.from({ length: gpus }, () => ({ memory: { kind: 'bytes', bytes } }));
  if (cores % gpus !== 0) throw new UsageError(`--gpu-cores ${cores} on ${gpus} GPU(s): want a whole percent of each`);
  return Array.from({ length: gpus }, () => ({ memory: { kind: 'bytes', bytes }, coresPercent: cores / gpus }));
}

async function askForGrant(folder: string, body: GrantBody): Promise<GrantAnswer | string> {
  const until = Date.now() + START_TIMEOUT_MS;
  for (;;) {
    const answer = await ask(folder, 'POST', '/v1/grants', body);
    if (answer.status === 201) return answer.body as GrantAnswer;
    if (answer.status !== 503 || Date.now() > until) return errorOf(answer);
    await delay(250);
  }
}

/** Runs the command in its own cgroup if that is permitted, else as our process tree; returns when it ends. */
async function runWithGrant(
  command: readonly string[],
  grant: GrantAnswer,
  folder: string,
  print: (line: string) => void,
): Promise<number> {
  const native = loadNative();
  // Handled before the first object that must be removed again: a signal may come at any time, also before the command
  // runs.
  const early: NodeJS.Signals[] = [];
  let forward = (signal: NodeJS.Signals): void => {
    early.push(signal);
  };
  for (const signal of FORWARDED_SIGNALS) process.on(signal, (name) => forward(name));
  const group = makeGroup(grant.id);
  if (!group) native.becomeSubreaper(); // orphans become our children, so the tree stays one
  const leave = group === undefined ? undefined : enterGroup(group);
  const [file = '', ...args] = command;
  const preload = [grant.preload, process.env.LD_PRELOAD].filter((entry) => entry).join(' ');
  const child = spawn(file, args, {
    stdio: 'inherit',
    env: {
      ...process.env,
      LD_PRELOAD: preload,
      CUDA_VISIBLE_DEVICES: grant.gpus.map((gpu) => gpu.gpuUuid).join(','),
      // The runtime of gcc's AddressSanitizer ends a program that has a preloaded object before it.
      ASAN_OPTIONS: [process.env.ASAN_OPTIONS, 'verify_asan_link_order=0'].filter((entry) => entry).join(':'),
    },
  });
  leave?.();
  forward = (signal) => {
    child.kill(signal);
  };
  for (const signal of early) forward(signal);
  const ended = await new Promise<{ code: number; signal: NodeJS.Signals | null }>((resolve) => {
    child.on('error', (error) => {
      console.error(`cotenant: ${file}: ${error.message}`);
      resolve({ code: 127, signal: null });
    });
    child.on('exit', (code, signal) => resolve({ code: code ?? 0, signal }));
  });
  if (ended.signal !== null) await printStopReason(folder, grant.id, print);
  if (group) await endGroup(group);
  return ended.signal === null ? ended.code : 128 + constants.signals[ended.signal];
}

/** The agent's reason, when the agent stopped the command. */
async function printStopReason(folder: string, id: string, print: (line: string) => void): Promise<void> {
  const answer = await ask(folder, 'GET', `/v1/actions?of=${id}`).catch(() => undefined);
  const records = Array.isArray(answer?.body) ? (answer.body as ActionRecord[]) : [];
  const last = records.findLast((record) => record.action === 'kill' || record.action === 'terminate');
  if (last) print(`stopped by the agent: ${last.message}`);
}

const ownUnifiedPath = (): string | undefined => unifiedPath(readFileSync('/proc/self/cgroup', 'utf8'));

/** Creates a cgroup below our own in the unified hierarchy; undefined if that is not permitted. */
function makeGroup(id: string): string | undefined {
  const mount = unifiedMount();
  const own = ownUnifiedPath();
  if (!mount || own === undefined) return undefined;
  const path = join(mount, own, tenantGroup(id));
  try {
    mkdirSync(path);
    return path;
  } catch {
    return undefined;
  }
}

/** A child starts in its parent's cgroup: this process enters the cgroup, starts the child, and leaves it. */
function enterGroup(group: string): (() => void) | undefined {
  const mount = unifiedMount() ?? '';
  const before = ownUnifiedPath() ?? '/';
  try {
    writeFileSync(join(group, 'cgroup.procs'), String(process.pid));
  } catch {
    return undefined;
  }
  return () => {
    writeFileSync(join(mount, before, 'cgroup.procs'), String(process.pid));
  };
}

/** Ends processes that the command left running, as a container's end would. */
async function endGroup(group: string): Promise<void> {
  const busy = () => existsSync(group) && readFileSync(join(group, 'cgroup.procs'), 'utf8').trim() !== '';
  if (busy() && existsSync(join(group, 'cgroup.kill'))) writeFileSync(join(group, 'cgroup.kill'), '1');
  for (let tries = 0; tries < 200 && busy(); tries++) await delay(10);
  try {
    rmdirSync(group);
  } catch {
    console.error(`cotenant: ${group} could not be removed`);
  }
}
