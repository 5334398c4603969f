// `cotenant run`: runs a command with a grant, with the same limits page, usage ledger and agent as a container.
// Forwards signals, ends with the command, and leaves neither grant nor cgroup behind.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer, GrantBody } from '../../../agent/admin-api.ts';
import type { ActionRecord } from '../../../agent/enforcement/action-record.ts';
import { loadNative } from '../../../agent/os/addon.ts';
import { tenantGroup, unifiedMount, unifiedPath } from '../../../agent/os/cgroup.ts';
import { ask, STATE_OPTION, stateFolder } from '../../lib/agent-client.ts';
import { type Command, flag, text, UsageError } from '../../lib/command.ts';
import { askForGrant, grantLines } from '../../lib/grant-request.ts';
import { SHARE_OPTIONS, shareOf } from '../../options/share.ts';

const FORWARDED_SIGNALS: readonly NodeJS.Signals[] = [
  'SIGINT',
  'SIGTERM',
  'SIGHUP',
  'SIGQUIT',
  'SIGUSR1',
  'SIGUSR2',
  'SIGCONT',
];

export const run: Command = {
  name: 'run',
  summary: 'Runs a command with a share of a GPU: it sees only that share and cannot exceed it.',
  usage: '--gpu-memory 2Gi [options] -- COMMAND [ARGUMENT ...]',
  options: {
    ...SHARE_OPTIONS,
    name: { value: 'NAME', help: "name in metrics and tables (default: the command's)" },
    quiet: { short: 'q', help: 'print only errors' },
    ...STATE_OPTION,
  },
  notes: 'The exit code is that of the command, 128 + N where signal N ended it, 125 if there is no grant.',
  takesOperands: true,
  async run(parsed) {
    const command = parsed.operands;
    if (command.length === 0) throw new UsageError('the command is missing; write it after --');
    const share = shareOf(parsed);
    const folder = stateFolder(parsed);
    const self = loadNative().readProcess(process.pid);
    if (!self) throw new Error('/proc cannot be read');
    const name = text(parsed, 'name') ?? basename(command[0] ?? '');
    const body: GrantBody = {
      name,
      container: basename(command[0] ?? ''),
      ...share,
      pid: process.pid,
      startTicks: self.startTicks,
    };
    const grant = await askForGrant<GrantAnswer>(folder, body);
    if (typeof grant === 'string') {
      console.error(`cotenant: no grant: ${grant}`);
      return 125;
    }
    const print = (line: string) => {
      if (!flag(parsed, 'quiet')) console.error(`cotenant: ${line}`);
    };
    for (const line of grantLines(name, grant)) print(line);
    try {
      return await runWithGrant(command, grant, folder, print);
    } finally {
      await ask(folder, 'DELETE', `/v1/grants/${grant.id}`).catch(() => {}); // an agent that is away ends the grant when it is back
    }
  },
};

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
      const { code = '', message } = error as NodeJS.ErrnoException;
      console.error(`cotenant: ${file}: ${WHY_NOT_STARTED[code] ?? message}`);
      resolve({ code: 127, signal: null });
    });
    child.on('exit', (code, signal) => resolve({ code: code ?? 0, signal }));
  });
  if (ended.signal !== null) await printStopReason(folder, grant.id, print);
  if (group) await endGroup(group);
  return ended.signal === null ? ended.code : 128 + constants.signals[ended.signal];
}

const WHY_NOT_STARTED: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such command',
  EACCES: 'may not be executed',
};

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
