// A scrape of the agent's metrics: how long it takes when the page is rendered for it and when two scrapers share it,
// how long it blocks the event loop, and what it costs the driver. The page is rendered and served by the agent's own
// code from a built snapshot (snapshot.ts), in a process of its own; calls of the driver are counted on a real agent
// (driver-calls.ts).
import { type ChildProcess, execFile, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, get } from 'node:http';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { BUILD, type Teardown } from '../../support/native/node.ts';
import { type Bench, type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';
import { median, quantile } from '../statistics.ts';
import { driverCalls } from './driver-calls.ts';
import type { Reading, Ready } from './server.ts';

const SIZES = [1000, 3000, 10_000];
/** Most milliseconds of the median of scrapes for which the page is rendered. */
const RENDERED_MS: Readonly<Record<number, number>> = { 3000: 50 };
/** Most milliseconds of the median of scrapes that share a page. */
const SHARED_MS: Readonly<Record<number, number>> = { 3000: 2, 10000: 5 };
const SCRAPERS = 2;
/** Longer than a scrape of any size takes. */
const EVERY_MS = 10;

const run = promisify(execFile);

type Server = Ready & { readonly child: ChildProcess };

async function startServer(scope: Teardown, ...args: string[]): Promise<Server> {
  const child = fork(join(import.meta.dirname, 'server.ts'), args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const exited = once(child, 'exit');
  scope.teardown(async () => {
    child.kill('SIGKILL');
    await exited;
  });
  const early = exited.then(([code]) => {
    throw new Error(`the metrics server ended with ${code}`);
  });
  const [ready] = (await Promise.race([once(child, 'message'), early])) as [Ready];
  early.catch(() => {});
  return { ...ready, child };
}

async function ask({ child }: Server, command: 'reset' | 'read'): Promise<Reading> {
  const answer = once(child, 'message');
  child.send(command);
  const [reading] = (await answer) as [Reading];
  return reading;
}

/** One GET to its last byte by this process, milliseconds. */
async function scrapeOnce(agent: Agent, port: number, encoding: string): Promise<number> {
  const started = performance.now();
  const request = get({ agent, port, host: '127.0.0.1', path: '/metrics', headers: { 'accept-encoding': encoding } });
  const [response] = await once(request, 'response');
  if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
  response.resume();
  await once(response, 'end');
  return performance.now() - started;
}

/** Milliseconds of each server's scrapes. Both servers alternate, each scraped by all scrapers at once over connections
 * that stay open. The scrapers are a compiled program (test/bench/programs/scraper.c): in this process the event loop
 * and the garbage collector would delay them for longer than a scrape takes. */
async function takeTurns(servers: readonly Server[], encoding: string, rounds: number): Promise<number[][]> {
  const samples: number[][] = servers.map(() => []);
  const args = [SCRAPERS, encoding, rounds, EVERY_MS, ...servers.map(({ port }) => port)].map(String);
  const { stdout } = await run(join(BUILD, 'bench/scraper'), args, { maxBuffer: 64 * 2 ** 20 });
  for (const line of stdout.trimEnd().split('\n')) {
    const [server = Number.NaN, nanoseconds = Number.NaN] = line.split(' ').map(Number);
    samples[server]?.push(nanoseconds / 1e6);
  }
  const wrong = samples.find(({ length }) => length !== SCRAPERS * rounds);
  if (wrong) throw new Error(`the scrapers reported ${wrong.length} scrapes of ${SCRAPERS * rounds}`);
  return samples;
}

/** Scrapes for which the page is rendered: the first one after each snapshot. */
async function rendered(server: Server, scrapes: number): Promise<number[]> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const samples: number[] = [];
  await ask(server, 'reset');
  for (let before = 0; samples.length < scrapes; ) {
    const took = await scrapeOnce(agent, server.port, 'gzip');
    const { renderings } = await ask(server, 'read');
    if (renderings > before) samples.push(took);
    before = renderings;
    // A snapshot comes each second; at other offsets to it each time.
    await delay(1000 + ((samples.length * 619) % 1000));
  }
  agent.destroy();
  return samples;
}

async function measureSize(size: number, { quick, note }: BenchOptions): Promise<Row[]> {
  return withTeardown(async (scope) => {
    const served = await startServer(scope, String(size));
    const bare = await startServer(scope, 'bare', String(size));
    note(`scrape: ${served.series} series, ${served.bytes} bytes`);
    const name = `scrape.series_${size}`;
    const rounds = quick ? 300 : 2000;
    const largest = size === SIZES.at(-1);
    await takeTurns([served, bare], 'gzip', 50);

    await ask(served, 'reset');
    if (largest) await delay(quick ? 5000 : 30_000);
    const idle = await ask(served, 'read');
    await ask(served, 'reset');
    const [ours = [], floor = []] = await takeTurns([served, bare], 'gzip', rounds);
    const loop = await ask(served, 'read');
    const beside = 'the same bytes from a bare node:http server in a process of its own';
    const row = (kind: string, value: number, reference: number, goal?: number): Row => ({
      name: `${name}.${kind}`,
      value,
      unit: 'ms',
      reference: { value: reference, what: beside },
      ...(goal === undefined ? {} : { goal: { most: goal, floor: true } }),
    });
    const each = await rendered(served, quick ? 5 : 20);
    const rows: Row[] = [
      row('shared_p50_ms', median(ours), median(floor), SHARED_MS[size]),
      row('shared_p99_ms', quantile(ours, 0.99), quantile(floor, 0.99)),
      {
        name: `${name}.p50_ms`,
        value: median(each),
        unit: 'ms',
        reference: { value: median(ours), what: 'the median of scrapes that share a page; the value has it rendered' },
        ...(RENDERED_MS[size] !== undefined && { goal: { most: RENDERED_MS[size] } }),
      },
    ];
    if (!largest) return rows;

    const [plain = [], plainFloor = []] = await takeTurns([served, bare], 'identity', Math.ceil(rounds / 3));
    rows.push(row('uncompressed.shared_p99_ms', quantile(plain, 0.99), quantile(plainFloor, 0.99)));
    rows.push({
      name: 'scrape.event_loop.max_block_ms',
      value: loop.blockMs,
      unit: 'ms',
      reference: {
        value: idle.blockMs,
        what: "without scrapes, snapshots published as usual; both are the loop's own CPU time in one iteration",
      },
      goal: { most: 10 },
    });
    rows.push({
      name: 'scrape.event_loop.max_delay_ms',
      value: loop.delayMs,
      unit: 'ms',
      reference: { value: idle.delayMs, what: 'without scrapes; both include the CPU time that other processes took' },
    });
    rows.push({
      name: 'scrape.renderings_per_snapshot',
      value: loop.renderings / loop.published,
      unit: 'renderings',
      reference: { value: ours.length / loop.published, what: 'scrapes per snapshot at that time' },
      goal: { most: 1 },
    });
    return rows;
  });
}

export const scrape: Bench = {
  name: 'scrape',
  what: 'a scrape by two scrapers at once: time, event loop, calls of the driver',
  async run(_scope, options) {
    const rows: Row[] = [];
    for (const size of SIZES) rows.push(...(await measureSize(size, options)));
    rows.push(await withTeardown(driverCalls));
    return rows;
  },
};
