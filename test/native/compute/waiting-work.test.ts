// Programs whose work waits for other work, or is captured, under shares of compute: they end as they would without a
// share, later by what the share takes. Real processes on the simulated driver (test/native/programs/streams.c).
import test, { type ExecutionContext } from 'ava';
import {
  type Arbiter,
  type ArbiterStatus,
  type Policy,
  startArbiter,
  type Tenant,
} from '../../support/native/arbiter.ts';
import { readyClient } from '../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { SANITIZED } from '../../support/native/random-programs.ts';
import { streams } from '../../support/native/streams.ts';
import { type GrantFiles, MIB, makeGrant } from '../../support/product/grant.ts';

type Share = { readonly percent: number; readonly gpus?: readonly number[] };
type Bench = { readonly node: SimulatedNode; readonly arbiter: Arbiter; readonly grants: readonly GrantFiles[] };

/** A container for each share, on GPU 0 unless it names others. */
async function bench(t: ExecutionContext, shares: readonly Share[], policy: Policy = 'fixed'): Promise<Bench> {
  const used = new Set(shares.flatMap(({ gpus = [0] }) => gpus));
  const node = await startNode(t, ...[...used].flatMap(() => ['--gpu', 't4']));
  const arbiter = startArbiter(t);
  const grants = shares.map(({ percent, gpus = [0] }) =>
    makeGrant(
      t,
      node,
      gpus.map((gpu) => ({ gpu, memoryBytes: 512 * MIB, coresPercent: percent })),
    ),
  );
  const tenants: Tenant[] = shares.map(({ percent, gpus = [0] }, index) => {
    const grant = grants[index];
    if (!grant) throw new Error('no grant');
    return { id: `tenant-${index}`, grant, gpus: gpus.map((gpu) => ({ gpu, percent })) };
  });
  await arbiter.plan(policy, tenants);
  return { node, arbiter, grants };
}

const NO_CAPTURE_FAILED = { failed: 0, end: 0 };
const CAPTURES: readonly (readonly [what: string, words: readonly string[]])[] = [
  ['of a stream with work', ['capture', '20', '1']],
  ['of a blocking stream with work', ['capture', '20', '0']],
  ['of a blocking stream after work on the default one', ['capture-other', '20', '0']],
  ['that a stream with work joins', ['join', '20']],
];
for (const [what, words] of CAPTURES) {
  test.serial(`a capture ${what} succeeds under a share`, async (t) => {
    const { node, grants } = await bench(t, [{ percent: 50 }]);
    t.deepEqual(await streams(t, node, words, { preload: grants[0]?.cuda ?? '' }).result, NO_CAPTURE_FAILED);
  });
}

test.serial('captures succeed in a container without a share beside one that has one', async (t) => {
  const { node, grants } = await bench(t, [{ percent: 50 }, { percent: 0 }]);
  await readyClient(t, node, { preload: grants[0]?.cuda ?? '' });
  for (const [what, words] of CAPTURES) {
    t.deepEqual(await streams(t, node, words, { preload: grants[1]?.cuda ?? '' }).result, NO_CAPTURE_FAILED, what);
  }
});

for (const percent of [50, 100]) {
  test.serial(`a share of ${percent} % adds no barrier between blocking streams`, async (t) => {
    const { node, grants } = await bench(t, [{ percent }]);
    // A barrier is a deadlock: then it does not end.
    const { ms } = await streams<{ ms: number }>(t, node, ['overlap', '10'], { preload: grants[0]?.cuda ?? '' }).result;
    t.true(ms >= 10 * 2, `${ms} ms`);
  });
}

type Ranks = { readonly collectives: number; readonly longestMs: number };

for (const percent of [10, 50, 100]) {
  test.serial(`kernels that wait for a later launch end under a share of ${percent} %`, async (t) => {
    const { node, grants } = await bench(t, [{ percent }]);
    for (const words of [['two'], ['many', '30']]) {
      const { ms } = await streams<{ ms: number }>(t, node, words, { preload: grants[0]?.cuda ?? '' }).result;
      t.true(ms < 5000, `${words.join(' ')}: ${ms} ms`);
    }
  });
}

test.serial('launches that are let go for work that may wait for them are counted', async (t) => {
  const { node, grants, arbiter } = await bench(t, [{ percent: 50 }, { percent: 50 }]);
  const run = (tenant: number, ...words: string[]) =>
    streams(t, node, words, { preload: grants[tenant]?.cuda ?? '' }).result;
  const relieved = ({ pages }: ArbiterStatus) => pages.map(({ gpus: [gpu] }) => gpu?.relieved ?? 0);
  const now = async () => relieved(await arbiter.until(() => true, 'a status'));
  // Kernels that wait for nothing look as if they did where the machine stands still: not in each of three runs.
  const counts: number[] = [];
  while (counts.length < 3 && !counts.includes(0)) {
    const [, before = 0] = await now();
    await run(1, 'busy', '500');
    const [, after = 0] = await now();
    counts.push(after - before);
  }
  t.true(counts.includes(0), counts.join(' '));
  await run(0, 'many', '30');
  const status = await arbiter.until((seen) => (relieved(seen)[0] ?? 0) > 0, 'the page says so');
  // `many` launches a kernel per stream, each of which waits for the last one's.
  t.true((relieved(status)[0] ?? 0) <= 30);
});

test.serial('kernels that wait for a later launch end beside a busy and an idle neighbor', async (t) => {
  const { node, grants } = await bench(t, [{ percent: 50 }, { percent: 40 }, { percent: 0 }]);
  await readyClient(t, node, { preload: grants[1]?.cuda ?? '' });
  const preload = grants[2]?.cuda ?? '';
  const idle = await streams<{ ms: number }>(t, node, ['two'], { preload }).result;
  t.true(idle.ms < 2000, `${idle.ms} ms beside idle ones`);
  const busy = streams(t, node, ['busy', '15000'], { preload: grants[1]?.cuda ?? '' });
  const beside = await streams<{ ms: number }>(t, node, ['many', '30'], { preload: grants[0]?.cuda ?? '' }).result;
  t.true(beside.ms < 5000, `${beside.ms} ms beside a busy one`);
  busy.child.kill('SIGKILL');
});

test.serial('ranks of one container go on beside a neighbor on one of their GPUs', async (t) => {
  const { node, grants } = await bench(t, [
    { percent: 50, gpus: [0, 1] },
    { percent: 50, gpus: [1] },
  ]);
  const busy = streams<{ kernels: number }>(t, node, ['busy', '4000'], { preload: grants[1]?.cuda ?? '' });
  const ranks = [0, 1].map((gpu) =>
    streams<Ranks>(t, node, ['ranks', '7', '2', '3000'], { preload: grants[0]?.cuda ?? '', gpu }),
  );
  for (const { result } of ranks) {
    const { collectives, longestMs } = await result;
    t.log(`${collectives} collectives`);
    t.true(collectives > 100, `${collectives} collectives`);
    t.true(longestMs < 1000, `one took ${longestMs} ms`);
  }
  t.true((await busy.result).kernels > 500);
});

const isWorking = (node: SimulatedNode, pid: number | undefined) =>
  node.usage().clients.some((client) => client.pid === pid && client.gpus[0]?.smNs);

/** As many as stood still on hardware: 28 steps, all launched before the first wait. */
const STEPS = 28;
const MOST_ROUNDS = 3;

/** Of no round, on however busy a machine: there a rank comes when the turn is over, and each step may wait for a turn at
 * its bound, 120 ms of 50 % and what the container owes (docs/develop/interposer.md). Where the charge for kernels that
 * wait lengthens the waits of what they wait for, a step takes more than 430 ms, or has no end. */
const MOST_STEP_MS = 400;

/* A step takes 5 ms without a share (11 of four ranks), and twice as long by its share. The rest is for what a busy machine
 * adds, and until it is known how long the kernels take: of three rounds one is to be so short. In two containers each step
 * takes turns of both, until they are found to belong together. */
for (const [what, count, job, neighbors, mostMs, many = STEPS] of [
  ['of one container end alone', 2, [{ percent: 50 }], [], 80],
  ['of one container end beside a busy neighbor', 2, [{ percent: 50 }], [{ percent: 50 }], 150],
  ['of one container end, four of them', 4, [{ percent: 50 }], [{ percent: 50 }], 60],
  ['in two containers end', 2, [{ percent: 50 }, { percent: 50 }], [], 400],
  ['in two containers end, 300 of them', 2, [{ percent: 50 }, { percent: 50 }], [], 40, 300],
] as const) {
  test.serial(`steps queued ahead on one GPU by ranks ${what}`, async (t) => {
    t.timeout(120_000);
    /** Milliseconds of a step. Each round has a GPU, an arbiter and grants of its own: none owes for the one before. */
    const round = async (): Promise<number> => {
      const { node, grants } = await bench(t, [...job, ...neighbors]);
      const preloadOf = (index: number) => grants[index % job.length]?.cuda ?? '';
      const run = async (flag: number, preloads: readonly string[]) => {
        const words = ['steps', String(flag), String(count), String(many)];
        const ranks: ReturnType<typeof streams<{ stepMs: number }>>[] = [];
        for (const preload of preloads) {
          const rank = streams<{ stepMs: number }>(t, node, words, { preload });
          ranks.push(rank);
          // Each begins while the first launch of those before it waits on the GPU.
          if (ranks.length < count) await eventually(() => isWorking(node, rank.child.pid), 'it works');
        }
        const results = await Promise.all(ranks.map(({ result }) => result));
        return Math.max(...results.map(({ stepMs }) => stepMs));
      };
      const ranks = Array.from({ length: count }, (_, rank) => rank);
      const unshared = await run(
        6,
        ranks.map(() => ''),
      );
      const busy = neighbors.map((_, index) =>
        streams<{ kernels: number }>(t, node, ['busy', '20000'], { preload: grants[job.length + index]?.cuda ?? '' }),
      );
      const shared = await run(7, ranks.map(preloadOf));
      t.log(`${shared} ms a step, ${unshared} without a share`);
      t.true(shared < MOST_STEP_MS, `${shared} ms a step`);
      for (const { child } of busy) child.kill('SIGKILL');
      return shared;
    };
    const steps = [await round()];
    while (steps.length < MOST_ROUNDS && Math.min(...steps) >= mostMs) steps.push(await round());
    t.true(Math.min(...steps) < mostMs, `${steps.join(', ')} ms a step`);
  });
}

/* Of what half of each GPU is worth without a neighbor. Ranks that do not get their GPUs at the same time reach 0.01 to
 * 0.02 here; a busy machine, on which launches take longer, leaves 0.5 and more. How much ranks get at least when no
 * launch is late is asked in virtual time (arbiter.test.ts, "get their share beside busy neighbors"). Containers that were
 * found to belong together are parted for 10 s if one is late by 100 ms (native/compute/arbiter/links.c), as on a busy
 * machine: that is one round in twenty at most. */
const LEAST_RATIO = 0.25;

for (const [what, job] of [
  ['of one container', [{ percent: 50, gpus: [0, 1] }]],
  ['in two containers', [0, 1].map((gpu) => ({ percent: 50, gpus: [gpu] }))],
] as const) {
  test.serial(`ranks ${what} get two GPUs at the same time beside busy neighbors`, async (t) => {
    t.timeout(120_000);
    const neighbors = [0, 1].map((gpu) => ({ percent: 50, gpus: [gpu] }));
    const { node, grants } = await bench(t, [...job, ...neighbors]);
    const preloadOf = (index: number) => grants[index]?.cuda ?? '';
    const inOne = job.length === 1;
    let flag = 7;
    /** Collectives per second; `gpuOf`: the rank's GPU as its container numbers it. */
    const run = async (ms: number, preloads: readonly string[], gpuOf: (rank: number) => number) => {
      flag += 1; // one that the ranks before have not left
      const words = ['ranks', String(flag), '2', String(ms)];
      const ranks = preloads.map((preload, rank) => streams<Ranks>(t, node, words, { preload, gpu: gpuOf(rank) }));
      const results = await Promise.all(ranks.map(({ result }) => result));
      for (const { longestMs } of results) t.true(longestMs < 1000, `one took ${longestMs} ms`);
      return (1000 * Math.min(...results.map(({ collectives }) => collectives))) / ms;
    };
    let ratio = 0;
    for (let round = 0; round < MOST_ROUNDS && ratio < LEAST_RATIO; round += 1) {
      const unshared = await run(500, ['', ''], (rank) => rank);
      const busy = [0, 1].map((gpu) =>
        streams<{ kernels: number }>(t, node, ['busy', '4000'], { preload: preloadOf(job.length + gpu) }),
      );
      const preloads = [0, 1].map((rank) => preloadOf(inOne ? 0 : rank));
      const shared = await run(3000, preloads, (rank) => (inOne ? rank : 0));
      t.log(`${shared.toFixed(0)} collectives/s, ${unshared.toFixed(0)} unshared`);
      ratio = shared / (unshared / 2);
      for (const { result } of busy) t.true((await result).kernels > 500);
    }
    // A sanitizer makes launches slower, and with them what a share of the GPU is worth.
    if (!SANITIZED) t.true(ratio >= LEAST_RATIO, `${ratio}`);
  });
}

test.serial('ranks of one process each go on while no arbiter runs', async (t) => {
  const { node, grants, arbiter } = await bench(t, [{ percent: 50, gpus: [0, 1] }]);
  await arbiter.kill();
  const preload = grants[0]?.cuda ?? '';
  const ranks = [0, 1].map((gpu) => streams<Ranks>(t, node, ['ranks', '7', '2', '1000'], { preload, gpu }));
  for (const { result } of ranks) t.true((await result).collectives > 30);
});

test.serial('a stopped process with work under way holds back no other of its container', async (t) => {
  const { node, grants } = await bench(t, [{ percent: 50 }, { percent: 50 }]);
  const preload = grants[0]?.cuda ?? '';
  const neighbor = streams<{ kernels: number }>(t, node, ['busy', '12000'], { preload: grants[1]?.cuda ?? '' });
  for (let round = 0; round < 3; round += 1) {
    const stopped = streams(t, node, ['busy', '20000'], { preload });
    await eventually(() => isWorking(node, stopped.child.pid), 'it works');
    stopped.child.kill('SIGSTOP');
    const { kernels } = await streams<{ kernels: number }>(t, node, ['busy', '2000'], { preload }).result;
    t.true(kernels > 200, `${kernels} kernels of 500 us in 2 s`);
    stopped.child.kill('SIGKILL');
  }
  t.true((await neighbor.result).kernels > 2000);
});
