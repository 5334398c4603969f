// The memory of running pods: granted where their GPU has it left, refused with the reason, and never granted twice,
// however the API server answers. The API server is the small one of these tests; test/cluster has a real one.
import type { V1Pod } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { formatPodGrant, parsePodGrant } from '../../../src/api/grant-annotation.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { eventually } from '../../support/native/node.ts';
import { uuid } from '../../unit/scheduler/cluster.ts';
import { type Api, startApi } from './api.ts';
import { feasible, leads, type Running, start } from './running.ts';

const GRANT = 'cotenant.io/grant';
const MEMORY = 'cotenant.io/memory';

function granted(api: Api, name: string, mib: number): V1Pod {
  const gpus = [{ gpuUuid: uuid(0), memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus }];
  const pod = api.addPod(name, mib, { spec: { containers: [], nodeName: 'a' } });
  const annotations = { [GRANT]: formatPodGrant({ epoch: 3, containers }) };
  pod.metadata = { namespace: 'team', name, uid: `uid-${name}`, annotations };
  api.show('ADDED', pod);
  return pod;
}

const mibOf = ({ metadata }: V1Pod): number | undefined => {
  const grant = parsePodGrant(metadata?.annotations?.[GRANT] ?? '');
  return grant.ok ? (grant.value.containers[0]?.gpus[0]?.memoryBytes ?? 0) / MIB : undefined;
};
const ask = (api: Api, pod: V1Pod, text: string): void => {
  pod.metadata = { ...pod.metadata, annotations: { ...pod.metadata?.annotations, [MEMORY]: text } };
  api.show('MODIFIED', pod);
};
const conditionOf = ({ status }: V1Pod) => {
  const found = status?.conditions?.find(({ type }) => type === 'cotenant.io/MemoryResized');
  return found && [found.status, found.reason, found.message];
};
const fits = async (running: Running, mib: number) => ((await feasible(running, mib)) as string[]).length === 1;

/** A node `a` with one GPU of 1000 MiB, of which two pods have 400 and 300. */
async function twoPods(t: ExecutionContext) {
  const api = await startApi(t, { a: 1000 });
  const [one, two] = [granted(api, 'one', 400), granted(api, 'two', 300)];
  api.lead('pod-a_1', 3);
  const running = await start(t, api);
  await leads(running);
  return { api, one, two, running };
}

test('a change that a busy API server refuses is tried again after its pause', async (t) => {
  const { api, one } = await twoPods(t);
  api.patchFault = 'busy';
  ask(api, one, '{"main":"700Mi"}');
  await eventually(() => api.patches.length > 1 || undefined, 'it is tried again');
  const [first = 0, second = 0] = api.patchedMs;
  t.true(second - first >= 2000, `${second - first} ms`);
  api.patchFault = 'none';
  await eventually(() => mibOf(one) === 700 || undefined, 'it is granted');
});

test('a pod gets more memory where its GPU has it, and less always', async (t) => {
  const { api, one, running } = await twoPods(t);
  api.silentEvents = true; // changes do not wait for them
  ask(api, one, '{"main":"700Mi"}');
  await eventually(() => (mibOf(one) === 700 ? true : undefined), 'it is granted');
  await eventually(async () => ((await fits(running, 1)) ? undefined : true), 'nothing is left');
  t.is(parsePodGrant(one.metadata?.annotations?.[GRANT] ?? '').ok, true);
  await eventually(() => (conditionOf(one)?.[0] === 'True' ? true : undefined), 'the pod says so');
  t.deepEqual(conditionOf(one), [
    'True',
    'GPUMemoryResized',
    'the memory of its GPUs is now, by container: main 700Mi',
  ]);
  ask(api, one, '{"main":"100Mi"}');
  await eventually(() => (mibOf(one) === 100 ? true : undefined), 'it shrinks');
  await eventually(async () => ((await fits(running, 600)) ? true : undefined), 'others have the rest');
  t.false(await fits(running, 601));
  await eventually(() => (api.events.length === 2 ? true : undefined), 'two Events', 30_000);
  t.deepEqual(
    api.events.map(({ type, reason, involvedObject }) => [type, reason, involvedObject.uid]),
    Array(2).fill(['Normal', 'GPUMemoryResized', 'uid-one']),
  );
  t.is(await running.series('cotenant_scheduler_memory_changes_total', { outcome: 'granted' }), 2);
});

test('what does not fit is refused once with the reason, and granted when it fits', async (t) => {
  const { api, one, two, running } = await twoPods(t);
  ask(api, one, '{"main":"701Mi"}');
  await eventually(() => (conditionOf(one) ? true : undefined), 'it is refused');
  t.deepEqual(conditionOf(one), [
    'False',
    'GPUMemoryNotResized',
    `annotation cotenant.io/memory is not applied: ${uuid(0)} has 700Mi for the pod, but 701Mi are wanted`,
  ]);
  t.is(mibOf(one), 400);
  t.true(await fits(running, 300), 'nothing is reserved for it');
  api.pods.delete('two');
  api.show('DELETED', two);
  await eventually(() => (mibOf(one) === 701 ? true : undefined), 'it is granted');
  t.is(await running.series('cotenant_scheduler_memory_changes_total', { outcome: 'refused' }), 1);
  ask(api, one, '{"side":"1Gi"}');
  const unknown = /side: no container with a grant has this name; the pod has main$/;
  await eventually(() => (unknown.test(conditionOf(one)?.[2] ?? '') ? true : undefined), 'an unknown container');
  t.is(mibOf(one), 701);
});

test('growth stays reserved without an answer, and is given back after a refusal', async (t) => {
  const { api, one, running } = await twoPods(t);
  api.patchFault = 'forbidden';
  ask(api, one, '{"main":"600Mi"}');
  await eventually(() => (api.patches.length > 0 ? true : undefined), 'it was tried');
  await eventually(async () => ((await fits(running, 300)) ? true : undefined), 'what was refused is free');
  t.is(mibOf(one), 400);
  api.patchFault = 'unanswered';
  await eventually(() => (mibOf(one) === 600 ? true : undefined), 'it was carried out without an answer');
  const tried = api.patches.length;
  // The watch has not shown it: the next writes carry an old version, and conflict.
  await eventually(() => (api.patches.length > tried ? true : undefined), 'it is tried again');
  api.patchFault = 'none';
  api.show('MODIFIED', one);
  await eventually(
    async () => ((await fits(running, 100)) && !(await fits(running, 101)) ? true : undefined),
    'counted once',
  );
  t.is(mibOf(one), 600);
});

test('only the leader changes grants, and one that no longer leads reserves nothing', async (t) => {
  const { api, one, running } = await twoPods(t);
  api.patchFault = 'unanswered';
  const version = one.metadata?.resourceVersion;
  t.truthy(version);
  ask(api, one, '{"main":"700Mi"}');
  await eventually(() => (mibOf(one) === 700 ? true : undefined), 'it was carried out without an answer');
  t.false(await fits(running, 1), 'reserved');
  api.lead('pod-b_1', 4);
  await eventually(
    async () => ((await running.series('cotenant_scheduler_leader')) === 0 ? true : undefined),
    'it lost',
  );
  const tried = api.patches.length;
  await eventually(async () => ((await fits(running, 300)) ? true : undefined), 'the watch has not shown more');
  api.show('MODIFIED', one);
  await eventually(async () => ((await fits(running, 1)) ? undefined : true), 'as the watch shows it');
  ask(api, one, '{"main":"100Mi"}');
  await eventually(async () => ((await fits(running, 1)) ? undefined : true), 'it is left to the leader');
  t.is(api.patches.length, tried);
});
