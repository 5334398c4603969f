// Pod groups and moved pods on a real scheduler: two groups that compete, what is held for pods that are gone, and
// `cotenant defrag --execute`. The nodes with GPUs have no kubelet: only bindings and evictions are checked.
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { GIB } from '../../../src/common/quantity.ts';
import { HELD_MS } from '../../../src/scheduler/groups/gangs.ts';
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { type Bed, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { kubernetesMinor, kubernetesVersion } from '../bed/kubernetes.ts';
import { addCotenantImage, addKubeSchedulerImage, installChart, KUBE_SCHEDULER_IMAGE, OFF } from '../bed/product.ts';
import { getPod, podPath } from '../support/pods.ts';
import {
  add,
  addNode,
  bound,
  clear,
  conditionOf,
  grantOf,
  memory,
  must,
  pending,
  podOf,
  podsOf,
  uuid,
} from '../support/scheduling.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const missing = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;
const reason =
  missing ?? (kubernetesMinor() < 36 ? `Kubernetes ${kubernetesVersion()} has no PodGroups of this form` : undefined);
const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');
/** The API of PodGroups, which is alpha in Kubernetes 1.36 and beta in 1.37; the schedulers do not know of it. */
const GROUP_VERSION = `scheduling.k8s.io/${kubernetesMinor() >= 37 ? 'v1beta1' : 'v1alpha2'}`;
const POD_GROUPS = `/apis/${GROUP_VERSION}/namespaces/default/podgroups`;
const APISERVER = ['--feature-gates=GenericWorkload=true', `--runtime-config=${GROUP_VERSION}=true`];
const DEPLOYMENTS = '/apis/apps/v1/namespaces/default/deployments';

type Made = { readonly metadata: object; readonly spec: object };

const withLabels = (pod: object, labels: Readonly<Record<string, string>>): object => {
  const { metadata, ...rest } = pod as Made;
  return { ...rest, metadata: { ...metadata, labels } };
};

/** One of the pods of a group of `size`, which takes most of a GPU. */
const member = (group: string, index: number, size: number, cpu = '0'): object =>
  withLabels(withCpu(podOf(`${group}-${index}`, { main: memory(12) }), cpu), {
    'pod-group.scheduling.sigs.k8s.io/name': group,
    'pod-group.scheduling.sigs.k8s.io/min-available': String(size),
  });

/** The same with Kubernetes' own field: how many pods the group needs is said by the PodGroup. */
const ofPodGroup = (group: string, index: number): object => {
  const { spec, ...rest } = podOf(`${group}-${index}`, { main: memory(12) }) as Made;
  return { ...rest, spec: { ...spec, schedulingGroup: { podGroupName: group } } };
};

function withCpu(pod: object, cpu: string): object {
  const made = pod as { readonly spec: { readonly containers: readonly { readonly resources: object }[] } };
  const containers = made.spec.containers.map((one) => ({
    ...one,
    resources: { ...one.resources, requests: { cpu } },
  }));
  return { ...made, spec: { ...made.spec, containers } };
}

const boundOf = async (bed: Bed, group: string): Promise<readonly string[]> =>
  (await podsOf(bed))
    .filter(({ metadata, spec }) => metadata.name.startsWith(group) && spec.nodeName !== undefined)
    .map(({ metadata }) => metadata.name)
    .toSorted();

const remove = (bed: Bed, ...names: readonly string[]) =>
  Promise.all(names.map((name) => must(bed, 'DELETE', `${podPath(name)}?gracePeriodSeconds=0`)));

const whole = (bed: Bed, group: string, size: number) =>
  eventually(
    async () => ((await boundOf(bed, group)).length === size ? true : undefined),
    `all pods of ${group} are bound`,
  );

/** A change of the Node, after which kube-scheduler tries waiting pods again. */
const poke = (bed: Bed, node: string) =>
  must(bed, 'PATCH', `/api/v1/nodes/${node}`, { metadata: { labels: { poked: String(Date.now()) } } });

/**
 * The message of a pod whose group waits. kube-scheduler tries a pod again at events alone, so what it said before the
 * other pods of its group were seen would stay; they are tried again until it says the other.
 */
async function pendingAt(bed: Bed, node: string, name: string, said: RegExp): Promise<void> {
  let pokedMs = 0;
  await eventually(async () => {
    const pod = await getPod(bed, name);
    if (pod && said.test(conditionOf(pod)?.message ?? '')) return true;
    if (performance.now() - pokedMs > 1000) {
      pokedMs = performance.now();
      await poke(bed, node);
    }
    return undefined;
  }, `pod ${name} is refused with ${said}`);
}

/** Four GPUs and two groups of three, one by labels and one by a PodGroup: the pods come in turns. */
async function checkCompetition(t: ExecutionContext, bed: Bed): Promise<void> {
  await addNode(bed, 1, 4);
  for (const index of [0, 1, 2]) await add(bed, member('first', index, 3), ofPodGroup('second', index));
  await pending(bed, 'second-0', /PodGroup default\/second of the pod's schedulingGroup does not exist/);
  await must(bed, 'POST', POD_GROUPS, {
    apiVersion: GROUP_VERSION,
    kind: 'PodGroup',
    metadata: { name: 'second' },
    spec: { schedulingPolicy: { gang: { minCount: 3 } } },
  });
  await whole(bed, 'first', 3);
  await pendingAt(bed, 'gpu-1', 'second-0', /pod group default\/second waits: 1 of its 3 pods fit at once/);
  t.deepEqual(await boundOf(bed, 'second'), [], 'no pod of the other group is bound');
  const freed = performance.now();
  await remove(bed, ...[0, 1, 2].map((index) => `first-${index}`));
  await whole(bed, 'second', 3);
  t.log(`the other group follows after ${Math.round(performance.now() - freed)} ms`);
  // All at once: both fit one by one, and neither beside the other.
  await clear(bed);
  await Promise.all([0, 1, 2].map((index) => add(bed, member('third', index, 3), member('fourth', index, 3))));
  const [winner] = await eventually(async () => {
    const found = await Promise.all(
      ['third', 'fourth'].map(async (group) => [group, await boundOf(bed, group)] as const),
    );
    return found.find(([, names]) => names.length === 3);
  }, 'one of the groups is bound whole');
  const other = winner === 'third' ? 'fourth' : 'third';
  t.deepEqual(await boundOf(bed, other), [], 'no pod of the other group is bound');
  await remove(bed, ...[0, 1, 2].map((index) => `${winner}-${index}`));
  await whole(bed, other, 3);
  await clear(bed, 'gpu-1');
}

/**
 * Groups of three that do not become complete: of one a pod is never created, of one it is deleted before the group fits,
 * and of one it lacks CPU when its GPU is held.
 */
async function checkTimeOut(t: ExecutionContext, bed: Bed): Promise<void> {
  await addNode(bed, 2, 3);
  await add(bed, member('lacks-one', 0, 3), member('lacks-one', 1, 3));
  await pendingAt(bed, 'gpu-2', 'lacks-one-1', /pod group default\/lacks-one waits: 2 of its 3 pods are there/);
  await add(bed, podOf('blocker', { main: memory(12) }));
  await bound(bed, 'blocker');
  const dying = [0, 1, 2].map((index) => `dying-${index}`);
  await add(bed, ...[0, 1, 2].map((index) => member('dying', index, 3)));
  for (const name of dying)
    await pendingAt(bed, 'gpu-2', name, /pod group default\/dying waits: 2 of its 3 pods fit at once/);
  await remove(bed, 'dying-2');
  await remove(bed, 'blocker');
  await pendingAt(bed, 'gpu-2', 'dying-0', /pod group default\/dying waits: 2 of its 3 pods are there/);
  await add(bed, podOf('other', { main: memory(12) }));
  await bound(bed, 'other');
  t.deepEqual([await boundOf(bed, 'dying'), await boundOf(bed, 'lacks-one')], [[], []]);
  await remove(bed, 'dying-0', 'dying-1', 'lacks-one-0', 'lacks-one-1');

  await add(bed, member('stuck', 0, 3), member('stuck', 1, 3), member('stuck', 2, 3, '60'));
  for (const index of [0, 1, 2])
    await pendingAt(bed, 'gpu-2', `stuck-${index}`, /pod group default\/stuck waits: 2 of its 3 pods fit at once/);
  await add(bed, withCpu(withLabels(podOf('takes-cpu', { main: memory(1) }), {}), '10'));
  await bound(bed, 'takes-cpu');
  const began = performance.now();
  await remove(bed, 'other');
  await pending(bed, 'stuck-2', /Insufficient cpu/);
  await whole(bed, 'stuck', 2);
  await add(bed, podOf('after', { main: memory(12) }));
  await pending(bed, 'after', /cotenant\.io\/gpu-memory free/);
  let pokedMs = 0;
  await eventually(
    async () => {
      if (performance.now() - pokedMs > 1000) {
        pokedMs = performance.now();
        await poke(bed, 'gpu-2');
      }
      return (await boundOf(bed, 'after')).length > 0 || undefined;
    },
    'the GPU is free for others',
    2 * HELD_MS,
  );
  const tookMs = performance.now() - began;
  t.log(`what was held is free after ${Math.round(tookMs)} ms`);
  // Once, and not a second time.
  t.true(tookMs >= HELD_MS && tookMs < 2 * HELD_MS, `${tookMs} ms`);
  await clear(bed, 'gpu-2');
}

/** Two GPUs, half full each: 12 GiB fit when the Deployment's pod has moved beside the other one. */
async function checkDefrag(t: ExecutionContext, bed: Bed): Promise<void> {
  await addNode(bed, 3, 2);
  await add(bed, podOf('stays', { main: memory(8) }));
  const stays = grantOf(await bound(bed, 'stays')).containers[0]?.gpus[0]?.gpuUuid;
  await add(bed, podOf('filler', { main: memory(8) }));
  t.is(grantOf(await bound(bed, 'filler')).containers[0]?.gpus[0]?.gpuUuid, stays);
  const labels = { app: 'moves' };
  const { metadata, spec } = withLabels(podOf('moves', { main: memory(6) }), labels) as Made;
  await must(bed, 'POST', DEPLOYMENTS, {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: 'moves' },
    spec: { replicas: 1, selector: { matchLabels: labels }, template: { metadata, spec } },
  });
  const movesOn = (gpu: string) =>
    eventually(async () => {
      const found = (await podsOf(bed)).find((one) => one.metadata.name.startsWith('moves-') && one.spec.nodeName);
      return found && grantOf(found).containers[0]?.gpus[0]?.gpuUuid === gpu ? found : undefined;
    }, `the Deployment's pod is bound to ${gpu}`);
  const empty = [uuid(3, 0), uuid(3, 1)].find((gpu) => gpu !== stays) ?? '';
  const before = await movesOn(empty);
  await remove(bed, 'filler');
  await add(bed, podOf('wanted', { main: memory(12) }));
  await pending(bed, 'wanted', /cotenant\.io\/gpu-memory free/);
  const env = { KUBECONFIG: join(bed.folder, 'kubeconfig') };
  // Else it takes what the move frees before the share is counted.
  await remove(bed, 'wanted');
  const { code, out, err } = bed.namespaces.run([process.execPath, MAIN, 'defrag', '--execute', '-m', '12Gi'], { env });
  t.log(out.trim(), err.trim());
  t.is(code, 0, err);
  const after = await movesOn(stays ?? '');
  t.not(after.metadata.uid, before.metadata.uid);
  await add(bed, podOf('wanted', { main: memory(12) }));
  t.like(grantOf(await bound(bed, 'wanted')).containers[0]?.gpus, [{ gpuUuid: empty, memoryBytes: 12 * GIB }]);
}

testUnless(reason)('groups are bound whole, what is held ends, and moved pods make room', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line), APISERVER);
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  addKubeSchedulerImage(bed, tools.bin);
  const scheduler = { enabled: true, replicas: 1, kubeScheduler: { image: KUBE_SCHEDULER_IMAGE } };
  installChart(bed, path, { agent: OFF, csi: OFF, webhook: OFF, scheduler });
  await checkCompetition(t, bed);
  await checkTimeOut(t, bed);
  await checkDefrag(t, bed);
});
