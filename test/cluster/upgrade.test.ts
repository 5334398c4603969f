// The chart and the image of an earlier commit are replaced by those of this one, and put back, while containers work and
// pods come and go: no call in a container fails, no grant is lost, no pod is refused.
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { enginesIn } from '../../src/agent/grants/engine-files.ts';
import { GRANT_ANNOTATION } from '../../src/api/names.ts';
import { testUnless } from '../support/gate.ts';
import { BUILD } from '../support/native/node.ts';
import { seriesOf } from '../support/product/agent.ts';
import { BUILD_MS, readyHelm } from '../support/services/helm.ts';
import { type Bed, startBed } from './bed/bed.ts';
import { earlierRelease } from './bed/earlier.ts';
import { eventually } from './bed/eventually.ts';
import {
  addClientImage,
  addCotenantImage,
  addKubeSchedulerImage,
  addSimulatedNode,
  COTENANT_IMAGE,
  rollBack,
  upgradeChart,
} from './bed/product.ts';
import { untilOffered, WHOLE_VALUES, wholeTools } from './bed/whole.ts';
import { LOAD, type Load, startLoad, usableOf } from './support/load.ts';
import {
  answersOf,
  clientOf,
  containerOf,
  getPod,
  MIB,
  namespaceOf,
  type Pod,
  podOf,
  untilRunning,
} from './support/pods.ts';
import { agentPage, podsOf } from './support/release.ts';

const tools = wholeTools(console.log);
const earlier = earlierRelease(console.log, false);
const whyNot = tools.ok ? (earlier.ok ? undefined : earlier.reason) : tools.reason;
// As installed by default, so that one replica of each is there while the other is replaced.
const VALUES = {
  ...WHOLE_VALUES,
  webhook: { ...WHOLE_VALUES.webhook, replicas: 2 },
  scheduler: { ...WHOLE_VALUES.scheduler, replicas: 2 },
};
const TEAM = 'team';
const SHARE = { 'cotenant.io/gpu-memory': '2Gi', 'cotenant.io/gpu-cores': 20 };
const OUT_OF_MEMORY = 2;
/** Takes 1 GiB for good; then works for half a second at a time, and asks for more than its grant each time. */
const WORKS = `{ printf 'init\\ncontext 0\\nalloc ${1024 * MIB}\\n'; yes 'work 500 ${16 * MIB} 200
alloc ${2048 * MIB}'; } | /bin/client libcuda.so.1`;
const BEGINS = 3;
const ADMITTED_EVERY_MS = 200;

/** A container's calls so far: its rounds of work, and the answers that no container may get. */
function callsOf(bed: Bed, pod: Pod): { readonly rounds: number; readonly wrong: readonly string[] } {
  const answers = answersOf(bed, pod);
  const isRefusal = (index: number) => index > BEGINS && (index - BEGINS) % 2 === 1;
  const wrong = answers.flatMap(([result, value = 0], index) => {
    const good = isRefusal(index) ? result === OUT_OF_MEMORY : result === 0 && (index < BEGINS || value > 0);
    return good ? [] : [`answer ${index}: ${result} ${value}`];
  });
  return { rounds: Math.floor((answers.length - BEGINS) / 2), wrong };
}

/** Asks the API server to admit a pod, over and over, without creating it. */
function startAdmissions(bed: Bed) {
  const refused: string[] = [];
  let [going, count] = [true, 0];
  const pod = podOf('admitted', [clientOf(SHARE)], { namespace: TEAM });
  const run = async (): Promise<void> => {
    for (; going; count += 1) {
      const { status, body } = await bed.api.ask('POST', `/api/v1/namespaces/${TEAM}/pods?dryRun=All`, pod);
      if (status !== 201) refused.push(`${status} ${JSON.stringify(body)}`);
      await delay(ADMITTED_EVERY_MS);
    }
  };
  const ran = run();
  const stop = async () => {
    going = false;
    await ran;
    return count;
  };
  return { refused, stop };
}

type State = { readonly grant: string | undefined; readonly limit: number; readonly used: number };

/** A pod's grant, and its memory as the agent publishes it, once it does. */
const stateOf = (bed: Bed, name: string): Promise<State> =>
  eventually(async () => {
    const page = (await agentPage(bed)) ?? '';
    const series = (what: string) => seriesOf(page, `cotenant_container_memory_${what}_bytes`, { pod: name });
    const [limit, used] = [series('limit'), series('used')];
    if (limit === undefined || used === undefined) return undefined;
    const pod = await getPod(bed, name, TEAM);
    // A round of work has 16 MiB more at times; with a context of an L4, 1 GiB is well between two steps.
    return { grant: pod?.metadata.annotations?.[GRANT_ANNOTATION], limit, used: Math.floor(used / (64 * MIB)) };
  }, `the agent publishes the memory of ${name}`);

async function startTenant(bed: Bed, name: string): Promise<Pod> {
  const script = { command: ['/bin/sh', '-c', WORKS], args: [] };
  bed.apply(podOf(name, [clientOf(SHARE, [], script)], { namespace: TEAM }));
  const pod = await untilRunning(bed, name, { namespace: TEAM });
  await eventually(() => callsOf(bed, pod).rounds >= 2 || undefined, `${name} works`);
  return pod;
}

type Around = {
  readonly bed: Bed;
  readonly load: Load;
  /** What the agent published of each container when it had started. */
  readonly tenants: Map<string, { readonly pod: Pod; readonly state: State }>;
};

/** Changes the release, and looks at what must not have changed, and at what must go on. */
async function changes(t: ExecutionContext, around: Around, tag: string, engine: number, change: () => Promise<void>) {
  const { bed, load, tenants } = around;
  const started = performance.now();
  await change();
  const [agent] = await podsOf(bed, 'agent');
  t.true(JSON.stringify(agent?.spec).includes(`${COTENANT_IMAGE.repository}:${tag}"`), `the agent is ${tag}`);
  const before = new Map([...tenants].map(([name, { pod }]) => [name, callsOf(bed, pod).rounds]));
  for (const [name, { pod, state }] of tenants) {
    await eventually(() => callsOf(bed, pod).rounds >= (before.get(name) ?? 0) + 3 || undefined, `${name} works on`);
    t.deepEqual(await stateOf(bed, name), state, `${name} has what it had`);
    const runs = async () =>
      seriesOf((await agentPage(bed)) ?? '', 'cotenant_container_engine_processes', {
        pod: name,
        engine: String(engine),
      }) === 1 || undefined;
    await eventually(runs, `${name} runs engine ${engine}`);
  }
  const from = load.next;
  await eventually(() => load.seenFrom(from) >= 2 || undefined, `pods come after ${tag}`);
  load.check();
  t.log(`${tag}: ${Math.round((performance.now() - started) / 1000)} s`);
}

testUnless(whyNot)('an upgrade under load, and the way back, fail no call and refuse no pod', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || !earlier.ok) throw new Error(whyNot);
  const { release } = earlier;
  const [older = 0, own = 0] = [release.checkout, join(BUILD, '../..')].map((one) =>
    enginesIn(join(one, 'native/build')).at(-1),
  );
  t.true(own > older, 'an engine that changed has a number that rose: native/interposer/engine/NUMBER');
  const helm = await readyHelm(tools.helm);
  const bed = await startBed(tools.tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  addCotenantImage(bed, release);
  addKubeSchedulerImage(bed, tools.tools.bin);
  addClientImage(bed);
  await addSimulatedNode(bed, ['l4', 'l4']);
  await upgradeChart(bed, helm, VALUES, release);
  await untilOffered(bed);
  bed.apply(namespaceOf(TEAM), namespaceOf(LOAD));
  const tenants: Around['tenants'] = new Map();
  const enters = async (name: string) => {
    const pod = await startTenant(bed, name);
    tenants.set(name, { pod, state: await stateOf(bed, name) });
  };
  await enters('older');
  const load = startLoad(bed, await usableOf(bed));
  const admissions = startAdmissions(bed);
  const around = { bed, load, tenants };
  try {
    await changes(t, around, COTENANT_IMAGE.tag, own, () => upgradeChart(bed, helm, VALUES));
    await enters('newer');
    await changes(t, around, release.tag, older, () => rollBack(bed, helm, 1));
    await load.drain();
  } finally {
    await load.stop();
    t.log(`${await admissions.stop()} admissions asked for`);
  }
  load.check();
  t.deepEqual(admissions.refused, []);
  t.deepEqual(load.refused, []);
  t.deepEqual(load.leftBehind(), []);
  for (const [name, { pod }] of tenants) {
    const { rounds, wrong } = callsOf(bed, pod);
    t.deepEqual(wrong, [], name);
    const now = containerOf(await getPod(bed, name, TEAM));
    t.deepEqual([now?.containerID, now?.restartCount], [containerOf(pod)?.containerID, 0], `${name} was not restarted`);
    t.log(`${name}: ${rounds} rounds of work, each with a refusal`);
  }
});
