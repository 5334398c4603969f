// Random programs in a grant on GPUs that disagree with every formula: what the interposer cannot know the agent finds
// and feeds back, to the byte, and until it has, no request takes the container more than one granule over its grant.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { type RunningTenant, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const STEPS = 70;
const GRANT_MIB = 480;
const FLOAT = 32;

/** Numbers below `limit`, the same for the same seed. */
function numbers(seed: number): (limit: number) => number {
  let state = BigInt(seed) + 1n;
  return (limit) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
    return Number((state >> 33n) % BigInt(limit));
  };
}

type Request = {
  readonly command: string;
  /** The most that the GPU may give up for it. */
  readonly most: number;
  /** Commands that take it back, by what was answered. */
  undo(answer: readonly number[]): string[];
  /** Nothing can refuse it: asked for only where memory is free. */
  readonly unrefused?: boolean;
};

type Facts = { readonly granule: number; readonly context: number };

function requestOf(random: (limit: number) => number, { granule, context }: Facts): Request {
  const bytes = random(8) === 0 ? 1 + random(MIB) : 1 + random(80 * MIB);
  const whole = (size: number) => Math.ceil(size / granule) * granule;
  const freed = ([, at]: readonly number[]) => [`free ${at}`];
  switch (random(9)) {
    case 0:
    case 1:
      return { command: `alloc ${bytes}`, most: whole(bytes), undo: freed };
    case 2: {
      const rows = 1 + Math.floor(bytes / 2048);
      return { command: `pitch 1500 ${rows}`, most: whole(2048 * rows), undo: freed };
    }
    case 3:
      return { command: `managed ${bytes}`, most: whole(bytes), undo: freed };
    case 4:
      return { command: `physical ${whole(bytes)}`, most: whole(bytes), undo: ([, handle]) => [`unhandle ${handle}`] };
    case 5:
      return {
        command: `pool-alloc ${bytes}`,
        most: whole(bytes),
        undo: ([, at]) => [`pool-free ${at}`, 'sync', 'pool-trim 0'],
      };
    case 6: {
      const height = 8 + 8 * random(500);
      return {
        command: `array 2d 4096 ${height} 0 ${FLOAT} 1 0 0`,
        most: whole(4096 * 4 * height) + granule,
        undo: ([, array]) => [`array-destroy ${array}`],
      };
    }
    case 7:
      return { command: 'create 0', most: context, undo: ([, made]) => [`destroy ${made}`, 'context 0'] };
    default:
      return {
        command: `module ${1 + random(granule - 1024)}`,
        most: granule,
        undo: ([, module]) => [`unload ${module}`],
        unrefused: true,
      };
  }
}

for (const seed of [3, 7, 11]) {
  test.serial(`perturbed GPUs: a random program is measured, held and served exactly (${seed})`, async (t) => {
    t.timeout(240_000);
    const node = await startNode(t, '--gpu', 't4,context=8Mi', '--perturb', String(seed));
    const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
    await agent.measured(1);
    const [gpu] = node.usage().gpus;
    const facts = { granule: gpu?.granuleBytes ?? 0, context: gpu?.contextBytes ?? 0 };
    const [profile] = Object.values(
      JSON.parse(readFileSync(join(agent.state, 'profiles.json'), 'utf8')) as Record<string, { contextBytes: number }>,
    );
    const measured = profile?.contextBytes ?? Number.NaN;
    const grant = GRANT_MIB * MIB;
    const tenant: RunningTenant = runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', `${GRANT_MIB}Mi`, '--name', 'random'],
      [join(BUILD, 'tests/client')],
    );
    const root = tenant.child.pid ?? 0;
    node.control('watch', String(root));
    for (const command of ['init', 'context 0']) t.is((await tell(tenant, command))[0], 0);

    const held = () => node.usage().clients.find(({ command, alive }) => alive && command === 'client')?.gpus[0];
    /** Waits until cuMemGetInfo of the tenant agrees with the grant and what the GPU has of it; the bytes that it holds. */
    const learned = (why: string) =>
      eventually(async () => {
        const before = held()?.bytes ?? 0;
        const [, free, total] = await tell(tenant, 'info');
        const same = total === grant && free === Math.max(0, grant - before) && held()?.bytes === before;
        return same ? before : undefined;
      }, why);
    const random = numbers(seed);
    const live: (() => Promise<void>)[] = [];
    const counts = { granted: 0, refused: 0, hidden: 0, freed: 0 };
    for (let step = 0; step < STEPS; step++) {
      const remaining = grant - (await learned(`step ${step}: the agent finds what the GPU has`));
      if (live.length > 0 && random(3) === 0) {
        const [end] = live.splice(random(live.length), 1);
        await end?.();
        counts.freed += 1;
        continue;
      }
      const request = requestOf(random, facts);
      if (request.unrefused && remaining < request.most) continue;
      const answer = await tell(tenant, request.command);
      if (request.command === 'create 0') await tell(tenant, 'context 0');
      if (answer[0] === OUT_OF_MEMORY) {
        // What it holds less than it charged is not free while it asks for more: the agent knew nothing of that yet.
        const charged = (held()?.contexts ?? 0) * Math.max(0, measured - facts.context);
        t.true(
          request.most + charged > remaining,
          `step ${step}: ${request.command} is refused, and ${remaining} bytes are left`,
        );
        counts.refused += 1;
        continue;
      }
      t.is(answer[0], 0, request.command);
      counts.granted += 1;
      if (request.unrefused || request.command.startsWith('array')) counts.hidden += 1;
      live.push(async () => {
        for (const command of request.undo(answer)) t.is((await tell(tenant, command))[0], 0, command);
      });
    }
    const peak = node.usage().groups.find((entry) => entry.root === root)?.gpus[0]?.peak ?? Number.NaN;
    t.log(`seed ${seed}:`, counts, 'peak', peak / MIB, 'granule', facts.granule / MIB);
    t.true(peak <= grant + facts.granule, `${peak} of ${grant}`);
    t.true(peak > 0.8 * grant && counts.refused > 0, 'the grant was full');
    t.true(counts.hidden > 3, 'much of it could not be known');
    for (const end of live) await end();
    t.is(await learned('all was given back'), facts.context);
    t.deepEqual(agent.audit(), [], 'no container was stopped for what could not be known');
  });
}
