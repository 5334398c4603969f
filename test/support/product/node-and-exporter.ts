// The two halves of the agent as two processes: the node half is an agent without a port (support/product/agent.ts),
// the exporter half reads its socket.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { eventually, START_MS, type Teardown } from '../native/node.ts';
import { seriesOf } from './agent.ts';
import { mainOf } from './image.ts';

export type RunningExporter = {
  readonly url: string;
  readonly child: ChildProcess;
  readonly log: string[];
  get(path: string, headers?: Record<string, string>): Promise<Response>;
  metrics(): Promise<string>;
  metric(name: string, labels?: Record<string, string>): Promise<number | undefined>;
  stop(signal?: NodeJS.Signals): Promise<void>;
};

export async function startExporterHalf(
  t: Teardown,
  socket: string,
  settings: Readonly<Record<string, string | number | boolean>> = {},
  env: Readonly<Record<string, string>> = {},
  /** Where the program is installed; by default the repository. */
  root?: string,
): Promise<RunningExporter> {
  const all = { 'page.socket': socket, port: 0, ...settings };
  const flags = Object.entries(all).flatMap(([path, value]) => ['--set', `${path}=${value}`]);
  const child = spawn(process.execPath, [mainOf(root), 'exporter', ...flags], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'inherit', 'pipe'],
  });
  const log: string[] = [];
  createInterface({ input: child.stderr }).on('line', (line) => log.push(line));
  const exited = once(child, 'exit');
  const stop = async (signal: NodeJS.Signals = 'SIGTERM') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await exited;
  };
  t.teardown(() => stop('SIGKILL'));
  const url = await eventually(
    () => {
      if (child.exitCode !== null) throw new Error(`the exporter half ended: ${log.join('\n')}`);
      return log.flatMap((line) => /metrics on (https?:\S+)\/metrics/.exec(line)?.[1] ?? [])[0];
    },
    'the exporter half listens',
    START_MS,
  );
  const get = (path: string, headers: Record<string, string> = {}) => fetch(`${url}${path}`, { headers });
  const metrics = async () => (await get('/metrics')).text();
  return {
    url,
    child,
    log,
    get,
    metrics,
    metric: async (name, labels = {}) => seriesOf(await metrics(), name, labels),
    stop,
  };
}
