// Each part is killed in turn under load: no container starts without its limit, no GPU is allocated twice, running
// containers are not disturbed, and everything recovers by itself.
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { parsePodGrant } from '../../src/api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION } from '../../src/api/names.ts';
import { parseNodeGpus } from '../../src/api/node-annotation.ts';
import { demandOf } from '../../src/placement/demand.ts';
import { eventually } from '../support/native/node.ts';
import { seriesOf } from '../support/product/agent.ts';
import type { Bed } from './bed/bed.ts';
import { NODE_NAME } from './bed/node.ts';
import { NAMESPACE } from './bed/product.ts';
import { WHOLE_VALUES } from './bed/whole.ts';
import { processesOf, signalContainer } from './support/containers.ts';
import {
  attach,
  clientOf,
  containerOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
  outputOf,
  type Pod,
  podOf,
  untilRunning,
} from './support/pods.ts';
import { agentPage, type Component, podsOf } from './support/release.ts';
import { testsOnWhole } from './support/shared.ts';

const onCluster = testsOnWhole(['l4', 'a10'], {
  webhook: { ...WHOLE_VALUES.webhook, replicas: 2 },
  scheduler: { ...WHOLE_VALUES.scheduler, replicas: 2 },
});
const LOAD = 'load';
const STEADY_MIB = 2048;
// Four on a GPU beside the steady one: both GPUs are full as soon as eight run, and two more wait.
const EACH_MIB = 5120;
const AT_A_TIME = 10;
const TEAM = { namespace: 'team' };
/** Passes its arguments to the client. A container that started while the agent was away has no GPU, so it exits. */
const ENDS_WITHOUT_GPU = [
  '/bin/sh',
  '-c',
  '/bin/client libcuda.so.1 init </dev/null | grep -q "^0 " || exit 1; exec /bin/client libcuda.so.1 "$@"',
];
const SCHEDULER = ['extender', 'kube-scheduler'];
const OUT_OF_MEMORY = 2;
const TOO_FULL = /node-1: GPU-[0-9a-f-]+ has \d+ MiB of cotenant\.io\/gpu-memory free, but \d+ MiB are requested/;
const EVERY_MS = 700;

type Load = {
  /** Throws if something went wrong. */
  check(): void;
  /** Number of pods, from the `first`-th on, that have printed what they see. */
  seenFrom(first: number): number;
  /** Number of the next pod. */
  readonly next: number;
  /** All messages of pods that waited. */
  readonly sentences: ReadonlySet<string>;
  /** Pods that never printed what they see. */
  leftBehind(): readonly string[];
  /** Creates no more pods; resolves when each pod has printed what it sees and is gone. */
  drain(): Promise<void>;
  stop(): Promise<void>;
};

const everyPod = async (bed: Bed): Promise<readonly Pod[]> =>
  (await bed.api.get<{ items: Pod[] }>('/api/v1/pods'))?.items ?? [];
const ofLoad = ({ metadata }: Pod): boolean => metadata.namespace === LOAD;

/** Memory granted on each GPU to pods that have not ended. */
function granted(pods: readonly Pod[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const { metadata, status } of pods) {
    const text = metadata.annotations?.[GRANT_ANNOTATION];
    if (text === undefined || status?.phase === 'Succeeded' || status?.phase === 'Failed') continue;
    const grant = parsePodGrant(text);
    if (!grant.ok) throw new Error(`${metadata.name}: ${grant.error}`);
    for (const [uuid, need] of demandOf(grant.value.containers))
      sums.set(uuid, (sums.get(uuid) ?? 0) + need.memoryBytes);
  }
  return sums;
}

/** What a pod printed about its GPU, over all runs of its container; undefined while it has not. */
function sightOf(bed: Bed, pod: Pod): string | undefined {
  const lines = outputOf(bed, pod);
  const answers = lines.map((line) => line.split(' ').map(Number));
  let sight: string | undefined;
  for (const [index, answer] of answers.entries()) {
    const next = answers[index + 1];
    // Only `info` returns three numbers; without a GPU or a driver it fails, and nothing is used.
    if (answer.length !== 3 || answer[0] !== 0 || next === undefined) continue;
    if (answer[2] !== EACH_MIB * MIB || next[0] === 0) return lines.join(' | ');
    sight = 'its slice';
  }
  return sight;
}

/** Creates and deletes pods all the time; each prints the size of its GPU. */
function startLoad(bed: Bed, usable: ReadonlyMap<string, number>): Load {
  const wrong = new Set<string>();
  const created = new Set<string>();
  const seen = new Set<string>();
  const sentences = new Set<string>();
  let next = 0;
  let [creating, going] = [true, true];
  /** Requests are refused while a part is down; the client gets the reason, and that is no fault. */
  const create = async (): Promise<void> => {
    const commands = ['init', 'context 0', 'info', `alloc ${(EACH_MIB + 256) * MIB}`];
    const client = clientOf(ONE_SHARE.own(EACH_MIB), ['sh', ...commands], { command: ENDS_WITHOUT_GPU });
    const pod = podOf(`load-${next}`, [client], { namespace: LOAD });
    const name = `load-${next}`;
    next += 1;
    const { status } = await bed.api.ask('POST', `/api/v1/namespaces/${LOAD}/pods`, pod);
    if (status === 201) created.add(name);
  };
  const look = (pods: readonly Pod[]): void => {
    for (const [uuid, bytes] of granted(pods))
      if (bytes > (usable.get(uuid) ?? 0)) wrong.add(`${uuid} has given away ${bytes} bytes`);
    for (const pod of pods.filter(ofLoad)) {
      const { metadata, status } = pod;
      const sight = sightOf(bed, pod);
      if (sight === 'its slice') seen.add(metadata.name);
      else if (sight !== undefined) wrong.add(`${metadata.name} sees or gets more than its slice: ${sight}`);
      if (status?.phase === 'Failed' && metadata.deletionTimestamp === undefined)
        wrong.add(`${metadata.name} has failed: ${status.reason}: ${status.message}`);
      for (const { type, status: is, message } of status?.conditions ?? [])
        if (type === 'PodScheduled' && is === 'False' && message !== undefined) sentences.add(message);
    }
  };
  const round = async (): Promise<void> => {
    const pods = await everyPod(bed);
    look(pods);
    const own = pods.filter(ofLoad);
    const live = own.filter(({ metadata }) => metadata.deletionTimestamp === undefined);
    if (creating && live.length < AT_A_TIME) return create();
    const [done] = live.filter(({ metadata }) => seen.has(metadata.name));
    if (done) await bed.api.ask('DELETE', `/api/v1/namespaces/${LOAD}/pods/${done.metadata.name}`);
  };
  const run = async (): Promise<void> => {
    while (going) {
      try {
        await round();
      } catch (error) {
        // The API server is one of the killed parts: if a response is cut off, only the error code names the broken
        // connection.
        const { code = '' } = error as { readonly code?: string };
        if (!/ECONN|socket|50\d/.test(`${code} ${error}`)) wrong.add(String(error));
      }
      await delay(EVERY_MS);
    }
  };
  const ran = run();
  return {
    check() {
      if (wrong.size > 0) throw new Error([...wrong].slice(0, 5).join('\n'));
    },
    seenFrom: (first) => [...seen].filter((name) => Number(name.slice('load-'.length)) >= first).length,
    get next() {
      return next;
    },
    sentences,
    leftBehind: () => [...created].filter((name) => !seen.has(name)),
    async drain() {
      creating = false;
      const gone = async () => ((await everyPod(bed)).some(ofLoad) ? undefined : true);
      await eventually(gone, 'each pod has printed what it sees and is gone', 120_000);
    },
    async stop() {
      going = false;
      await ran;
    },
  };
}

/** Disturbs a part; pods that are created afterwards must run. */
async function flows(t: ExecutionContext, load: Load, after: string, act: () => unknown): Promise<void> {
  const started = performance.now();
  await act();
  const from = load.next;
  const acted = performance.now();
  await eventually(() => (load.seenFrom(from) >= 3 ? true : undefined), `pods come after ${after}`, 150_000);
  load.check();
  const [took, flowed] = [acted - started, performance.now() - acted].map((ms) => (ms / 1000).toFixed(1));
  t.log(`${after} (${took} s): three new pods after ${flowed} s`);
}

type Lease = { spec: { holderIdentity: string; leaseTransitions: number } };
const lease = async (bed: Bed): Promise<Lease['spec'] | undefined> =>
  (await bed.api.get<Lease>(`/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/cotenant-scheduler`))?.spec;

async function leader(bed: Bed): Promise<Pod> {
  const holder = (await lease(bed))?.holderIdentity ?? '';
  const found = (await podsOf(bed, 'scheduler')).find(({ metadata }) => holder.startsWith(`${metadata.name}_`));
  if (!found) throw new Error(`no replica holds the Lease: ${holder}`);
  return found;
}

const first = async (bed: Bed, component: Component): Promise<Pod> => {
  const [pod] = await podsOf(bed, component);
  if (!pod) throw new Error(`no ${component}`);
  return pod;
};

async function takesOver(bed: Bed, from: Pod): Promise<void> {
  await eventually(
    async () => {
      const holder = (await lease(bed))?.holderIdentity ?? '';
      return holder !== '' && !holder.startsWith(`${from.metadata.name}_`) ? true : undefined;
    },
    'another replica leads',
    60_000,
  );
}

/** Memory of each GPU that programs can use, as the node's agent published it. */
async function usableOf(bed: Bed): Promise<ReadonlyMap<string, number>> {
  const node = await bed.api.get<{ metadata: { annotations: Record<string, string> } }>(`/api/v1/nodes/${NODE_NAME}`);
  const read = parseNodeGpus(node?.metadata.annotations[GPUS_ANNOTATION] ?? '');
  if (!read.ok) throw new Error(read.error);
  return new Map(read.value.gpus.map(({ gpuUuid, usableBytes }) => [gpuUuid, usableBytes]));
}

const samplersOf = (bed: Bed, agent: Pod): readonly number[] =>
  processesOf(bed, agent, 'node').filter((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('cotenant-sampler');
    } catch {
      return false; // gone meanwhile
    }
  });

onCluster('killing each part under load leaves no limit off and no GPU overcommitted', async (t, { bed }) => {
  const usable = await usableOf(bed);
  bed.apply(namespaceOf('team'), namespaceOf(LOAD));
  bed.apply(podOf('steady', [clientOf(ONE_SHARE.own(STEADY_MIB), ['init', 'context 0', `alloc ${1024 * MIB}`])], TEAM));
  const steady = await untilRunning(bed, 'steady', TEAM);
  const talk = attach(bed, 'steady', TEAM.namespace);
  for (let i = 0; i < 3; i += 1) t.is((await talk.ask(`alloc ${STEADY_MIB * MIB}`))[0], OUT_OF_MEMORY);
  await talk.leave();
  const denials = (count: number) =>
    eventually(
      async () => {
        const labels = { ...TEAM, pod: 'steady', container: 'main' };
        const page = (await agentPage(bed)) ?? '';
        return seriesOf(page, 'cotenant_container_allocations_denied_total', labels) === count ? true : undefined;
      },
      `${count} refusals are counted`,
      60_000,
    );
  await denials(3);

  const load = startLoad(bed, usable);
  const kill = (pod: Pod, ...containers: readonly string[]) => {
    for (const container of containers) signalContainer(bed, pod, container, 'SIGKILL');
  };
  try {
    await flows(t, load, 'the start', () => {});
    await flows(t, load, 'the end of a webhook', async () => kill(await first(bed, 'webhook'), 'webhook'));
    await flows(t, load, 'the end of the leading scheduler', async () =>
      kill(await leader(bed), 'extender', 'kube-scheduler'),
    );
    await flows(t, load, 'a leader that was paused for longer than its Lease', async () => {
      const paused = await leader(bed);
      for (const container of SCHEDULER) signalContainer(bed, paused, container, 'SIGSTOP');
      await takesOver(bed, paused);
      for (const container of SCHEDULER) signalContainer(bed, paused, container, 'SIGCONT');
    });
    await flows(t, load, 'the end of the agent', async () => kill(await first(bed, 'agent'), 'node'));
    await flows(t, load, 'the end of the sampler', async () => {
      const agent = await first(bed, 'agent');
      const [sampler = 0] = await eventually(() => {
        const found = samplersOf(bed, agent);
        return found.length > 0 ? found : undefined;
      }, 'there is a sampler');
      process.kill(sampler, 'SIGKILL');
    });
    await flows(t, load, 'the end of the kubelet', () => bed.restart('kubelet'));
    await flows(t, load, 'the end of containerd', () => bed.restart('containerd'));
    await flows(t, load, 'the end of the API server', () => bed.restart('apiserver'));
    await load.drain();
  } finally {
    await load.stop();
  }
  load.check();
  t.deepEqual(load.leftBehind(), []);
  t.log(`${load.seenFrom(0)} pods printed what they see, of ${load.next} created`);

  const still = await getPod(bed, 'steady', TEAM.namespace);
  t.is(containerOf(still)?.containerID, containerOf(steady)?.containerID, 'the steady container was not restarted');
  const again = attach(bed, 'steady', TEAM.namespace);
  t.is((await again.ask('info'))[2], STEADY_MIB * MIB);
  t.is((await again.ask(`alloc ${1536 * MIB}`))[0], OUT_OF_MEMORY, 'its limit holds');
  await again.leave();
  await denials(4);

  const said = [...load.sentences];
  for (const sentence of said) t.log(`message of a Pending pod: ${sentence}`);
  t.true(
    said.some((sentence) => TOO_FULL.test(sentence)),
    'pods that waited for memory say which GPUs lack it',
  );
});
