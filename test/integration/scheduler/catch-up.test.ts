// What a new leader waits for before it binds: its watch has shown all that was bound before, in the order in which it was
// written, or all bound pods are listed.
import test from 'ava';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { GRANT_ANNOTATION } from '../../../src/api/names.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createCatchUp } from '../../../src/scheduler/allocations/catch-up.ts';
import { eventually } from '../../support/native/node.ts';
import { answer, refuse, startApiServer } from '../../support/services/api-server.ts';
import { uuid } from '../../unit/scheduler/cluster.ts';
import { startApi } from './api.ts';
import { leads, start } from './running.ts';

test('a new leader binds without a list once its watch shows its mark', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.ownPod = 'shown';
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  const lists = api.podLists;
  for (const name of ['one', 'two']) {
    api.addPod(name, 300);
    t.is(await running.bind(name, 'a'), undefined);
  }
  t.is(api.podLists, lists);
  t.deepEqual(api.marks, []);
});

test('a watch that lags behind the leader before delays the first bind', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.ownPod = 'held';
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  const lists = api.podLists;
  // The leader before bound it, which the watch has not shown yet.
  const old = api.addPod('old', 900, { spec: { nodeName: 'a', containers: [] } });
  const bytes = 900 * MIB;
  const gpus = [{ gpuUuid: uuid(0), memoryBytes: bytes, limitBytes: bytes, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus }] as const;
  old.metadata = { ...old.metadata, annotations: { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 1, containers }) } };
  api.addPod('new', 300);
  const binding = running.bind('new', 'a');
  await eventually(() => api.marks[0], 'the mark is written');
  t.is(api.bindings.length, 0);
  api.show('ADDED', old);
  for (const mark of api.marks.splice(0)) api.show('MODIFIED', mark);
  t.is(
    await binding,
    `node a: ${uuid(0)} has 100 MiB of cotenant.io/gpu-memory free, but 300 MiB are requested (it lacks 200 MiB)`,
  );
  t.is(api.bindings.length, 0, 'the GPU has no room for both');
  t.is(api.podLists, lists);
});

test('all bound pods are listed where the mark is refused, or not shown in time', async (t) => {
  let isRefused = true;
  const server = await startApiServer(t, (_, response) =>
    isRefused ? refuse(response, 404, 'no such pod') : answer(response, 200, {}),
  );
  const seen: string[] = [];
  const catchingUp = (waitMs: number) =>
    createCatchUp({
      config: server.config,
      ownPod: { namespace: 'ns', name: 'pod-a' },
      relist: async () => void seen.push('listed'),
      logger: { info: (text) => seen.push(text) },
      waitMs,
    });
  await catchingUp(30_000).catchUp();
  isRefused = false;
  const { catchUp, shown } = catchingUp(50);
  const caughtUp = catchUp();
  shown('the mark of another replica');
  await caughtUp;
  const sentence = 'all bound pods are listed, as a mark on pod ns/pod-a does not serve: ';
  t.deepEqual(seen, [
    `${sentence}status 404: no such pod`,
    'listed',
    `${sentence}the watch did not show it within 0.05 s`,
    'listed',
  ]);
});
