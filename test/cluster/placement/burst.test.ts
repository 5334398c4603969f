// Many pods at once on one node: every container has exactly the grant of its pod's annotation, as seen from inside.
// The rounds add up to COTENANT_BURST_PODS pods: 100 by default, 1,000 in the long tests.
import type { ExecutionContext } from 'ava';
import { parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { demandOf } from '../../../src/placement/demand.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { clientOf, containerOf, MIB, namespaceOf, outputOf, type Pod, podOf } from '../support/pods.ts';
import { testsOnWhole } from '../support/shared.ts';

const PODS = Number(process.env.COTENANT_BURST_PODS ?? 100);
const A_ROUND = 40;
const GPUS = ['l4', 'l4', 'l4', 'l4'];
const NAMESPACE = 'burst';

const onCluster = testsOnWhole(GPUS);
const ASK = ['init', 'count', 'uuid 0', 'total 0'];

const share = (mib: number, more: object = {}, commands: readonly string[] = ASK) =>
  clientOf({ 'cotenant.io/gpu-memory': `${mib}Mi` }, commands, more);
/** Prints what it sees and exits. */
const once = (mib: number, name: string) => share(mib, { name, stdin: false });

/** The pods of a round: equal ones, and every tenth of each other kind. */
function podNumber(index: number, name: string): object {
  const settings = { namespace: NAMESPACE };
  switch (index % 10) {
    case 7: // two containers with shares of their own
      return podOf(name, [share(256), share(384, { name: 'second' })], settings);
    case 8: // an init container that needs more than the rest, and a sidecar that stays
      return podOf(name, [share(256)], {
        ...settings,
        spec: { initContainers: [share(128, { name: 'sidecar', restartPolicy: 'Always' }), once(768, 'before')] },
      });
    case 9: // two GPUs
      return podOf(
        name,
        [clientOf({ 'cotenant.io/gpu': 2, 'cotenant.io/gpu-memory': '1Gi' }, [...ASK, 'uuid 1', 'total 1'])],
        settings,
      );
    default:
      return podOf(name, [share(512)], settings);
  }
}

const listPods = async (bed: Bed): Promise<readonly Pod[]> =>
  (await bed.api.get<{ items: Pod[] }>(`/api/v1/namespaces/${NAMESPACE}/pods`))?.items ?? [];

const isUp = (pod: Pod): boolean =>
  pod.status?.phase === 'Running' &&
  (pod.status.containerStatuses ?? []).every(({ state }) => state.running !== undefined);

/** Compares what each container with a grant saw of its GPUs with the grant; returns the number of compared
 * containers. */
function compare(t: ExecutionContext, bed: Bed, pod: Pod): number {
  const grant = parsePodGrant(pod.metadata.annotations?.[GRANT_ANNOTATION] ?? '');
  if (!grant.ok) throw new Error(`${pod.metadata.name}: ${grant.error}`);
  for (const { name, gpus } of grant.value.containers) {
    const [, count, ...seen] = outputOf(bed, pod, name).map((line) => line.split(' ')[1] ?? '');
    const pairs = gpus.map((_, index) => ({ gpuUuid: seen[2 * index], limitBytes: Number(seen[2 * index + 1]) }));
    const byUuid = (a: { gpuUuid: string | undefined }, b: { gpuUuid: string | undefined }) =>
      (a.gpuUuid ?? '') < (b.gpuUuid ?? '') ? -1 : 1;
    t.deepEqual(
      { count: Number(count), gpus: pairs.toSorted(byUuid) },
      {
        count: gpus.length,
        gpus: gpus.map(({ gpuUuid, limitBytes }) => ({ gpuUuid, limitBytes })).toSorted(byUuid),
      },
      `${pod.metadata.name}/${name}`,
    );
  }
  return grant.value.containers.length;
}

/** As a controller does: retries when the machine is too busy to answer the admission request in time. */
const createAsControllers = (bed: Bed, pod: object): Promise<true> =>
  eventually(async () => {
    const { status, body } = await bed.api.ask('POST', `/api/v1/namespaces/${NAMESPACE}/pods`, pod);
    if (status === 201) return true;
    const late = status === 500 && JSON.stringify(body).includes('context deadline exceeded');
    if (!late) throw new Error(`a pod was not created: ${status} ${JSON.stringify(body)}`);
    return undefined;
  }, 'a pod is admitted in time');

onCluster(
  `${PODS} pods, ${A_ROUND} per round: each container has its grant, no GPU is overcommitted`,
  async (t, { bed, uuids }) => {
    bed.apply(namespaceOf(NAMESPACE));
    let compared = 0;
    for (let from = 0; from < PODS; from += A_ROUND) {
      const numbers = Array.from({ length: Math.min(A_ROUND, PODS - from) }, (_, index) => from + index);
      const started = performance.now();
      await Promise.all(numbers.map((number) => createAsControllers(bed, podNumber(number, `pod-${number}`))));
      const pods = await eventually(async () => {
        const found = await listPods(bed);
        return found.length === numbers.length && found.every(isUp) ? found : undefined;
      }, `all ${numbers.length} pods of the round run`).catch(async (error: unknown) => {
        const late = (await listPods(bed)).filter((pod) => !isUp(pod));
        throw new Error(
          `${(error as Error).message}: ${late
            .map(({ metadata, status }) => `${metadata.name} ${JSON.stringify(status?.conditions)}`)
            .slice(0, 3)
            .join('\n')}`,
        );
      });
      t.log(`${numbers.length} pods run after ${((performance.now() - started) / 1000).toFixed(1)} s`);
      // The output of a container takes a moment to reach its log.
      const messageOf = (pod: Pod) =>
        [...(pod.status?.containerStatuses ?? []), ...(pod.status?.initContainerStatuses ?? [])].every(
          ({ name }) => outputOf(bed, pod, name).length >= ASK.length,
        );
      await eventually(() => (pods.every(messageOf) ? true : undefined), 'every container has printed what it sees');
      for (const pod of pods) compared += compare(t, bed, pod);
      t.true(
        pods.every((pod) => containerOf(pod)?.restartCount === 0),
        'none was started twice',
      );
      const granted = new Map<string, number>();
      for (const { metadata } of pods) {
        const grant = parsePodGrant(metadata.annotations?.[GRANT_ANNOTATION] ?? '');
        if (!grant.ok) throw new Error(grant.error);
        for (const [uuid, need] of demandOf(grant.value.containers))
          granted.set(uuid, (granted.get(uuid) ?? 0) + need.memoryBytes);
      }
      t.true([...granted.keys()].every((uuid) => uuids.includes(uuid)));
      t.true([...granted.values()].every((bytes) => bytes <= 23_000 * MIB));
      bed.kubectl('-n', NAMESPACE, 'delete', 'pods', '--all', '--wait=false', '--grace-period=1');
      await eventually(async () => ((await listPods(bed)).length === 0 ? true : undefined), 'they are gone');
    }
    t.log(`${compared} containers compared with their grants`);
    t.true(compared >= PODS);
  },
);
