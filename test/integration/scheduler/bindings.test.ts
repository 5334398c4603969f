// What is allocated while a binding is in flight, and when it is released: with an API server that is slow, cuts
// connections, and carries out requests that it did not answer.
import test from 'ava';
import { eventually } from '../../support/native/node.ts';
import { startApi } from './api.ts';
import { feasible, leads, shows, start } from './running.ts';

const IN_FLIGHT = 'cotenant_scheduler_bindings_in_flight';
/** Where the API server answers, however busy the machine is, and where it does not. */
const ANSWERED = { answerMs: 20_000, landsMs: 60_000, shownMs: 60_000 };
const TIMES = { ...ANSWERED, answerMs: 300 };
const NOT_KNOWN =
  'it is not known yet whether the pod was bound to node a; what it requests there stays reserved until it is';

test('a binding that was refused or never sent releases its allocation at once', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api, { binderTimes: ANSWERED });
  await leads(running);
  for (const name of ['refused', 'raced', 'away']) api.addPod(name, 800);
  api.fault = 'refused';
  t.regex(String(await running.bind('refused', 'a')), /the binding failed: .*not today/);
  t.deepEqual(await feasible(running, 800), ['a']);
  // Another scheduler was quicker, to another node.
  api.fault = 'none';
  const raced = api.pods.get('raced');
  if (raced?.spec) raced.spec.nodeName = 'b';
  t.regex(String(await running.bind('raced', 'a')), /the binding failed: status 409/);
  t.deepEqual(await feasible(running, 800), ['a']);
  await running.filter('away', 800, ['a']);
  api.close();
  t.regex(String(await running.bind('away', 'a')), /the binding failed/);
  t.deepEqual(await feasible(running, 800), ['a']);
});

test('a binding that takes longer than its answer keeps its allocation', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api, { binderTimes: TIMES });
  await leads(running);
  const slow = api.addPod('slow', 800);
  const held = Promise.withResolvers<void>();
  api.hold.bindings = held.promise;
  t.is(await running.bind('slow', 'a'), NOT_KNOWN);
  t.is(await running.bind('slow', 'a'), NOT_KNOWN);
  t.is(api.bindings.length, 1);
  t.deepEqual(await feasible(running, 300), []);
  // A list that does not show it says nothing.
  const lists = api.podLists;
  api.show('ERROR' as 'DELETED', { metadata: {}, spec: { containers: [] } });
  await eventually(() => (api.podLists > lists ? true : undefined), 'all pods are listed');
  held.resolve();
  await eventually(() => slow.spec?.nodeName, 'it lands');
  t.deepEqual(await feasible(running, 300), []);
  await eventually(
    async () => ((await running.bind('slow', 'a')) === 'the pod already has a grant' ? true : undefined),
    'it is known',
  );
  t.deepEqual(await feasible(running, 300), []);
  api.show('ADDED', slow);
  await shows(running, IN_FLIGHT, 0);
  t.deepEqual(await feasible(running, 300), []);
});

test('a binding whose connection was cut stays allocated until its result is known', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api, { binderTimes: { ...TIMES, answerMs: 1500, landsMs: 5000 } });
  await leads(running);
  const gone = async (name: string) => {
    const pod = api.pods.get(name);
    if (pod) api.show('ADDED', pod);
    await shows(running, IN_FLIGHT, 0);
    if (pod) api.show('DELETED', pod);
    api.pods.delete(name);
    await eventually(async () => ((await feasible(running, 800)) as string[])[0], 'the pod fits again');
  };
  // Written, and the answer lost: reading the pod shows it.
  api.addPod('late', 800);
  api.fault = 'cut-after';
  t.is(await running.bind('late', 'a'), undefined);
  t.deepEqual(await feasible(running, 300), []);
  await gone('late');

  // Read as not bound at first, and written all the same.
  const later = api.addPod('later', 800);
  const held = Promise.withResolvers<void>();
  api.hold.afterCut = held.promise;
  t.is(await running.bind('later', 'a'), NOT_KNOWN);
  held.resolve();
  await eventually(() => later.spec?.nodeName, 'it lands');
  t.deepEqual(await feasible(running, 300), []);
  await gone('later');

  // The pod cannot be read either.
  api.hold = {};
  api.addPod('blind', 800);
  await running.filter('blind', 800, ['a']);
  api.fault = 'cut-and-blind';
  t.is(await running.bind('blind', 'a'), NOT_KNOWN);
  t.deepEqual(await feasible(running, 300), []);
  api.fault = 'none';
  await gone('blind');

  // Never written: it is given back when it cannot be written any more, and not before.
  api.addPod('lost', 800);
  api.fault = 'cut-before';
  const begunMs = performance.now();
  t.is(await running.bind('lost', 'a'), NOT_KNOWN);
  await eventually(async () => ((await feasible(running, 800)) as string[])[0], 'the pod fits again');
  t.true(performance.now() - begunMs >= 5000);
  api.fault = 'none';
  t.is(await running.bind('lost', 'a'), undefined);
});

test('a pod that ended before the watch showed it releases its allocation', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api, { binderTimes: { ...ANSWERED, shownMs: 3000 } });
  await leads(running);
  api.addPod('short', 800);
  t.is(await running.bind('short', 'a'), undefined);
  api.pods.delete('short');
  t.deepEqual(await feasible(running, 800), []);
  await eventually(async () => ((await feasible(running, 800)) as string[])[0], 'the pod fits again');
  await shows(running, IN_FLIGHT, 0);
});

test('a binding in flight stays allocated when all pods are listed again', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api);
  await leads(running);
  api.addPod('one', 800);
  const held = Promise.withResolvers<void>();
  api.hold.bindings = held.promise;
  const binding = running.bind('one', 'a');
  await eventually(() => (api.bindings.length > 0 ? true : undefined), 'the binding is on its way');
  const lists = api.podLists;
  api.show('ERROR' as 'DELETED', { metadata: {}, spec: { containers: [] } });
  await eventually(() => (api.podLists > lists ? true : undefined), 'all pods are listed');
  // A later change is heard only once that list was taken in.
  const marker = api.addPod('marker', 1, { spec: { containers: [], nodeName: 'a' } });
  marker.metadata = { ...marker.metadata, annotations: { 'cotenant.io/grant': 'x' } };
  await eventually(async () => {
    api.show('ADDED', marker);
    return (await running.series('cotenant_scheduler_invalid_objects', { kind: 'pods' })) === 1 ? true : undefined;
  }, 'the list is known');
  t.deepEqual(await feasible(running, 800), []);
  held.resolve();
  t.is(await binding, undefined);
});

test('a pod created anew under a name that is being bound is another pod', async (t) => {
  const api = await startApi(t, { a: 1000 });
  api.lead('pod-a_1', 0);
  const running = await start(t, api, { binderTimes: { ...TIMES, answerMs: 1500 } });
  await leads(running);
  const old = api.addPod('same', 800);
  const held = Promise.withResolvers<void>();
  api.hold.bindings = held.promise;
  t.is(await running.bind('same', 'a'), NOT_KNOWN);
  // Deleted, and made again by its StatefulSet, before the API server carries the binding out.
  const successor = api.addPod('same', 300);
  successor.metadata = { ...successor.metadata, uid: 'uid-successor' };
  held.resolve();
  await shows(running, IN_FLIGHT, 0);
  t.is(successor.spec?.nodeName, undefined);
  t.deepEqual(await feasible(running, 1000), ['a']);
  t.is(await running.bind('same', 'a', 'uid-successor'), undefined);
  api.show('ADDED', successor);
  await shows(running, IN_FLIGHT, 0);
  // What is said of the first pod, however late, is not about the second one.
  api.show('DELETED', { ...old, spec: { containers: [], nodeName: 'a' } });
  const last = api.addPod('last', 1);
  last.spec = { containers: [], nodeName: 'a' };
  api.show('ADDED', last);
  t.deepEqual(await feasible(running, 701), []);
  t.deepEqual(await feasible(running, 700), ['a']);
  t.is(await running.series('cotenant_scheduler_granted_pods'), 1);
});
