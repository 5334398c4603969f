// Priorities on a real scheduler: a pod of high priority displaces the pod that holds its GPU, and no pod is evicted for
// one that still could not run; then what an autoscaler of nodes concludes. The nodes have no kubelet: only bindings and evictions are checked.
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { addCotenantImage, addKubeSchedulerImage, installChart, KUBE_SCHEDULER_IMAGE, OFF } from '../bed/product.ts';
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
import { checkTemplateNodes } from './template-nodes.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;

type Made = { spec: { containers: { resources: object }[] } };

/** A pod of this priority class that also requests CPU. */
function withPriority(name: string, gib: number, priorityClassName: string, cpu = '0'): object {
  const made = podOf(name, { main: memory(gib) }) as Made;
  const [first] = made.spec.containers;
  const { limits } = (first?.resources ?? {}) as { limits: object };
  const containers = [{ ...first, resources: { limits, requests: { cpu } } }];
  return { ...made, spec: { ...made.spec, priorityClassName, containers } };
}

testUnless(reason)('a pod of high priority displaces the right share, and none is evicted in vain', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  addKubeSchedulerImage(bed, tools.bin);
  const scheduler = { enabled: true, replicas: 1, kubeScheduler: { image: KUBE_SCHEDULER_IMAGE } };
  installChart(bed, path, { agent: OFF, csi: OFF, webhook: OFF, scheduler });
  for (const [name, value] of [
    ['low', 10],
    ['middle', 20],
    ['high', 30],
  ] as const)
    await must(bed, 'POST', '/apis/scheduling.k8s.io/v1/priorityclasses', {
      ...{ apiVersion: 'scheduling.k8s.io/v1', kind: 'PriorityClass', metadata: { name }, value },
    });

  // Two GPUs of 16 GiB, each with a pod beside which the next one does not fit.
  await addNode(bed, 1, 2);
  await add(bed, withPriority('middle-1', 12, 'middle'));
  const first = grantOf(await bound(bed, 'middle-1')).containers[0]?.gpus[0]?.gpuUuid;
  await add(bed, withPriority('low', 12, 'low'));
  const second = grantOf(await bound(bed, 'low')).containers[0]?.gpus[0]?.gpuUuid;
  t.deepEqual(new Set([first, second]), new Set([uuid(1, 0), uuid(1, 1)]));

  const beganMs = performance.now();
  await add(bed, withPriority('urgent', 10, 'high'));
  const urgent = await bound(bed, 'urgent');
  // Within the time of the wait: what the eviction did not wake, kube-scheduler would try again after five minutes.
  t.log(`bound ${Math.round(performance.now() - beganMs)} ms after it was written`);
  t.is(grantOf(urgent).containers[0]?.gpus[0]?.gpuUuid, second, 'the GPU of the pod of the lowest priority');
  t.deepEqual((await podsOf(bed)).map(({ metadata }) => metadata.name).toSorted(), ['middle-1', 'urgent']);
  await clear(bed, 'gpu-1');

  // A node of 64 CPUs: CPU can be freed by evicting a pod of low priority, the GPU's memory cannot.
  await addNode(bed, 2, 1);
  await add(bed, withPriority('holds-gpu', 14, 'high'));
  await bound(bed, 'holds-gpu');
  await add(bed, withPriority('holds-cpu', 1, 'low', '60'));
  await bound(bed, 'holds-cpu');
  await add(bed, withPriority('in-vain', 10, 'high', '30'));
  await pending(bed, 'in-vain', /Insufficient cpu/);
  // kube-scheduler asks for victims in the cycle that wrote the condition; another cycle follows the next change.
  await add(bed, withPriority('later', 10, 'middle', '1'));
  await pending(bed, 'later', /cotenant\.io\/gpu-memory free/);
  const left = await podsOf(bed);
  t.true(left.every(({ metadata }) => metadata.deletionTimestamp === undefined));
  t.deepEqual(left.map(({ metadata }) => metadata.name).toSorted(), ['holds-cpu', 'holds-gpu', 'in-vain', 'later']);

  // With less memory it needs CPU and a share, both of which pods of low priority hold.
  await clear(bed, 'gpu-2');
  await addNode(bed, 3, 1);
  await add(bed, withPriority('both-1', 14, 'low', '1'), withPriority('both-2', 1, 'low', '60'));
  await bound(bed, 'both-1');
  await bound(bed, 'both-2');
  await add(bed, withPriority('needs-both', 10, 'high', '30'));
  t.is((await bound(bed, 'needs-both')).spec.nodeName, 'gpu-3');
  const names = await eventually(async () => {
    const found = (await podsOf(bed)).map(({ metadata }) => metadata.name).toSorted();
    return found.length === 1 ? found : undefined;
  }, 'both are gone');
  t.deepEqual(names, ['needs-both']);
  t.is(conditionOf(await bound(bed, 'needs-both'))?.status, 'True');
  await clear(bed, 'gpu-3');
  await checkTemplateNodes(t, bed);
});
