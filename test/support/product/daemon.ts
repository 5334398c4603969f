// Starts the scheduler extender and the webhook as processes, the way their containers start them.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { KubeConfig } from '@kubernetes/client-node';
import { freePort } from '../machine/ports.ts';
import { eventually, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { seriesOf } from './agent.ts';
import { mainOf } from './image.ts';

/** Environment that the chart sets for the extender, so that it stays within its memory. */
export const EXTENDER_ENV = {
  NODE_OPTIONS: '--max-semi-space-size=4 --max-old-space-size=256',
  MALLOC_ARENA_MAX: '1',
} as const;

export type Daemon = {
  readonly child: ChildProcess;
  readonly url: string;
  /** Where its health and its metrics are. */
  readonly health: string;
  readonly lines: readonly string[];
  /** From its start until /readyz answered 200. */
  readonly startedMs: number;
  /** The most that it had resident so far. */
  peakMib(): number;
  metric(name: string, labels?: Record<string, string>): Promise<number | undefined>;
  stop(): Promise<void>;
};

export type DaemonOptions = {
  readonly env?: Readonly<Record<string, string>>;
  /** Further options of its command line; the last one of a name counts. */
  readonly args?: readonly string[];
  /** Where the program is installed; by default the repository. */
  readonly root?: string;
  readonly readyMs?: number;
};

async function startDaemon(t: Teardown, args: readonly string[], options: DaemonOptions): Promise<Daemon> {
  const healthPort = await freePort();
  const begunMs = performance.now();
  const ports = ['--port', '0', '--health-port', String(healthPort)];
  const command = [mainOf(options.root), ...args, ...ports, ...(options.args ?? [])];
  const child = spawn(process.execPath, command, {
    env: { ...process.env, ...options.env },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const lines: string[] = [];
  createInterface({ input: child.stderr }).on('line', (line) => lines.push(line));
  const exited = once(child, 'exit');
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await exited;
  };
  t.teardown(stop);
  const health = `http://127.0.0.1:${healthPort}`;
  await eventually(
    async () => {
      if (child.exitCode !== null || child.signalCode !== null)
        throw new Error(`${args[0]} ended with ${child.signalCode ?? child.exitCode}: ${lines.join('\n')}`);
      const ready = await fetch(`${health}/readyz`).catch(() => undefined);
      return ready?.status === 200 || undefined;
    },
    `${args[0]} is ready`,
    options.readyMs ?? START_MS,
  );
  const startedMs = performance.now() - begunMs;
  const url = await eventually(
    () => lines.flatMap((line) => / on (https?:\/\/127\.0\.0\.1:\d+)/.exec(line)?.[1] ?? [])[0],
    'its address',
  );
  return {
    ...{ child, url, health, lines, startedMs, stop },
    peakMib() {
      const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
      return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
    },
    metric: async (name, labels = {}) => seriesOf(await (await fetch(`${health}/metrics`)).text(), name, labels),
  };
}

/** It holds the Lease itself: ready means that it leads, too. */
export function startExtender(t: Teardown, config: KubeConfig, options: DaemonOptions = {}): Promise<Daemon> {
  const file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(file, config.exportConfig());
  const args = ['scheduler', '--kubeconfig', file, '--lease', 'ns/l', '--lease-holder', 'self'];
  return startDaemon(t, args, { env: EXTENDER_ENV, ...options });
}

/** With a certificate that it makes itself. */
export const startWebhook = (t: Teardown, options: DaemonOptions = {}): Promise<Daemon> =>
  startDaemon(t, ['webhook', '--host', '127.0.0.1'], options);
