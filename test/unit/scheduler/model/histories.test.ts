// Random histories of a cluster with two extenders, an API server that fails, and nodes that check grants: what holds at
// every moment, and once the faults have ended. The same seed is the same history; COTENANT_HISTORIES asks for more,
// COTENANT_HISTORY for the one of a seed, with its steps.

import type { V1Pod } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { MIB } from '../../../../src/common/quantity.ts';
import { oneOf, type Random } from './api.ts';
import {
  type Cluster,
  createCluster,
  gpusOf,
  grantOf,
  isBound,
  MOST_TENANTS,
  NODES,
  REPLICAS,
  type ReplicaName,
  schedule,
  usedBy,
  type Wanted,
} from './cluster.ts';

const HISTORIES = Number(process.env.COTENANT_HISTORIES ?? 60);
const ONLY = process.env.COTENANT_HISTORY;
const STEPS = 120;
/** kube-scheduler tries a pod again after seconds; the longest pause of a group is five minutes. */
const ROUND_MS = 10_000;
const MOST_ROUNDS = 90;

/** mulberry32, a public-domain generator. */
function randomOf(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

type World = {
  readonly cluster: Cluster;
  readonly wanted: Map<string, Wanted>;
  /** kube-schedulers that act: the leader, and for a while one that does not know that it is none any more. */
  readonly acting: Set<ReplicaName>;
  /** What a kube-scheduler is doing, by pod. */
  readonly scheduling: Map<string, { readonly by: ReplicaName; readonly done: Promise<unknown> }>;
  leader: ReplicaName;
  transitions: number;
  groups: number;
  /** No two replicas write at once, and none leads without all that was written: nothing may ever be overcommitted. */
  readonly isStrict: boolean;
  readonly steps: string[];
};

const pick = (random: Random, world: World, filter: (pod: V1Pod) => boolean): string | undefined => {
  const keys = [...world.cluster.api.pods].filter(([key, pod]) => world.wanted.has(key) && filter(pod));
  return keys.length === 0 ? undefined : oneOf(random, keys)[0];
};
const isPending = (pod: V1Pod): boolean => !pod.spec?.nodeName;

function create(world: World, wanted: Wanted): void {
  world.wanted.set(`team/${world.cluster.create(wanted)}`, wanted);
}

/** Its controller makes another one. */
function recreate(world: World, key: string): void {
  const wanted = world.wanted.get(key);
  world.wanted.delete(key);
  if (wanted?.isRecreated) create(world, wanted);
}

function startScheduling(world: World, by: ReplicaName, key: string): void {
  if (world.scheduling.has(`${by} ${key}`)) return;
  const done = schedule(world.cluster, by, key).finally(() => world.scheduling.delete(`${by} ${key}`));
  done.catch(() => undefined);
  world.scheduling.set(`${by} ${key}`, { by, done });
}

/** What this replica still writes, or is about to. */
const isWriting = ({ cluster, scheduling }: World, by: ReplicaName): boolean =>
  cluster.api.bindingsOf(by) > 0 || [...scheduling.values()].some((one) => one.by === by);

const STEP: Readonly<Record<string, readonly [weight: number, (world: World, random: Random) => unknown]>> = {
  create: [
    12,
    (world, random) =>
      create(world, {
        mib: oneOf(random, [200, 300, 500, 700]),
        cores: oneOf(random, [0, 0, 30]),
        gpus: random() < 0.15 ? 2 : 1,
        isRecreated: random() < 0.8,
      }),
  ],
  group: [
    2,
    (world, random) => {
      const gang = { name: `g${world.groups}`, size: oneOf(random, [2, 3]) };
      world.groups += 1;
      for (let pod = 0; pod < gang.size; pod += 1)
        create(world, { mib: 400, cores: 0, gpus: 1, isRecreated: true, gang });
    },
  ],
  schedule: [
    30,
    (world, random) => {
      for (let pods = Math.ceil(random() * 4); pods > 0; pods -= 1) {
        const key = pick(random, world, random() < 0.95 ? isPending : () => true);
        if (key !== undefined) startScheduling(world, oneOf(random, [...world.acting]), key);
      }
    },
  ],
  admit: [20, (world, random) => admit(world, pick(random, world, isBound))],
  finish: [
    4,
    (world, random) => {
      const key = pick(random, world, (pod) => isBound(pod) && !pod.metadata?.deletionTimestamp);
      if (key === undefined || world.wanted.get(key)?.isRecreated) return;
      world.cluster.agents.finish(key);
    },
  ],
  delete: [
    5,
    (world, random) => {
      const key = pick(random, world, (pod) => isBound(pod) || isPending(pod));
      const pod = key === undefined ? undefined : world.cluster.api.pods.get(key);
      if (key === undefined || !pod) return;
      if (isPending(pod)) world.cluster.api.remove('pods', key);
      else world.cluster.agents.delete(key);
      if (isPending(pod)) recreate(world, key);
    },
  ],
  reap: [
    8,
    (world, random) =>
      reap(
        world,
        pick(random, world, (pod) => !!pod.metadata?.deletionTimestamp),
      ),
  ],
  pass: [25, ({ cluster }, random) => cluster.time.pass(oneOf(random, [5, 50, 500, 3000, 20_000]))],
  stall: [6, ({ cluster, isStrict }) => onWatch(cluster, cluster.api.stall, isStrict ? ['pods'] : ['pods', 'leases'])],
  catchUp: [3, ({ cluster }) => cluster.api.catchUp()],
  repeat: [3, ({ cluster }) => onWatch(cluster, cluster.api.repeat, ['pods', 'leases'])],
  lose: [
    1,
    ({ cluster, isStrict }) => {
      if (!isStrict) onWatch(cluster, cluster.api.lose, ['pods']);
    },
  ],
  hangUp: [5, ({ cluster }, random) => cluster.api.hangUp(oneOf(random, REPLICAS), random() < 0.4)],
  restart: [
    2,
    async (world, random) => {
      const name = oneOf(random, REPLICAS);
      if (!world.isStrict || !isWriting(world, name)) await world.cluster.restart(name);
    },
  ],
  move: [
    4,
    (world, random) => {
      if (world.isStrict && isWriting(world, world.leader)) return;
      world.leader = world.leader === 'a' ? 'b' : 'a';
      world.transitions += 1;
      world.cluster.lead(world.leader, world.transitions);
      if (world.isStrict || random() < 0.5) world.acting.clear();
      world.acting.add(world.leader);
    },
  ],
  stepDown: [
    3,
    (world) => {
      world.acting.clear();
      world.acting.add(world.leader);
    },
  ],
};

type Watch = NonNullable<ReturnType<Cluster['api']['watchAtRandom']>>;

function onWatch({ api }: Cluster, act: (watch: Watch) => void, kinds: readonly ('pods' | 'leases')[]): void {
  const watch = api.watchAtRandom(kinds);
  if (watch) act(watch);
}

function admit({ cluster }: World, key: string | undefined): void {
  const why = key === undefined ? undefined : cluster.agents.admit(key);
  if (why !== undefined) throw new Error(`the agent refuses ${key} for good: ${why}`);
}

function reap(world: World, key: string | undefined): void {
  if (key !== undefined && world.cluster.agents.reap(key)) recreate(world, key);
}

/** What is wrong at this moment. */
function wrongNow({ cluster, wanted, isStrict }: World): string | undefined {
  const { api, agents } = cluster;
  const bound = [...api.pods.values()].filter(isBound);
  const groups: [string, readonly V1Pod[]][] = [['running pods', agents.runningPods()]];
  if (isStrict) groups.push(['bound pods', bound]);
  for (const [what, pods] of groups) {
    const used = usedBy(pods);
    for (const gpu of Object.keys(NODES).flatMap(gpusOf)) {
      const { memoryBytes = 0, coresPercent = 0, tenants = 0 } = used.get(gpu.uuid) ?? {};
      if (memoryBytes > gpu.bytes || coresPercent > 100 || (what === 'bound pods' && tenants > MOST_TENANTS))
        return `${gpu.uuid} is overcommitted by ${what}: ${memoryBytes / MIB} MiB, ${coresPercent} %, ${tenants} tenants`;
    }
  }
  for (const pod of bound) {
    const { mib, gpus } = wanted.get(`team/${pod.metadata?.name}`) ?? { mib: 0, gpus: 0 };
    const granted = grantOf(pod)?.containers[0]?.gpus ?? [];
    const own = new Set(gpusOf(pod.spec?.nodeName ?? '').map(({ uuid }) => uuid));
    const isRight = granted.every(({ gpuUuid, memoryBytes }) => own.has(gpuUuid) && memoryBytes === mib * MIB);
    if (!isRight || new Set(granted.map(({ gpuUuid }) => gpuUuid)).size !== gpus)
      return `pod ${pod.metadata?.name} is bound to ${pod.spec?.nodeName} without its grant: ${JSON.stringify(granted)}`;
  }
  return undefined;
}

/** How many pods of this kind fit beside what is bound, counted without the product; at least 0. */
function roomFor({ cluster }: World, { mib, cores, gpus }: Wanted): number {
  const used = usedBy([...cluster.api.pods.values()].filter(isBound));
  let room = 0;
  for (const node of Object.keys(NODES)) {
    const slots = gpusOf(node).map(({ uuid, bytes }) => {
      const { memoryBytes = 0, coresPercent = 0, tenants = 0 } = used.get(uuid) ?? {};
      const byCores = cores === 0 ? Number.POSITIVE_INFINITY : Math.floor((100 - coresPercent) / cores);
      return Math.max(0, Math.min(Math.floor((bytes - memoryBytes) / (mib * MIB)), byCores, MOST_TENANTS - tenants));
    });
    // No node has more than two GPUs.
    room += gpus === 1 ? slots.reduce((sum, one) => sum + one, 0) : slots.length < 2 ? 0 : Math.min(...slots);
  }
  return room;
}

/** What is not yet as it must be in the end. */
function wrongInTheEnd(world: World): string | undefined {
  const { cluster, wanted } = world;
  const { api, agents, replicas } = cluster;
  const bound = [...api.pods].filter(([, pod]) => isBound(pod));
  const used = usedBy(bound.map(([, pod]) => pod));
  for (const [key, pod] of bound) {
    if (agents.running.has(key)) continue;
    const crowded = gpusOf(pod.spec?.nodeName ?? '').some(
      ({ uuid, bytes }) => (used.get(uuid)?.memoryBytes ?? 0) > bytes || (used.get(uuid)?.coresPercent ?? 0) > 100,
    );
    // It waits for others to end: no controller would make another one.
    if (!crowded || wanted.get(key)?.isRecreated) return `${key} is bound and does not run`;
  }
  for (const [name, { counts }] of replicas) {
    if (counts.bindingsInFlight() > 0) return `${counts.bindingsInFlight()} bindings of ${name} are in flight`;
    if (counts.grantedPods() !== bound.length)
      return `replica ${name} counts ${counts.grantedPods()} pods, ${bound.length} are bound`;
  }
  for (const [key, pod] of api.pods) {
    const one = wanted.get(key);
    if (!one || !isPending(pod)) continue;
    const inGroup = one.gang && bound.filter(([other]) => wanted.get(other)?.gang?.name === one.gang?.name).length;
    const needed = one.gang ? Math.max(one.gang.size - (inGroup ?? 0), 1) : 1;
    if (roomFor(world, one) >= needed) return `${key} fits and is not placed: ${JSON.stringify(one)}`;
  }
  return undefined;
}

/** Faults end, one replica leads, and all pods are tried in turn; what is wrong after that. */
async function heal(world: World): Promise<string | undefined> {
  const { cluster, leader, wanted } = world;
  const { api, time } = cluster;
  api.faulty = false;
  api.catchUp();
  // As after four quiet connections (list-watch.ts): what a watch lost is listed. Where none was, nothing needs a list.
  if (!world.isStrict) for (const name of REPLICAS) api.hangUp(name, true);
  let wrong: string | undefined;
  for (let round = 0; round < MOST_ROUNDS; round += 1) {
    cluster.lead(leader, world.transitions);
    for (const { done } of [...world.scheduling.values()]) await time.until(done);
    for (const key of [...wanted.keys()]) {
      const pod = api.pods.get(key);
      if (pod && isPending(pod)) await time.until(schedule(cluster, leader, key));
      if (pod) admit(world, key);
      reap(world, key);
    }
    await time.pass(ROUND_MS);
    api.bookmark();
    wrong = wrongNow(world) ?? wrongInTheEnd(world);
    if (wrong === undefined) break;
  }
  return wrong;
}

type Outcome = { readonly wrong: string | undefined; readonly world: World };

async function live(seed: number): Promise<Outcome> {
  const random = randomOf(seed);
  const backoff = Math.random;
  Math.random = random;
  const cluster = createCluster(random);
  const world: World = {
    ...{ cluster, wanted: new Map(), acting: new Set<ReplicaName>(['a']), scheduling: new Map(), leader: 'a' },
    ...{ transitions: 0, groups: 0, isStrict: seed % 2 === 0, steps: [] },
  };
  /** Each as often as its weight. */
  const deck = Object.entries(STEP).flatMap(([name, [weight, act]]) =>
    Array.from({ length: weight }, () => ({ name, act })),
  );
  try {
    cluster.lead('a', 0);
    for (const name of REPLICAS) cluster.startReplica(name);
    await cluster.time.pass(1000);
    cluster.api.faulty = true;
    for (let step = 0; step < STEPS; step += 1) {
      const { name, act } = oneOf(random, deck);
      world.steps.push(`${Math.round(cluster.time.nowMs)} ${name}`);
      await act(world, random);
      await cluster.time.pass(1);
      cluster.lead(world.leader, world.transitions);
      const wrong = wrongNow(world);
      if (wrong !== undefined) return { wrong, world };
    }
    return { wrong: await heal(world), world };
  } catch (error) {
    return { wrong: error instanceof Error ? (error.stack ?? error.message) : String(error), world };
  } finally {
    await cluster.close();
    cluster.time.restore();
    Math.random = backoff;
  }
}

const describe = (seed: number, { wrong, world }: Outcome): string =>
  `history ${seed}: ${wrong}\n${world.steps.join('\n')}`;

test.serial(
  'in random histories nothing is overcommitted or leaks, and what fits is placed',
  async (t: ExecutionContext) => {
    t.timeout(600_000);
    const seeds = ONLY === undefined ? Array.from({ length: HISTORIES }, (_, seed) => seed) : [Number(ONLY)];
    for (const seed of seeds) {
      const outcome = await live(seed);
      t.is(outcome.wrong, undefined, describe(seed, outcome));
    }
  },
);
