// The laboratory's questions asked of real processes: programs behind the interposer's gate, the arbiter's process, and
// the simulated driver in real time. Beside each figure is the laboratory's of the same case, from the same run. What a
// share may be off for reasons of the machine is measured with it: for how long it kept those that take part from
// running.
import { spawn } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { delayedMs, ranOnCoresMs, serving, stolenMs } from '../../support/machine/scheduling-delays.ts';
import { startArbiter, type Tenant } from '../../support/native/arbiter.ts';
import { type Client, readyClient } from '../../support/native/client.ts';
import { startHostile } from '../../support/native/hostile-page.ts';
import { eventually, type SimulatedNode, startNode, type Teardown } from '../../support/native/node.ts';
import { ranMs } from '../../support/native/shares.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';
import { type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';
import { maximum, median, quantile } from '../statistics.ts';
import { type Form, lengthName, runLab } from './lab.ts';
import { after, jain, percentOf } from './measure.ts';

const WARM_SECONDS = 2;
const SETTLE_MS = 500;
const FOREVER_MS = 3_600_000;

type Member = { readonly form: Form; readonly kernelUs: number; readonly percent: number };
/**
 * Percent of the GPU that each got, and percent of the time for which the machine held up any of those that take part:
 * they were ready to run and others ran, or the machine itself did not run.
 */
type Seen = { readonly shares: readonly number[]; readonly held: number };

async function watch(node: SimulatedNode, pids: readonly number[], ms: number): Promise<Seen> {
  const everybody = [...pids, ...serving()];
  const held = () => everybody.map(delayedMs);
  const ran = () => pids.map((pid) => ranMs(node, pid));
  const from = performance.now();
  const [stolenBefore, heldBefore, ranBefore] = [stolenMs(), held(), ran()];
  await delay(ms);
  const [ranAfter, heldAfter, stolen] = [ran(), held(), stolenMs() - stolenBefore];
  const percent = (gone: number) => (100 * gone) / (performance.now() - from);
  const grown = (now: readonly number[], before: readonly number[]) =>
    now.map((sum, index) => percent(sum - (before[index] ?? 0)));
  return {
    shares: grown(ranAfter, ranBefore),
    held: Math.min(100, maximum(grown(heldAfter, heldBefore)) + percent(stolen)),
  };
}

type Ward = {
  readonly node: SimulatedNode;
  readonly clients: readonly Client[];
  /** From now on they have these shares. */
  divide(policy: 'native' | 'fixed', percents: readonly number[]): Promise<void>;
  watch(ms: number): Promise<Seen>;
};

/** Programs of one GPU that always have work, each in a container of its own. */
async function ward(scope: Teardown, members: readonly Pick<Member, 'form' | 'kernelUs'>[]): Promise<Ward> {
  const node = await startNode(scope, '--gpu', 't4');
  const arbiter = startArbiter(scope);
  const grants = members.map(() => makeGrant(scope, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 1 }]));
  const tenants = (percents: readonly number[]): Tenant[] =>
    grants.map((grant, index) => ({
      id: `tenant-${index}`,
      grant,
      gpus: [{ gpu: 0, percent: percents[index] ?? 0 }],
    }));
  const divide = async (policy: 'native' | 'fixed', percents: readonly number[]) => {
    await arbiter.plan(policy, tenants(percents));
    await delay(SETTLE_MS); // a live change has so long
  };
  await divide(
    'native',
    members.map(() => 1),
  );
  const clients = await Promise.all(grants.map(({ cuda }) => readyClient(scope, node, { preload: cuda })));
  for (const [index, { form, kernelUs }] of members.entries())
    clients[index]?.ask(`load ${form} ${FOREVER_MS} ${kernelUs}`).catch(() => {});
  const pids = clients.map(({ pid }) => pid);
  await eventually(() => (pids.every((pid) => ranMs(node, pid) > 20) ? true : undefined), 'all are at work');
  return { node, clients, divide, watch: (ms) => watch(node, pids, ms) };
}

/** The laboratory's error of the same case: points of what the program reaches without a cap. */
async function laboratory(member: Member, seconds: number): Promise<number> {
  const [native, capped] = await Promise.all(
    (['native', 'cotenant'] as const).map((law) => runLab({ law, seconds: seconds + WARM_SECONDS, tenants: [member] })),
  );
  const got = (served: typeof native) => percentOf(after(served?.[0]?.work_us ?? [], WARM_SECONDS));
  return Math.abs((100 * got(capped)) / got(native) - member.percent);
}

type Turn = { readonly native: Seen; readonly capped: Seen };

/** How far a program's share of what it reaches without a cap was off, and what of that the machine may have done. */
function offIn({ native, capped }: Turn, percent: number): { readonly error: number; readonly noise: number } {
  const of = (seen: Seen) => seen.shares[0] ?? 0;
  // What the machine kept from running without a cap is missing in what the share is a part of.
  const base = 1 - Math.min(native.held, 99) / 100;
  return {
    error: Math.abs((100 * of(capped)) / of(native) - percent),
    noise: capped.held + percent / base - percent,
  };
}

async function alone({ quick, note }: BenchOptions): Promise<Row[]> {
  const forms: readonly Form[] = quick ? ['async', 'sync'] : ['async', 'sync', 'graph', 'cooperative'];
  const lengths = quick ? [1000] : [200, 1000, 5000];
  const percents = quick ? [25] : [10, 25, 50, 75];
  // Turn by turn with the same program without a cap, for the machine is not as quick at all times.
  const turns = quick ? 1 : 3;
  const seconds = 3;
  note(`compute: ${forms.length * lengths.length * percents.length} real programs alone`);
  const rows: Row[] = [];
  const beyond: number[] = [];
  for (const form of forms) {
    for (const kernelUs of lengths) {
      await withTeardown(async (scope) => {
        const { divide, watch } = await ward(scope, [{ form, kernelUs }]);
        for (const percent of percents) {
          const seen: { readonly error: number; readonly noise: number }[] = [];
          for (let turn = 0; turn < turns; turn += 1) {
            await divide('native', [1]);
            const native = await watch(1000);
            await divide('fixed', [percent]);
            seen.push(offIn({ native, capped: await watch(seconds * 1000) }, percent));
          }
          const lab = await laboratory({ form, kernelUs, percent }, seconds);
          // The one that says most of us, and least of the machine.
          const [quietest = { error: Number.NaN, noise: 0 }] = seen.toSorted((one, other) => one.noise - other.noise);
          const { error, noise } = quietest;
          beyond.push(Math.max(0, error - lab - noise));
          rows.push({
            name: `compute.real.share_error_points.${form}.${lengthName(kernelUs)}.${percent}`,
            value: error,
            unit: 'points',
            reference: {
              value: lab,
              what: `the laboratory's; the machine held up those that take part for ${noise.toFixed(1)} points' worth of it`,
            },
          });
        }
      });
    }
  }
  rows.push({
    name: 'compute.real.share_error_points.beyond_noise',
    value: maximum(beyond),
    unit: 'points',
    reference: { value: 1, what: "the bound; what is above the laboratory's and what the machine held up, at worst" },
    goal: { most: 1 },
  });
  return rows;
}

const MIXES: Readonly<Record<string, readonly Member[]>> = {
  '30_70': [
    { form: 'async', kernelUs: 200, percent: 30 },
    { form: 'async', kernelUs: 200, percent: 70 },
  ],
  '10_90': [
    { form: 'async', kernelUs: 50, percent: 10 },
    { form: 'graph', kernelUs: 1000, percent: 90 },
  ],
  '4x25': Array<Member>(4).fill({ form: 'async', kernelUs: 500, percent: 25 }),
};

async function together({ quick, note }: BenchOptions): Promise<Row[]> {
  const seconds = quick ? 4 : 20;
  const rows: Row[] = [];
  for (const [name, members] of Object.entries(MIXES).slice(0, quick ? 1 : undefined)) {
    note(`compute: real programs that share, ${name}`);
    const percents = members.map(({ percent }) => percent);
    const perShare = (shares: readonly number[]) => jain(shares.map((share, index) => share / (percents[index] ?? 1)));
    const { native, fixed } = await withTeardown(async (scope) => {
      const { divide, watch } = await ward(scope, members);
      const before = await watch(2000);
      await divide('fixed', percents);
      return { native: before, fixed: await watch(seconds * 1000) };
    });
    const lab = (await runLab({ seconds: seconds + WARM_SECONDS, tenants: members })).map(({ work_us }) =>
      percentOf(after(work_us, WARM_SECONDS)),
    );
    const sum = (shares: readonly number[]) => shares.reduce((total, share) => total + share, 0);
    const held = `the machine held up those that take part for ${fixed.held.toFixed(1)} % of the time`;
    rows.push(
      {
        name: `compute.real.jain.${name}`,
        value: perShare(fixed.shares),
        unit: 'index',
        reference: { value: perShare(lab), what: `the laboratory's; ${held}` },
      },
      {
        name: `compute.real.throughput_ratio.${name}`,
        value: sum(fixed.shares) / sum(native.shares),
        unit: 'ratio',
        reference: {
          value: sum(lab) / 100,
          what: `the laboratory's, of the whole GPU; the value is of native; ${held}`,
        },
      },
    );
  }
  return rows;
}

/** What a program that is held to nothing, or to all of the GPU, loses to us: turn by turn with the same program
 * alone. */
async function overhead({ quick, note }: BenchOptions): Promise<Row[]> {
  note('compute: what real programs lose');
  const turns = quick ? 2 : 10;
  return await withTeardown(async (scope) => {
    const { divide, watch } = await ward(scope, [{ form: 'async', kernelUs: 200 }]);
    const times = { native: [] as number[], share_100: [] as number[], share_99: [] as number[] };
    for (let turn = 0; turn < turns; turn += 1) {
      for (const [kind, policy, percent] of [
        ['native', 'native', 1],
        ['share_100', 'fixed', 100],
        ['share_99', 'fixed', 99],
      ] as const) {
        await divide(policy, [percent]);
        times[kind].push((await watch(1000)).shares[0] ?? 0);
      }
    }
    /** Of neighboring turns, for the machine is not as quick at all times. */
    const row = (name: 'share_100' | 'share_99', most: number): Row => ({
      name: `compute.overhead.${name}.throughput_ratio`,
      value: median(times[name].map((share, turn) => share / ((times.native[turn] ?? 0) * most))),
      unit: 'ratio',
      reference: {
        value: median(times.native) / 100,
        what: 'of the time of the GPU, under the native policy; the value is of that, and of the share',
      },
      goal: { least: 0.995 },
    });
    return [row('share_100', 1), row('share_99', 0.99)];
  });
}

/** The arbiter's own timer while every core has twice as much to do as it can. */
async function wake({ quick, note }: BenchOptions): Promise<Row[]> {
  note('compute: how late the arbiter wakes');
  const ms = quick ? 3000 : 30_000;
  return await withTeardown(async (scope) => {
    const node = await startNode(scope, '--gpu', 't4');
    const arbiter = startArbiter(scope);
    const grant = makeGrant(scope, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 30 }]);
    await arbiter.plan('fixed', [{ id: 'tenant', grant, gpus: [{ gpu: 0, percent: 30 }] }]);
    const client = await readyClient(scope, node, { preload: grant.cuda });
    client.ask(`load async ${FOREVER_MS} 200`).catch(() => {});
    /** The worst of each piece of time that the arbiter tells of. */
    const latest = async () => {
      const late = new Map<object, number>();
      for (const until = performance.now() + ms; performance.now() < until; await delay(10)) {
        const status = arbiter.status();
        if (status) late.set(status, status.lateNs / 1000);
      }
      return [...late.values()];
    };
    const idle = await latest();
    for (let burner = 0; burner < 2 * availableParallelism(); burner += 1) {
      const child = spawn('sh', ['-c', 'while :; do :; done'], { stdio: 'ignore' });
      scope.teardown(() => void child.kill('SIGKILL'));
    }
    const busy = await latest();
    return [
      {
        name: 'compute.arbiter.wake_p99_us',
        value: quantile(busy, 0.99),
        unit: 'us',
        reference: {
          value: quantile(idle, 0.99),
          what: `the same without; ${2 * availableParallelism()} endless loops on ${availableParallelism()} cores, of the latest in each second`,
        },
      },
    ];
  });
}

/** What a tenant that rings without a pause, with 20,000 record locks on its ledger, costs the arbiter's thread. */
async function hostile({ quick, note }: BenchOptions): Promise<Row[]> {
  note('compute: a hostile lease page');
  return await withTeardown(async (scope) => {
    const node = await startNode(scope, '--gpu', 't4');
    const arbiter = startArbiter(scope);
    const grant = makeGrant(scope, node, [{ gpu: 0, memoryBytes: 512 * MIB, coresPercent: 30 }]);
    await arbiter.plan('fixed', [{ id: 'tenant', grant, gpus: [{ gpu: 0, percent: 30 }] }]);
    const ratio = async () => {
      const before = ranOnCoresMs(arbiter.child.pid ?? 0);
      const from = performance.now();
      await delay(quick ? 2000 : 10_000);
      return (ranOnCoresMs(arbiter.child.pid ?? 0) - before) / (performance.now() - from);
    };
    const without = await ratio();
    await startHostile(scope, grant, 20_000);
    return [
      {
        name: 'compute.arbiter.hostile_core_ratio',
        value: await ratio(),
        unit: 'ratio',
        reference: { value: without, what: 'the same without; of a processor core' },
        goal: { most: 0.05 },
      },
    ];
  });
}

export async function real(options: BenchOptions): Promise<Row[]> {
  return [
    ...(await alone(options)),
    ...(await together(options)),
    ...(await overhead(options)),
    ...(await wake(options)),
    ...(await hostile(options)),
  ];
}
