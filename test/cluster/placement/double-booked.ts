// A pod bound to a full GPU by another scheduler is replaced elsewhere if it has a controller; else it gets a Warning.
import type { ExecutionContext } from 'ava';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { EVICTED, KEPT } from '../../../src/scheduler/evictions/overcommit-evictor.ts';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { eventsOf, type Pod, podPath, untilGone, untilPod } from '../support/pods.ts';
import {
  add,
  addNode,
  bound,
  clear,
  conditionOf,
  grantOf,
  memory,
  must,
  podOf,
  podsOf,
  uuid,
} from '../support/scheduling.ts';

const REPLICA_SETS = '/apis/apps/v1/namespaces/default/replicasets';

/** A grant of one GPU as a leader would write it that comes after all others. */
const laterGrant = (gpuUuid: string, gib: number): Readonly<Record<string, string>> => {
  const gpus = [{ gpuUuid, memoryBytes: gib * GIB, limitBytes: gib * GIB, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus }];
  return { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 1000, containers }) };
};

/** As a second leader would bind that does not know what the first has bound. */
const bindTo = (
  bed: Bed,
  node: string,
  { metadata: { name, uid } }: Pod,
  annotations: Readonly<Record<string, string>>,
) =>
  must(bed, 'POST', `${podPath(name)}/binding`, {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name, uid, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: node },
  });

export async function checkDoubleBooked(t: ExecutionContext, bed: Bed): Promise<void> {
  const full = await addNode(bed, 5, 1);
  await add(bed, podOf('full', { main: memory(15) }));
  await bound(bed, 'full');
  const labels = { app: 'again' };
  const { metadata, spec } = podOf('again', { main: memory(4) }) as { metadata: object; spec: object };
  await must(bed, 'POST', REPLICA_SETS, {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: { name: 'again' },
    spec: { replicas: 1, selector: { matchLabels: labels }, template: { metadata: { ...metadata, labels }, spec } },
  });
  const made = (what: string, good: (pod: Pod) => boolean) =>
    eventually(
      async () => (await podsOf(bed)).find((pod) => pod.metadata.name.startsWith('again-') && good(pod)),
      `a pod of the ReplicaSet ${what}`,
    );
  const first = await made('waits', (pod) => conditionOf(pod)?.status === 'False');
  await bindTo(bed, full, first, laterGrant(uuid(5, 0), 4));
  const other = await addNode(bed, 6, 1);
  const successor = await made('is bound', (pod) => pod.metadata.uid !== first.metadata.uid && !!pod.spec.nodeName);
  t.is(successor.spec.nodeName, other);
  t.like(grantOf(successor).containers[0]?.gpus, [{ gpuUuid: uuid(6, 0), memoryBytes: 4 * GIB }]);
  const over = (gpu: string, gib: number) =>
    `${gpu} of node ${gpu === uuid(5, 0) ? full : other} is overcommitted: ${gib * 1024} MiB of cotenant.io/gpu-memory are granted, but it has 16384 MiB`;
  const messageOf = (name: string) =>
    eventually(
      async () => (await eventsOf(bed, name)).find(({ reason }) => reason === 'GPUGrantOvercommitted'),
      `${name} has an Event`,
    );
  t.is((await messageOf(first.metadata.name)).message, `${over(uuid(5, 0), 19)}; ${EVICTED}`);

  await add(bed, {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'bare' },
    spec: { schedulerName: 'none', containers: [{ name: 'main', image: BUSYBOX_IMAGE }] },
  });
  await bindTo(bed, other, await untilPod(bed, 'bare', 'is there', () => true), laterGrant(uuid(6, 0), 14));
  const rejection = await messageOf('bare');
  t.is(rejection.type, 'Warning');
  t.is(rejection.message, `${over(uuid(6, 0), 18)}; ${KEPT}`);
  const left = (await podsOf(bed)).filter((pod) => pod.metadata.deletionTimestamp === undefined);
  t.deepEqual(left.map((pod) => pod.metadata.name).sort(), [successor.metadata.name, 'bare', 'full']);
  await must(bed, 'DELETE', `${REPLICA_SETS}/again`);
  await untilGone(bed, successor.metadata.name);
  await clear(bed, full, other);
}
