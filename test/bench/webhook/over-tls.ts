// The webhook over TLS at a fixed rate and at its peak, beside a server that does nothing and a twin in Go where Go is
// there. Each server is a process of its own; the client is this one.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { selfSigned } from '../../../src/serving/x509.ts';
import type { Teardown } from '../../support/native/node.ts';
import { fixture } from '../../unit/webhook/reviews.ts';
import type { Row } from '../row.ts';
import { median, quantile } from '../statistics.ts';

const RATE = 1000;
const CONNECTIONS = 16;
/** Of Go, whose first build compiles its library as well. */
const BUILD_MS = 120_000;
/** Goals of issue 26: milliseconds at that rate, and the part of the twin's peak. */
const P50_MS = 0.3;
const P99_MS = 3;
const OF_TWIN = 0.5;

type Server = { readonly port: number; readonly pid: number; readonly startMs: number };
type Target = { readonly port: number; readonly ca: string; readonly body: Buffer };

export async function overTls(scope: Teardown, seconds: number): Promise<readonly Row[]> {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-bench-'));
  scope.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const { cert: ca, key } = selfSigned(['localhost', '127.0.0.1'], new Date());
  const files = [join(folder, 'cert.pem'), join(folder, 'key.pem')] as const;
  writeFileSync(files[0], ca);
  writeFileSync(files[1], key, { mode: 0o600 });
  const body = Buffer.from(JSON.stringify(fixture('1.26-create-ack-deployment'), null, 2));
  const node = (kind: string) =>
    start(scope, process.execPath, [join(import.meta.dirname, 'servers.ts'), kind, ...files]);
  const [ours, noop, twin] = [await node('webhook'), await node('noop'), await startTwin(scope, folder, files)];
  const target = ({ port }: Server): Target => ({ port, ca, body });

  const [peak, noopPeak] = [await peakOf(target(ours), seconds), await peakOf(target(noop), seconds)];
  // Of more than what is answered a queue would be measured, which only grows.
  const keepsUp = Math.min(peak, noopPeak) > RATE;
  const times = keepsUp ? await atRate(target(ours), seconds) : undefined;
  const bare = keepsUp ? await atRate(target(noop), seconds) : undefined;
  const tooMany = keepsUp ? {} : { skipped: `the peak of this run is below ${RATE}/s` };
  const what = `a server in Node that reads the ${body.length} bytes and answers a fixed text`;
  const twinPeak = twin === undefined ? null : await peakOf(target(twin), seconds);
  return [
    {
      name: `webhook.rate_${RATE}.p50_ms`,
      value: times ? median(times) : null,
      unit: 'ms',
      reference: { value: bare ? median(bare) : null, what },
      goal: { most: P50_MS, floor: true },
      ...tooMany,
    },
    {
      name: `webhook.rate_${RATE}.p99_ms`,
      value: times ? quantile(times, 0.99) : null,
      unit: 'ms',
      reference: { value: bare ? quantile(bare, 0.99) : null, what },
      goal: { most: P99_MS, floor: true },
      ...tooMany,
    },
    {
      name: 'webhook.peak_rps',
      value: peak,
      unit: '1/s',
      reference:
        twinPeak === null
          ? null
          : { value: twinPeak, what: 'a twin in Go that decodes the review and answers a fixed patch' },
      ...(twinPeak !== null && { goal: { least: Math.round(OF_TWIN * twinPeak) } }),
    },
    { name: 'webhook.peak_noop_rps', value: noopPeak, unit: '1/s', reference: null },
    {
      name: 'webhook.rss_mb',
      value: residentMb(ours.pid),
      unit: 'MB',
      reference: { value: residentMb(noop.pid), what },
    },
    { name: 'webhook.start_ms', value: ours.startMs, unit: 'ms', reference: { value: noop.startMs, what } },
  ];
}

/** A server that prints its port; ended with the scope. */
async function start(scope: Teardown, program: string, args: readonly string[]): Promise<Server> {
  const started = performance.now();
  const child: ChildProcess = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  scope.teardown(async () => {
    if (child.exitCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  });
  if (child.stdout === null) throw new Error('a child without output');
  const lines = createInterface({ input: child.stdout });
  const [line] = (await once(lines, 'line')) as [string];
  return { port: Number(line), pid: child.pid ?? 0, startMs: performance.now() - started };
}

async function startTwin(scope: Teardown, folder: string, files: readonly string[]): Promise<Server | undefined> {
  const program = join(folder, 'twin');
  const source = join(import.meta.dirname, 'twin.go');
  const built = spawnSync('go', ['build', '-o', program, source], { stdio: 'ignore', timeout: BUILD_MS });
  return built.status === 0 ? start(scope, program, files) : undefined;
}

function clientOf({ port, ca, body }: Target) {
  const agent = new Agent({ ca, keepAlive: true, maxSockets: CONNECTIONS, servername: 'localhost' });
  const send = async (): Promise<void> => {
    const headers = { 'content-type': 'application/json', 'content-length': body.length };
    const outgoing = request({ host: '127.0.0.1', port, path: '/mutate', method: 'POST', agent, headers });
    outgoing.end(body);
    const [incoming] = await once(outgoing, 'response');
    if (incoming.statusCode !== 200) throw new Error(`status ${incoming.statusCode}`);
    incoming.resume();
    await once(incoming, 'end');
  };
  return { send, close: () => agent.destroy() };
}

/** Milliseconds from when each review was due, so that one that waits for its turn counts its waiting. */
async function atRate(target: Target, seconds: number): Promise<readonly number[]> {
  const { send, close } = clientOf(target);
  await Promise.all(Array.from({ length: CONNECTIONS }, send));
  const times: number[] = [];
  const open: Promise<void>[] = [];
  const began = performance.now();
  for (let sent = 0; sent < RATE * seconds; ) {
    // The first is due at once: a send of it a millisecond later would count that millisecond in each.
    const due = Math.min(RATE * seconds, 1 + Math.floor(((performance.now() - began) * RATE) / 1000));
    for (; sent < due; sent += 1) {
      const dueMs = began + (sent * 1000) / RATE;
      open.push(send().then(() => void times.push(performance.now() - dueMs)));
    }
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(open);
  close();
  return times;
}

/** Answers per second with all connections busy. */
async function peakOf(target: Target, seconds: number): Promise<number> {
  const { send, close } = clientOf(target);
  await Promise.all(Array.from({ length: CONNECTIONS }, send));
  let answered = 0;
  const began = performance.now();
  const busy = async () => {
    for (; performance.now() - began < seconds * 1000; answered += 1) await send();
  };
  await Promise.all(Array.from({ length: CONNECTIONS }, busy));
  const elapsed = (performance.now() - began) / 1000;
  close();
  return answered / elapsed;
}

function residentMb(pid: number): number {
  const [, kib = '0'] = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? [];
  return Number(kib) / 1024;
}
