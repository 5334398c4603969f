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
import { type Command, choice, flag, port, whole } from '../lib/command.ts';
import { actionRows, gpuRows, tenantRows } from '../output/node-table.ts';
import { reviewOnce } from './admission-request.ts';

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
    name: 'rogue',
    memory: '1Gi',
    command: ['env', '-u', 'LD_PRELOAD', TENANT, 'rogue'],
    note: 'bypasses the interposer',
  },
];
const RESTART_ROGUE_MS = 25_000;

export const demo: Command = {
  name: 'demo',
  summary: 'Runs a demonstration on this machine, with a simulated GPU by default.',
  usage: '[--driver simulated|real] [--port N] [--for SECONDS]',
  options: {
    driver: { value: 'NAME', help: 'simulated (default), or real: the NVIDIA driver of this machine' },
    port: {
      short: 'p',
      value: 'N',
      help: 'port of /metrics and the status page (default 9837; 0: a free one)',
    },
    'webhook-port': { value: 'N', help: 'port of the webhook (default 9838; 0: a free one)' },
    for: { value: 'SECONDS', help: 'end by itself after so long' },
    plain: { help: 'print lines instead of redrawing the screen' },
  },
  async run(parsed) {
    const plan: Plan = {
      driver: choice(parsed, 'driver', ['simulated', 'real']) ?? 'simulated',
      port: port(parsed, 'port') ?? 9837,
      webhookPort: port(parsed, 'webhook-port') ?? 9838,
      seconds: whole(parsed, 'for', 0, 1e9) ?? Number.POSITIVE_INFINITY,
      redraw: process.stdout.isTTY && !flag(parsed, 'plain'),
    };
    await build(plan.redraw);
    const folder = mkdtempSync(join(tmpdir(), 'cotenant-'));
    try {
      await play(folder, plan);
      console.log('demo stopped');
      return 0;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

type Plan = {
  readonly driver: 'simulated' | 'real';
  readonly port: number;
  readonly webhookPort: number;
  /** How long it runs. */
  readonly seconds: number;
  readonly redraw: boolean;
};

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

async function play(folder: string, plan: Plan): Promise<void> {
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => stop.abort());
  await using ending = new AsyncDisposableStack();
  const simulator = plan.driver === 'simulated' ? await startSimulator(folder) : undefined;
  if (simulator) ending.defer(() => end([simulator]));
  const library = simulator && join(folder, 'gpu/lib');
  const stateFolder = join(folder, 'state');
  const problems: string[] = [];
  const log = createLogger({ component: 'agent', write: (line) => problems.push(line.trimEnd()) });
  const libraries = library && {
    nvmlLibrary: join(library, 'libnvidia-ml.so.1'),
    cudaLibrary: join(library, 'libcuda.so.1'),
  };
  const agent = await startAgent(configure({ stateFolder, port: plan.port, ...libraries }, 'demo'), { log });
  ending.defer(() => agent.close());
  const rules = parseConfiguration({ rules: { dialects: ['ack', 'metagpu'] } });
  if (!rules.ok) throw new Error('the demonstration configures admission wrongly');
  const webhook = await startWebhook({
    configuration: () => rules.value,
    host: '127.0.0.1',
    port: plan.webhookPort,
    logger: log.component('webhook'),
  });
  ending.defer(() => webhook.close());
  const head = headOf(plan, agent.port ?? plan.port, webhook.url, stateFolder);
  const review = await reviewOnce(webhook.url, webhook.certificate);
  const tenants = new Map<string, Tenant>();
  ending.defer(() => end([...tenants.values()].map(({ child }) => child)));
  // From here on no tenant is restarted.
  ending.defer(() => stop.abort());
  for (const actor of ACTORS) startTenant(actor, tenants, { stateFolder, library, signal: stop.signal });
  const until = Date.now() + plan.seconds * 1000;
  while (!stop.signal.aborted && Date.now() < until) {
    const { body } = await ask(stateFolder, 'GET', '/v1/status');
    const lines = body ? screen(body as Snapshot, tenants, review) : ['reading the driver ...', ...problems.slice(-3)];
    const text = [...head, ...lines].join('\n');
    process.stdout.write(plan.redraw ? `\x1b[H\x1b[2J${text}\n` : `${text}\n\n`);
    await delay(plan.redraw ? 1000 : 3000, undefined, { signal: stop.signal }).catch(() => {});
  }
}

type Tenant = { readonly child: ChildProcess; output: string };
type Stage = { readonly stateFolder: string; readonly library: string | undefined; readonly signal: AbortSignal };

/** Runs `cotenant run` for this tenant; the one that the agent stops is started again a while later. */
function startTenant(actor: Actor, tenants: Map<string, Tenant>, stage: Stage): void {
  const { stateFolder, library, signal } = stage;
  const program = join(import.meta.dirname, `../main${extname(import.meta.filename)}`);
  const grant = ['--name', actor.name, '--gpu-memory', actor.memory];
  const cores = actor.cores === undefined ? [] : ['--gpu-cores', actor.cores];
  const args = [program, 'run', '--quiet', '--state', stateFolder, ...grant, ...cores, '--', ...actor.command];
  const env = { ...process.env, ...(library && { LD_LIBRARY_PATH: library }) };
  const child = spawn(process.execPath, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const tenant: Tenant = { child, output: 'starting' };
  tenants.set(actor.name, tenant);
  for (const input of [child.stdout, child.stderr]) {
    createInterface({ input }).on('line', (line) => {
      tenant.output = line;
    });
  }
  child.on('exit', (code, ended) => {
    tenant.output = code === 137 ? 'stopped by the agent' : `ended (${ended ?? code})`;
    if (actor.name !== 'rogue') return;
    void delay(RESTART_ROGUE_MS, undefined, { signal }).then(
      () => startTenant(actor, tenants, stage),
      () => {},
    );
  });
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

function headOf({ driver }: Plan, port: number, webhookUrl: string, stateFolder: string): readonly string[] {
  const gpu = driver === 'simulated' ? 'a simulated GPU node (nothing here is a GPU result)' : "this machine's GPUs";
  return [
    `Cotenant on ${gpu}; Ctrl-C ends it and leaves nothing behind`,
    `status page http://127.0.0.1:${port}/   metrics http://127.0.0.1:${port}/metrics   webhook ${webhookUrl}`,
    `beside it, from the same folder: npx cotenant top --state ${stateFolder}   (or inspect, recommend, why rogue)`,
    '',
  ];
}

function screen(
  snapshot: Snapshot,
  tenants: ReadonlyMap<string, Tenant>,
  review: readonly string[],
): readonly string[] {
  return [
    ...gpuRows(snapshot),
    '',
    ...tenantRows(snapshot),
    '',
    'output of the tenants',
    ...ACTORS.map(({ name, note }) => `  ${name.padEnd(8)} (${note}): ${tenants.get(name)?.output ?? ''}`),
    '',
    'actions',
    ...actionRows(snapshot, 6).map((line) => `  ${line}`),
    '',
    'admission: a pod in the dialect of ACK came back with',
    ...review.map((line) => `  ${line}`),
  ];
}
