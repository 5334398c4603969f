// When the amounts of a node are written, and when they are not. The API server here is a small one made for these
// tests: it holds one Node and breaks on demand; a real one is in test/cluster/node/node-faces.test.ts.
import type { V1Node } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { formatPodGrant } from '../../../../src/api/grant-annotation.ts';
import type { GpusReading } from '../../../../src/kube/node-gpus.ts';
import { buildNodePatch, type NodePatch, startAdvertising } from '../../../../src/kube/node-status.ts';
import { eventually } from '../../../support/native/node.ts';
import { answer, answerList, refuse, startApiServer, watchers } from '../../../support/services/api-server.ts';

const gpusOf = (mib: number): GpusReading => ({
  complete: true,
  grants: [],
  mostTenantsPerGpu: 50,
  gpus: [
    {
      gpuUuid: 'GPU-00000000-0000-4000-8000-000000000001',
      index: 0,
      model: 'NVIDIA L4',
      usableBytes: mib * 2 ** 20,
      healthy: true,
    },
  ],
});

async function startApi(t: ExecutionContext) {
  let version = 10;
  let node: V1Node = { metadata: { name: 'node-a', uid: 'uid', resourceVersion: String(version) }, status: {} };
  const { open, add, send } = watchers();
  const api = {
    node: () => node,
    status: 200,
    patches: [] as { path: string; type: string | undefined; body: NodePatch }[],
    queries: [] as string[],
    /** Another client's change of the Node, which watchers hear of. */
    set(change: NodePatch) {
      version += 1;
      node = {
        metadata: {
          ...node.metadata,
          resourceVersion: String(version),
          annotations: { ...node.metadata?.annotations, ...change.metadata.annotations },
        },
        status: {
          capacity: { ...node.status?.capacity, ...change.status.capacity },
          allocatable: { ...node.status?.allocatable, ...change.status.allocatable },
        },
      };
      api.tell(node);
    },
    tell: (object: V1Node) => send('MODIFIED', object),
    watched: () => eventually(() => (open.size > 0 ? true : undefined), 'a watch'),
  };
  const { config } = await startApiServer(t, async ({ method, url, headers, isWatch, body }, response) => {
    if (method === 'PATCH') {
      const patch = (await body()) as NodePatch;
      api.patches.push({ path: url.pathname, type: headers['content-type'], body: patch });
      if (api.status !== 200) return refuse(response, api.status);
      api.set(patch);
      return answer(response, 200, node);
    }
    api.queries.push(url.searchParams.get('fieldSelector') ?? '');
    if (isWatch) return add(response);
    answerList(response, [node]);
  });
  return Object.assign(api, { config });
}

const patches = (api: { patches: readonly unknown[] }, count: number) =>
  eventually(() => (api.patches.length >= count ? true : undefined), `${count} writes`);

test('amounts are written at once when the Node shows others, else not at all', async (t) => {
  const api = await startApi(t);
  const problems: string[] = [];
  let gpus: GpusReading | undefined;
  let asked = 0;
  const advertising = startAdvertising({
    config: api.config,
    nodeName: 'node-a',
    withSlots: false,
    gpus: () => {
      asked += 1;
      return gpus;
    },
    stateOf: () => ({ kind: 'unknown' }),
    onProblem: (text) => problems.push(text),
    leastBetweenWritesMs: 0,
  });
  t.teardown(() => advertising.close());
  await api.watched();
  advertising.changed();
  t.deepEqual(api.patches, [], 'nothing is known of the GPUs');
  gpus = gpusOf(100);
  advertising.changed();
  await patches(api, 1);
  t.is(api.patches[0]?.path, '/api/v1/nodes/node-a/status');
  t.is(api.patches[0]?.type, 'application/strategic-merge-patch+json');
  t.deepEqual(api.patches[0]?.body, buildNodePatch(gpus, undefined));
  t.true(api.queries.every((query) => query === 'metadata.name=node-a'));

  // What the server tells of the time before is no news; neither are questions when nothing changed.
  for (const resourceVersion of ['3', '4', '5']) {
    const before = asked;
    api.tell({ metadata: { name: 'node-a', uid: 'uid', resourceVersion }, status: {} });
    await eventually(() => (asked > before ? true : undefined), 'the Node is looked at');
    advertising.changed();
  }
  // Another client takes the memory away, and it comes back.
  const { metadata, status } = buildNodePatch(gpus, undefined);
  api.set({
    metadata,
    status: { ...status, capacity: { 'cotenant.io/gpu-memory': '0', 'cotenant.io/gpu-cores': '100' } },
  });
  await patches(api, 2);
  gpus = gpusOf(200);
  advertising.changed();
  await patches(api, 3);
  t.deepEqual(
    api.patches.map(({ body }) => body.status.capacity['cotenant.io/gpu-memory']),
    [100, 100, 200].map((mib) => String(mib * 2 ** 20)),
  );
  t.is(api.node().status?.allocatable?.['cotenant.io/gpu-memory'], String(200 * 2 ** 20));
  t.deepEqual(problems, []);
});

test('a GPU that vanishes under pods is unhealthy and keeps its amounts', async (t) => {
  const api = await startApi(t);
  const gpuUuid = gpusOf(100).gpus[0]?.gpuUuid ?? '';
  const granted = (memoryBytes: number) => {
    const gpus = [{ gpuUuid, memoryBytes, limitBytes: memoryBytes, coresPercent: 0 }];
    return { name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus };
  };
  const grantText = formatPodGrant({ epoch: 1, containers: [granted(10)] });
  const grants = [{ podUid: 'p', containers: [granted(10)] }];
  let reading: GpusReading = { ...gpusOf(100), grants };
  const advertising = startAdvertising({
    config: api.config,
    nodeName: 'node-a',
    withSlots: true,
    gpus: () => reading,
    stateOf: () => ({ kind: 'present', grantText }),
    onProblem: t.log,
    leastBetweenWritesMs: 0,
  });
  t.teardown(() => advertising.close());
  await patches(api, 1);
  reading = { ...reading, gpus: [] };
  advertising.changed();
  await patches(api, 2);
  const { metadata, status } = api.node();
  t.deepEqual(status?.allocatable, buildNodePatch(gpusOf(100), 0).status.allocatable);
  t.regex(metadata?.annotations?.['cotenant.io/gpus'] ?? '', /"healthy":false/);
  t.notRegex(metadata?.annotations?.['cotenant.io/gpus'] ?? '', /"others"/);
  reading = { ...reading, grants: [{ podUid: 'p', containers: [granted(30)] }] };
  advertising.changed();
  await patches(api, 3);
  t.regex(api.node().metadata?.annotations?.['cotenant.io/gpus'] ?? '', /"others":\{"memoryBytes":20,/);
  reading = { ...reading, grants: [] };
  advertising.changed();
  await patches(api, 4);
  t.is(api.node().status?.allocatable?.['cotenant.io/gpu-memory'], '0');
});

test('a write that is refused is reported with the reason and retried', async (t) => {
  const api = await startApi(t);
  const problems: string[] = [];
  api.status = 403;
  const advertising = startAdvertising({
    config: api.config,
    nodeName: 'node-a',
    withSlots: false,
    gpus: () => gpusOf(100),
    stateOf: () => ({ kind: 'unknown' }),
    onProblem: (text) => problems.push(text),
  });
  t.teardown(() => advertising.close());
  await eventually(() => problems[0], 'it is reported');
  t.regex(problems[0] ?? '', /^cannot write the status of node node-a, which is retried: status 403: on purpose$/);
  api.status = 200;
  await patches(api, 2);
  t.is((await eventually(() => api.node().status?.capacity, 'the amounts'))['cotenant.io/gpu-cores'], '100');
});
