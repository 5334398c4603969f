// What soak.test.ts looks at, in namespaces of its own: soak-inside.ts FOLDER SECONDS. A node on which some two hundred
// processes come and go under pids that are used again at once, its driver's bad days, a clock that jumps, and now and then a
// container that takes more than it may. Prints facts as JSON; which of them are right is said by the test.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { median } from '../../bench/statistics.ts';
import { CHART_ENV, compiled, type RunningTenant, runTenant, seriesOf, startAgent } from '../../support/agent.ts';
import { BUILD, eventually, startNode } from '../../support/node.ts';

const [folder = '', seconds = '60'] = process.argv.slice(2);
const TENANTS = 6;
const WORKERS = 30;
const HOST_WORKERS = 20;
const LIFE_MS = 8000;
const PIDS = ['5000', '5600'];
const CHURN = join(BUILD, 'tests/churn');
const CLIENT = join(BUILD, 'tests/client');
const CLOCK = join(folder, 'clock');
const OFFENDER_EVERY_MS = 6000;
const HOUR = 3600;

const undos: (() => void | Promise<void>)[] = [];
const scope = { teardown: (undo: () => void | Promise<void>) => undos.unshift(undo) };

const jumpTo = (later: number) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64LE(BigInt(later));
  // In place: those who look have it mapped.
  writeFileSync(CLOCK, bytes, { flag: 'r+' });
};
writeFileSync(CLOCK, Buffer.alloc(8));
// From here on for who is started; this process's own clock stays as it is.
process.env.COTENANT_TEST_CLOCK = CLOCK;

const node = await startNode(scope, '--card', 'h200,context=16Mi');
const library = join(folder, 'nvml.so');
copyFileSync(join(BUILD, 'tests/unruly.so'), library);
const mood = (name: 'n' | 'g' | 'h') => writeFileSync(`${library}.mode`, name);
mood('n');
const start = () =>
  startAgent(scope, node, {
    library,
    state: join(folder, 'state'),
    // As the chart starts it.
    env: {
      LD_LIBRARY_PATH: node.lib,
      ...CHART_ENV,
      NODE_COMPILE_CACHE: join(folder, 'compiled'),
    },
    settings: {
      silenceMs: 2000,
      processMetrics: true,
      'enforcement.mostStopsPerMinute': 1000,
    },
  });
// The first one leaves its compiled code to the second, as an agent that is started again finds it.
await compiled(start);
const agent = await start();
await agent.measured(1);
const agentPid = agent.child.pid ?? 0;
const descriptors = () => readdirSync(`/proc/${agentPid}/fd`).length;
const memoryMib = (field: 'VmRSS' | 'RssAnon') =>
  Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(readFileSync(`/proc/${agentPid}/status`, 'utf8'))?.[1]) / 1024;
const rssMib = () => memoryMib('VmRSS');

/** In a thread of its own, which this one's waits do not stop. */
const scraper = new Worker(
  `const { parentPort, workerData } = require('node:worker_threads');
   const ms = [];
   let series = 0, asked = false;
   parentPort.on('message', () => (asked = true));
   (async () => {
     while (!asked) {
       const begun = performance.now();
       const page = await (await fetch(workerData + '/metrics')).text();
       ms.push(performance.now() - begun);
       series = Math.max(series, page.split('\\n').filter((line) => line !== '' && line[0] !== '#').length);
       await new Promise((resolve) => setTimeout(resolve, 100));
     }
     parentPort.postMessage({ ms, series });
   })();`,
  { eval: true, workerData: agent.url },
);
const scraped = once(scraper, 'message');
let rss: number[] = [];
let sampling = true;
const watching = (async () => {
  while (sampling) {
    rss = [...rss.slice(-100_000), rssMib()];
    await delay(200);
  }
})();

await delay(2000);
const idleMib = rssMib();
const before = descriptors();
const churnWords = (workers: number) => [CHURN, 'libcuda.so.1', String(workers), '20', String(LIFE_MS), ...PIDS];
const tenants = Array.from({ length: TENANTS }, (_, index) =>
  runTenant(scope, node, agent, ['--gpu-memory', '2Gi', '--name', `honest-${index}`], churnWords(WORKERS)),
);
const [program = '', ...words] = churnWords(HOST_WORKERS);
const host = spawn(program, words, {
  env: { ...process.env, LD_LIBRARY_PATH: node.lib },
  stdio: ['pipe', 'pipe', 'inherit'],
});
scope.teardown(() => void host.kill('SIGKILL'));
const hostSaid = once(createInterface({ input: host.stdout }), 'line');

type Offender = { readonly name: string; readonly sinceMs: number; endedMs?: number; code?: number | null };
const offenders: Offender[] = [];
const disturbed: string[] = [];
const until = performance.now() + Number(seconds) * 1000;
const offend = (index: number): void => {
  const name = `offender-${index}`;
  const tenant: RunningTenant = runTenant(
    scope,
    node,
    agent,
    ['--gpu-memory', '256Mi', '--name', name],
    ['env', '-u', 'LD_PRELOAD', CLIENT],
  );
  for (const command of ['init', 'context 0', `alloc ${512 * 2 ** 20}`]) tenant.write(command);
  const one: Offender = { name, sinceMs: performance.now() };
  offenders.push(one);
  void tenant.ended.then(({ code }) => Object.assign(one, { endedMs: performance.now(), code }));
};
const offending = (async () => {
  for (let index = 0; performance.now() < until; index += 1) {
    offend(index);
    await delay(OFFENDER_EVERY_MS);
  }
})();
/** Each lasts for a while and ends; the clock stays where it jumped to until it jumps again. */
const days: readonly (readonly [string, () => void | Promise<void>])[] = [
  [
    'lists that take long',
    async () => {
      node.control('list-cost', '300000');
      await delay(2000);
      node.control('list-cost', '0');
    },
  ],
  ['an hour later', () => jumpTo(HOUR)],
  [
    'garbage',
    async () => {
      mood('g');
      await delay(4000);
      mood('n');
    },
  ],
  ['an hour earlier', () => jumpTo(0)],
  [
    'a call that hangs and cannot be ended',
    async () => {
      rmSync(`${library}.release`, { force: true });
      mood('h');
      await delay(4000);
      mood('n');
      writeFileSync(`${library}.release`, '');
    },
  ],
];
for (let turn = 0; performance.now() < until; turn += 1) {
  await delay(2500);
  const [name, happen] = days[turn % days.length] ?? ['', () => {}];
  await happen();
  disturbed.push(name);
}
await offending;
await eventually(
  () => offenders.every(({ endedMs }) => endedMs !== undefined) || undefined,
  'all offenders are stopped',
  30_000,
).catch(() => {});

const told = async (line: Promise<string>) => {
  const [started = 0, failed = 0, signalled = 0] = (await line).split(' ').map(Number);
  return { started, failed, signalled };
};
const honest = await Promise.all(
  tenants.map(async (tenant) => {
    tenant.child.stdin?.end();
    return told(tenant.line());
  }),
);
host.stdin.end();
const strangers = await told(hostSaid.then(([line]) => String(line)));
await Promise.all(tenants.map(({ ended }) => ended));
const after = await eventually(
  () => (descriptors() <= before ? descriptors() : undefined),
  'descriptors are given back',
  20_000,
).catch(descriptors);
sampling = false;
const anonymousMib = memoryMib('RssAnon');
await watching;
scraper.postMessage('end');
const [{ ms, series: mostSeries }] = (await scraped) as [{ ms: number[]; series: number }];
const stops = agent.audit().filter(({ action, result }) => /kill|terminate/.test(action) && result === 'sent');
const abandoned = seriesOf(await agent.metrics(), 'cotenant_exporter_samplers_abandoned_total') ?? 0;
const sorted = ms.toSorted((a, b) => a - b);
console.log(
  JSON.stringify({
    honest,
    strangers,
    offenders: offenders.map(({ name, sinceMs, endedMs, code }) => ({
      name,
      code: code ?? null,
      seconds: endedMs === undefined ? null : (endedMs - sinceMs) / 1000,
    })),
    stopped: stops.map(({ pod }) => pod),
    disturbed,
    abandoned,
    pids: Number(PIDS[1]) - Number(PIDS[0]) + 1,
    descriptors: { before, after },
    rssMib: {
      early: median(rss.slice(0, rss.length >> 1)),
      late: median(rss.slice(rss.length >> 1)),
      most: Math.max(...rss),
      idle: idleMib,
      anonymous: anonymousMib,
    },
    scrapes: {
      count: sorted.length,
      series: mostSeries,
      p50: sorted[sorted.length >> 1],
      p99: sorted[Math.floor(sorted.length * 0.99)],
    },
    log: agent.log.slice(-20),
  }),
);
for (const undo of undos) await undo();
process.exit(0);
