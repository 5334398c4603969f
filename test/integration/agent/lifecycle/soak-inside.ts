// What soak.test.ts looks at, in namespaces of its own: soak-inside.ts FOLDER SECONDS. A node on which some two hundred
// processes come and go under pids that are used again at once, some of them in namespaces of their own, its driver's
// bad days, a clock that jumps, and now and then a container that takes more than it may, in one way or another. Prints
// facts as JSON; which of them are right is said by the test.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { attempt } from '../../../../src/common/result.ts';
import { median } from '../../../bench/statistics.ts';
import { childrenNamed, type Span, startedMs } from '../../../support/machine/scheduling-delays.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { CHART_ENV, compiled, runTenant, seriesOf, startAgent } from '../../../support/product/agent.ts';
import { type Offender, OWN_NAMESPACES, offend, PIDS } from './soak-offenders.ts';
import { startScraping } from './soak-scrapes.ts';

const [folder = '', seconds = '60'] = process.argv.slice(2);
const TENANTS = 6;
const WORKERS = 30;
const HOST_WORKERS = 20;
const LIFE_MS = 8000;
/** What each of them takes, and its context. */
const WORKER_MIB = 20;
const CONTEXT_MIB = 16;
/** All that a tenant's may have at any time. The grant has memory for no other process: a process that is taken for one
 * of them is over it. */
const HELD_MIB = WORKERS * (CONTEXT_MIB + WORKER_MIB);
const GRANT_MIB = HELD_MIB + (CONTEXT_MIB + WORKER_MIB) / 2;
const CHURN = join(BUILD, 'tests/pid_churn');
const CLOCK = join(folder, 'clock');
const OFFENDER_EVERY_MS = 4000;
/** Grants for a page of some 3,000 series, where there is time for that many scrapes. */
const IDLE_GRANTS = Number(seconds) >= 600 ? 45 : 0;
/** These grants are on another one, and leave memory for those that come: a GPU takes 50 tenants. */
const GPUS = IDLE_GRANTS > 0 ? 2 : 1;
const SILENCE_MS = 2000;
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

const node = await startNode(
  scope,
  ...Array.from({ length: GPUS }, () => ['--gpu', `h200,context=${CONTEXT_MIB}Mi`]).flat(),
);
const library = join(folder, 'nvml.so');
copyFileSync(join(BUILD, 'tests/unreliable_nvml.so'), library);
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
      silenceMs: SILENCE_MS,
      processMetrics: true,
      'enforcement.mostStopsPerMinute': 1000,
    },
  });
// The first one leaves its compiled code to the second, as an agent that is started again finds it.
await compiled(start);
const agent = await start();
await agent.measured(GPUS);
const agentPid = agent.child.pid ?? 0;
const OWN = ['cotenant-sample', 'cotenant-arbitr'] as const;
/** Of the agent, its sampler, which has a handle of each process that it follows, and its arbiter: what each leads to. */
const descriptors = () => [agentPid, ...OWN.flatMap((name) => childrenNamed(agentPid, name))].flatMap(openedBy);
const openedBy = (pid: number): readonly string[] => {
  try {
    const folder = `/proc/${pid}/fd`;
    return readdirSync(folder).map((name) => {
      const to = attempt(() => readlinkSync(join(folder, name)));
      return `${pid === agentPid ? 'agent' : 'child'} ${to.ok ? to.value.replace(/:\[\d+\]$/, '') : name}`;
    });
  } catch {
    return []; // it has ended
  }
};
/** Connections that clients hold to the agent's page: as many as ever asked at the same time, each a descriptor of it. */
const connections = () => {
  const port = Number(new URL(agent.url).port).toString(16).toUpperCase().padStart(4, '0');
  const lines = ['tcp', 'tcp6'].flatMap((name) =>
    readFileSync(`/proc/net/${name}`, 'utf8').trim().split('\n').slice(1),
  );
  const ESTABLISHED = '01';
  return lines.filter((line) => {
    const [, , remote = '', state] = line.trim().split(/\s+/);
    return state === ESTABLISHED && remote.endsWith(`:${port}`);
  }).length;
};
const ownDescriptors = () => descriptors().length - connections();
/** Those of one list that the other has not, or not as often. */
const without = (list: readonly string[], other: readonly string[]) => {
  const left = [...other];
  return list.filter((one) => {
    const at = left.indexOf(one);
    if (at >= 0) left.splice(at, 1);
    return at < 0;
  });
};
const memoryMib = (field: 'VmRSS' | 'RssAnon') =>
  Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(readFileSync(`/proc/${agentPid}/status`, 'utf8'))?.[1]) / 1024;
/** Of the agent, its sampler (with those that hung) and its arbiter; what they share is in it more than once. */
const partsMib = () => {
  const sumOf = (name: string) => childrenNamed(agentPid, name).reduce((sum, pid) => sum + residentMib(pid), 0);
  return { agent: memoryMib('VmRSS'), samplers: sumOf(OWN[0]), arbiter: sumOf(OWN[1]) };
};
const rssMib = () => Object.values(partsMib()).reduce((sum, mib) => sum + mib, 0);
const residentMib = (pid: number): number => {
  try {
    return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024;
  } catch {
    return 0; // it has ended
  }
};

const scraping = await startScraping(`${agent.url}/metrics`, agentPid);
let rss: number[] = [];
let most = partsMib();
let sampling = true;
const watching = (async () => {
  while (sampling) {
    const parts = partsMib();
    const sum = parts.agent + parts.samplers + parts.arbiter;
    if (sum > most.agent + most.samplers + most.arbiter) most = parts;
    rss = [...rss.slice(-100_000), sum];
    await delay(200);
  }
})();

const sleeper = spawn('sleep', ['infinity'], { stdio: 'ignore' });
scope.teardown(() => void sleeper.kill('SIGKILL'));
const uuids = (await agent.snapshot())?.devices.map(({ gpu }) => gpu.uuid) ?? [];
for (let index = 0; index < IDLE_GRANTS; index += 1) {
  const answer = await ask(agent.state, 'POST', '/v1/grants', {
    name: `idle-${index}`,
    container: 'main',
    shares: [{ memory: { kind: 'bytes', bytes: 64 * 2 ** 20 } }],
    gpuUuids: uuids.slice(1),
    isolateMemory: true,
    pid: sleeper.pid,
    startTicks: Math.round(startedMs(sleeper.pid ?? 0) / 10),
  });
  if (answer.status !== 201) throw new Error(JSON.stringify(answer.body));
}
await delay(2000);
const idleMib = rssMib();
const [before, ledTo] = [ownDescriptors(), descriptors()];
const churnWords = (workers: number) => [
  CHURN,
  'libcuda.so.1',
  String(workers),
  String(WORKER_MIB),
  String(LIFE_MS),
  ...PIDS,
];
const tenants = Array.from({ length: TENANTS }, (_, index) =>
  runTenant(
    scope,
    node,
    agent,
    ['--gpu-memory', `${GRANT_MIB}Mi`, '--name', `honest-${index}`],
    [...(index % 3 === 2 ? OWN_NAMESPACES : []), ...churnWords(WORKERS)],
  ),
);
// A process that computes all the time, whatever happens to the clock and the driver.
const computing = runTenant(
  scope,
  node,
  agent,
  ['--gpu-memory', '1Gi', '--name', 'computing'],
  [join(BUILD, 'tests/client'), 'libcuda.so.1', 'init', 'context 0', `launch ${Number(seconds) * 200} 20000`],
);
const [program = '', ...args] = churnWords(HOST_WORKERS);
const host = spawn(program, args, {
  env: { ...process.env, LD_LIBRARY_PATH: node.lib },
  stdio: ['pipe', 'pipe', 'inherit'],
});
scope.teardown(() => void host.kill('SIGKILL'));
const hostSaid = once(createInterface({ input: host.stdout }), 'line');

const offenders: Offender[] = [];
const disturbed: string[] = [];
/** When the driver reported nothing, or nothing that is true: no container can be stopped then. */
const blind: (Span & { to: number })[] = [];
/** An offender whose whole time is to lie outside of these, until it has ended. */
let sheltered: Promise<unknown> | undefined;
/** Who is missed keeps them from coming for so long only. */
const MOST_SHELTER_MS = 20_000;
async function becomeBlind(): Promise<(afterMs: number) => void> {
  while (sheltered) await sheltered;
  const time = { from: performance.now(), to: Number.POSITIVE_INFINITY };
  blind.push(time);
  return (afterMs) => {
    time.to = performance.now() + afterMs;
  };
}
const becomeSeeing = () =>
  eventually(() => blind.every(({ to }) => performance.now() > to) || undefined, 'the driver tells again', 60_000);
const until = performance.now() + Number(seconds) * 1000;

const offending = (async () => {
  for (let index = 0; performance.now() < until; index += 1) {
    // Of each way one whenever it happens to come, and one all of whose time the driver tells the truth.
    const isSheltered = ((index ^ (index >> 2)) & 1) === 1;
    if (isSheltered) await becomeSeeing();
    const offending = offend({ scope, node, agent }, index, blind);
    if (isSheltered)
      sheltered = offending.then(async ({ ended }) => {
        await Promise.race([ended, delay(MOST_SHELTER_MS)]);
        sheltered = undefined;
      });
    offenders.push(await offending);
    await delay(OFFENDER_EVERY_MS);
  }
})();
const SAMPLE_MS = 1000;
let garbageMet = 0;
/** Failures that no driver of ours has by itself: 999, "unknown". */
const unknownAnswers = async () =>
  seriesOf(await agent.metrics(), 'cotenant_exporter_nvml_errors_total', { code: '999' }) ?? 0;
/** Seconds by which the agent's clock was found ahead after each jump. */
const ahead: number[] = [];
async function jumped(later: number): Promise<void> {
  jumpTo(later);
  const aheadOf = async () => (((await agent.snapshot())?.atMs ?? 0) - Date.now()) / 1000;
  await eventually(async () => Math.abs((await aheadOf()) - later) < 60 || undefined, 'its clock jumps').catch(
    () => {},
  );
  ahead.push(Math.round(await aheadOf()) || 0);
}
/** Each lasts for a while and ends; the clock stays where it jumped to until it jumps again. */
const days: readonly (readonly [string, () => void | Promise<void>])[] = [
  [
    'lists that take long',
    async () => {
      node.control('process-list-delay', '300000');
      await delay(2000);
      node.control('process-list-delay', '0');
    },
  ],
  ['an hour later', () => jumped(HOUR)],
  [
    'garbage',
    async () => {
      const seeAfter = await becomeBlind();
      const before = await unknownAnswers();
      mood('g');
      await delay(4000);
      garbageMet += Math.max(0, (await unknownAnswers()) - before);
      mood('n');
      seeAfter(SAMPLE_MS);
    },
  ],
  ['an hour earlier', () => jumped(0)],
  [
    'a call that hangs and cannot be ended',
    async () => {
      const seeAfter = await becomeBlind();
      rmSync(`${library}.release`, { force: true });
      mood('h');
      await delay(4000);
      mood('n');
      writeFileSync(`${library}.release`, '');
      // Who hangs is given up after a silence, and so is who hung after that one.
      seeAfter(SILENCE_MS + SAMPLE_MS);
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
/** How each of them ended; who has not is missed. */
const ends = await Promise.all(
  offenders.map(async ({ name, kind, ended }) => {
    const end = await Promise.race([ended, delay(30_000, undefined, { ref: false })]);
    return { name, kind, code: end?.code ?? null, taken: end?.taken ?? null };
  }),
);

/** What is known of those who were missed, before anything is taken down. */
const published = ends.some(({ code }) => code === null) ? await agent.snapshot() : undefined;
const missed = ends.flatMap(({ name, code }) =>
  code === null
    ? [
        {
          name,
          container: published?.containers.find(({ pod }) => pod === name),
          clients: node.usage().clients.filter(({ alive }) => alive),
          log: agent.log.filter((line) => line.includes(name)).slice(-20),
        },
      ]
    : [],
);
const computed = {
  published: seriesOf(await agent.metrics(), 'cotenant_container_sm_seconds_total', { pod: 'computing' }) ?? 0,
  // On whichever GPU it was given.
  booked:
    (node.usage().clients.find(({ command, alive }) => alive && command === 'client')?.gpus ?? []).reduce(
      (sum, { smNs }) => sum + smNs,
      0,
    ) / 1e9,
  // While the driver reported nothing that is true.
  unreported: blind.reduce((sum, { from, to }) => sum + Math.max(0, Math.min(to, performance.now()) - from) / 1000, 0),
};
computing.child.kill('SIGTERM');

const printed = async (line: Promise<string>) => {
  const [started = 0, failed = 0, signaled = 0] = (await line).split(' ').map(Number);
  return { started, failed, signaled };
};
const honest = await Promise.all(
  tenants.map(async (tenant) => {
    tenant.child.stdin?.end();
    return printed(tenant.line());
  }),
);
host.stdin.end();
const strangers = await printed(hostSaid.then(([line]) => String(line)));
await Promise.all(tenants.map(({ ended }) => ended));
const after = await eventually(
  () => (ownDescriptors() <= before ? ownDescriptors() : undefined),
  'descriptors are given back',
  20_000,
).catch(ownDescriptors);
sampling = false;
const anonymousMib = memoryMib('RssAnon');
await watching;
const { scrapes, mostBytes, mostLine, mostRatio, honestBytes, fell } = await scraping.end();
// As they came: the audit log keeps the last of them only.
const STOP = / enforcer: (?:kill|terminate): local\/([^/]+)\/.*\(sent\) pod=/;
const stops = agent.log.flatMap((line) => STOP.exec(line)?.[1] ?? []);
const abandoned = seriesOf(await agent.metrics(), 'cotenant_exporter_samplers_abandoned_total') ?? 0;
console.log(
  JSON.stringify({
    honest,
    strangers,
    honestMib: { published: honestBytes / 2 ** 20, held: HELD_MIB, process: CONTEXT_MIB + WORKER_MIB },
    offenders: ends,
    missed,
    stopped: stops,
    ahead,
    garbage: { met: garbageMet, mostBytes, mostLine, mostRatio },
    computed,
    fell,
    disturbed,
    abandoned,
    pids: Number(PIDS[1]) - Number(PIDS[0]) + 1,
    descriptors: {
      ...{ before, after, more: without(descriptors(), ledTo), fewer: without(ledTo, descriptors()) },
    },
    rssMib: {
      early: median(rss.slice(0, rss.length >> 1)),
      late: median(rss.slice(rss.length >> 1)),
      most: most.agent + most.samplers + most.arbiter,
      parts: most,
      idle: idleMib,
      anonymous: anonymousMib,
    },
    scrapes,
    log: agent.log.slice(-20),
  }),
);
for (const undo of undos) await undo();
process.exit(0);
