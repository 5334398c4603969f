// `npm start`: a demonstration on one machine with a simulated GPU node (or the real driver), the agent, the webhook
// and tenants, of which one exceeds its grant and one bypasses the interposer. Shows a live table of what the agent
// reports.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { buildNative } from '../../../native/build.ts';
import { parseConfiguration } from '../../../webhook/config.ts';
import { startWebhook } from '../../../webhook/server.ts';
import { configure } from '../../agent/config.ts';
import { BUILD_FOLDER } from '../../agent/os/addon.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { startAgent } from '../../agent/start.ts';
import { createLogger } from '../../common/logger.ts';
import { ask } from '../lib/agent-client.ts';
import { type Command, flag, text, UsageError } from '../lib/command.ts';
import { actionRows, gpuRows, tenantRows } from '../output/node-table.ts';
import { type Review, reviewOnce } from './admission-request.ts';

type Actor = {
  readonly name: string;
  readonly memory: string;
  readonly cores?: string;
  readonly command: readonly string[];
  readonly note: string;
};

const TENANT = join(BUILD_FOLDER, 'cotenant-tenant');
const ACTORS: readonly Actor[] = [
  { name: 'trainer', memory: '8Gi', cores: '60', command: [TENANT, 'trainer'], note: 'trains, checks its data' },
  { name: 'server', memory: '4Gi', cores: '20', command: [TENANT, 'server'], note: 'serves, checks its data' },
  { name: 'greedy', memory: '2Gi', command: [TENANT, 'greedy'], note: 'wants more than its grant' },
  // Without the preload this tenant calls the driver directly.
  {
    name: 'cheat',
    memory: '1Gi',
    command: ['env', '-u', 'LD_PRELOAD', TENANT, 'cheat'],
    note: 'bypasses the interposer',
  },
];
const RESTART_CHEAT_MS = 25_000;

export const demo: Command = {
  name: 'demo',
  summary: 'Runs a demonstration on this machine, with a simulated GPU by default.',
  usage: '[--driver simulated|real] [--port N] [--for SECONDS]',
  options: {
    driver: { type: 'string', value: 'NAME', help: 'simulated (default), or real: the NVIDIA driver of this machine' },
    port: {
      type: 'string',
      short: 'p',
      value: 'N',
      help: 'port of /metrics and the status page (default 9837; 0: a free one)',
    },
    'webhook-port': { type: 'string', value: 'N', help: 'port of the webhook (default 9838; 0: a free one)' },
    for: { type: 'string', value: 'SECONDS', help: 'end by itself after so long' },
    plain: { type: 'boolean', help: 'print lines instead of redrawing the screen' },
  },
  async run(parsed) {
    const driver = text(parsed, 'driver') ?? 'simulated';
    if (driver !== 'simulated' && driver !== 'real') throw new UsageError(`--driver ${driver}: want simulated or real`);
    const seconds = text(parsed, 'for');
    if (seconds !== undefined && !/^\d+$/.test(seconds)) throw new UsageError(`--for ${seconds}: want whole seconds`);
    const ports = { page: portOf(text(parsed, 'port'), 9837), webhook: portOf(text(parsed, 'webhook-port'), 9838) };
    const redraw = process.stdout.isTTY && !flag(parsed, 'plain');
    await build(redraw);
    const folder = mkdtempSync(join(tmpdir(), 'cotenant-'));
    try {
      const code = await play(folder, driver, ports, seconds === undefined ? undefined : Number(seconds), redraw);
      console.log('demo stopped');
      return code;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

function portOf(value: string | undefined, otherwise: number): number {
  if (value === undefined) return otherwise;
  if (!/^\d+$/.test(value) || Number(value) > 65535) throw new UsageError(`port ${value}: want 0 to 65535`);
  return Number(value);
}

async function build(redraw: boolean): Promise<void> {
  let lastShown = 0;
  await buildNative((done, all) => {
    const now = Date.now();
    if (redraw) process.stdout.write(`\rbuilding the native parts: ${done} of ${all} `);
    else if (now - lastShown > 2000 || done === all) console.log(`building the native parts: ${done} of ${all}`);
    if (now - lastShown > 2000) lastShown = now;
  });
  if (redraw) process.stdout.write('\r\x1b[K');
}

async function startSimulator(folder: string): Promise<ChildProcess> {
  const args = ['serve', '--dir', join(folder, 'gpu'), '--gpu', 'l4', '--gpu', 'a10'];
  const child = spawn(join(BUILD_FOLDER, 'cotenant-simulator'), args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ready = once(createInterface({ input: child.stdout }), 'line');
  const failed = once(child, 'exit').then(() => {
    throw new Error('the simulated node did not start');
  });
  await Promise.race([ready, failed]);
  failed.catch(() => {}); // a later end ends the demonstration
  return child;
}

async function play(
  folder: string,
  driver: 'simulated' | 'real',
  ports: { page: number; webhook: number },
  seconds: number | undefined,
  redraw: boolean,
): Promise<number> {
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop.abort());
  await using ending = new AsyncDisposableStack();
  const simulator = driver === 'simulated' ? await startSimulator(folder) : undefined;
  if (simulator) ending.defer(() => end([simulator]));
  const library = simulator ? join(folder, 'gpu/lib') : undefined;
  const stateFolder = join(folder, 'state');
  const problems: string[] = [];
  const log = createLogger({ component: 'agent', write: (line) => problems.push(line.trimEnd()) });
  const agent = await startAgent(
    configure(
      {
        stateFolder,
        port: ports.page,
        ...(library
          ? { nvmlLibrary: join(library, 'libnvidia-ml.so.1'), cudaLibrary: join(library, 'libcuda.so.1') }
          : {}),
      },
      'demo',
    ),
    { log },
  );
  ending.defer(() => agent.close());
  const rules = parseConfiguration({ rules: { dialects: ['ack', 'metagpu'] } });
  if (!rules.ok) throw new Error('the demonstration configures admission wrongly');
  const webhook = await startWebhook({
    configuration: rules.value,
    host: '127.0.0.1',
    port: ports.webhook,
    logger: log.component('webhook'),
  });
  ending.defer(() => webhook.close());
  const review = await reviewOnce(webhook.url, webhook.certificate);
  const tenants = new Map<string, { child: ChildProcess; output: string }>();
  ending.defer(() => end([...tenants.values()].map(({ child }) => child)));

  const start = (actor: Actor) => {
    const cores = actor.cores === undefined ? [] : ['--gpu-cores', actor.cores];
    const args = [
      join(import.meta.dirname, `../main${extname(import.meta.filename)}`),
      'run',
      '--quiet',
      '--state',
      stateFolder,
      '--name',
      actor.name,
      '--gpu-memory',
      actor.memory,
      ...cores,
      '--',
      ...actor.command,
    ];
    const env = library ? { ...process.env, LD_LIBRARY_PATH: library } : process.env;
    const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    const entry = { child, output: 'starting' };
    tenants.set(actor.name, entry);
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream }).on('line', (line) => {
        entry.output = line;
      });
    }
    child.on('exit', (code, signal) => {
      entry.output = code === 137 ? 'stopped by the agent' : `ended (${signal ?? code})`;
      if (actor.name !== 'cheat' || stop.signal.aborted) return;
      void delay(RESTART_CHEAT_MS, undefined, { signal: stop.signal }).then(
        () => start(actor),
        () => {},
      );
    });
  };

  const show = async () => {
    const answer = await ask(stateFolder, 'GET', '/v1/status');
    const lines = page(
      answer.body as Snapshot | null,
      driver,
      stateFolder,
      agent.port ?? ports.page,
      webhook.url,
      review,
      tenants,
      problems,
    );
    process.stdout.write(redraw ? `\x1b[H\x1b[2J${lines.join('\n')}\n` : `${lines.join('\n')}\n\n`);
  };

  // From here on no tenant is restarted.
  ending.defer(() => stop.abort());
  for (const actor of ACTORS) start(actor);
  const until = seconds === undefined ? Number.POSITIVE_INFINITY : Date.now() + seconds * 1000;
  while (!stop.signal.aborted && Date.now() < until) {
    await show();
    await delay(redraw ? 1000 : 3000, undefined, { signal: stop.signal }).catch(() => {});
  }
  return 0;
}

/** Ends processes and waits until they have. */
async function end(children: readonly ChildProcess[]): Promise<void> {
  await Promise.all(
    children.map(async (child) => {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, 'exit');
      child.kill('SIGTERM');
      await ended;
    }),
  );
}

function page(
  snapshot: Snapshot | null,
  driver: string,
  stateFolder: string,
  port: number,
  webhookUrl: string,
  review: Review,
  tenants: ReadonlyMap<string, { output: string }>,
  problems: readonly string[],
): string[] {
  const gpu = driver === 'simulated' ? 'a simulated GPU node (nothing here is a GPU result)' : "this machine's GPUs";
  const head = [
    `Cotenant on ${gpu}; Ctrl-C ends it and leaves nothing behind`,
    `status page http://127.0.0.1:${port}/   metrics http://127.0.0.1:${port}/metrics   webhook ${webhookUrl}`,
    `beside it, from the same folder: npx cotenant top --state ${stateFolder}   (or inspect, recommend, why cheat)`,
    '',
  ];
  if (!snapshot) return [...head, 'reading the driver ...', ...problems.slice(-3)];
  const outputs = ACTORS.map(({ name, note }) => `  ${name.padEnd(8)} (${note}): ${tenants.get(name)?.output ?? ''}`);
  return [
    ...head,
    ...gpuRows(snapshot),
    '',
    ...tenantRows(snapshot),
    '',
    'output of the tenants',
    ...outputs,
    '',
    'actions',
    ...actionRows(snapshot, 6).map((line) => `  ${line}`),
    '',
    'admission: a pod in the dialect of ACK came back with',
    ...review.lines.map((line) => `  ${line}`),
  ];
}
