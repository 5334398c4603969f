// Each part is killed in turn under load: no container starts without its limit, no GPU is allocated twice, running
// containers are not disturbed, and everything recovers by itself.
import { readFileSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import { seriesOf } from '../support/product/agent.ts';
import type { Bed } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { NAMESPACE } from './bed/product.ts';
import { WHOLE_VALUES } from './bed/whole.ts';
import { processesOf, signalContainer } from './support/containers.ts';
import { LOAD, type Load, startLoad, usableOf } from './support/load.ts';
import {
  attach,
  clientOf,
  containerOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
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
const STEADY_MIB = 2048;
const TEAM = { namespace: 'team' };
const SCHEDULER = ['extender', 'kube-scheduler'];
const OUT_OF_MEMORY = 2;
const TOO_FULL = /node-1: GPU-[0-9a-f-]+ has \d+ MiB of cotenant\.io\/gpu-memory free, but \d+ MiB are requested/;

/** Disturbs a part; pods that are created afterwards must run. */
async function flows(t: ExecutionContext, load: Load, after: string, act: () => unknown): Promise<void> {
  const started = performance.now();
  await act();
  const from = load.next;
  const acted = performance.now();
  await eventually(() => (load.seenFrom(from) >= 3 ? true : undefined), `pods come after ${after}`);
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
  await eventually(async () => {
    const holder = (await lease(bed))?.holderIdentity ?? '';
    return holder !== '' && !holder.startsWith(`${from.metadata.name}_`) ? true : undefined;
  }, 'another replica leads');
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
    eventually(async () => {
      const labels = { ...TEAM, pod: 'steady', container: 'main' };
      const page = (await agentPage(bed)) ?? '';
      return seriesOf(page, 'cotenant_container_allocations_denied_total', labels) === count ? true : undefined;
    }, `${count} refusals are counted`);
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
      const [sampler = 0] = await eventually(async () => {
        const found = samplersOf(bed, await first(bed, 'agent'));
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
