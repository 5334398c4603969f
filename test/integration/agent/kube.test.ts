// What the agent takes from a cluster and tells it. The API server here is a small one made for these tests: it answers the
// three calls that the agent makes, and breaks on demand. A real one is not part of this layer.
import { spawn } from 'node:child_process';
import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { KubeConfig, type V1Pod } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import type { PodResources } from '../../../src/agent/attribution/assignments.ts';
import { POD_RESOURCES } from '../../../src/agent/attribution/pod-resources.ts';
import { createReporter } from '../../../src/kube/events.ts';
import { watchPods } from '../../../src/kube/pods.ts';
import { followSlices } from '../../../src/kube/resource-slices.ts';
import { startAgent } from '../../support/agent.ts';
import { testUnless } from '../../support/gate.ts';
import { groupHome } from '../../support/groups.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../support/node.ts';

const place = groupHome();
const UID = '0a1b2c3d-0000-4000-8000-000000000001';
const ID = 'ab'.repeat(32);

let version = 1;
const podOf = (name: string, uid: string, id: string): V1Pod => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { namespace: 'team', name, uid, resourceVersion: String(version++) },
  spec: { nodeName: 'node-a', containers: [{ name: 'main' }] },
  status: {
    containerStatuses: [
      {
        name: 'main',
        containerID: `containerd://${id}`,
        image: 'x',
        imageID: 'x',
        ready: true,
        restartCount: 0,
      },
    ],
  },
});

type Post = { readonly path: string; readonly body: Record<string, unknown> };

/** Lists `pods`, streams what is sent to watchers, keeps what is posted; `status` other than 200 refuses everything. */
async function startApi(t: ExecutionContext) {
  const api = {
    pods: [] as V1Pod[],
    status: 200,
    lists: [] as string[],
    refused: 0,
    watchers: [] as ServerResponse[],
    posts: [] as Post[],
    send(type: string, object: object) {
      for (const watcher of api.watchers) watcher.write(`${JSON.stringify({ type, object })}\n`);
    },
    hangUp() {
      for (const watcher of api.watchers.splice(0)) watcher.end();
    },
    config: new KubeConfig(),
    file: '',
  };
  const answer = (response: ServerResponse, status: number, body: object) => {
    response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
  };
  const refusal = (code: number) => ({
    kind: 'Status',
    apiVersion: 'v1',
    status: 'Failure',
    message: 'on purpose',
    code,
  });
  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    const url = new URL(request.url ?? '/', 'http://api');
    if (api.status !== 200) {
      api.refused += 1;
      return answer(response, api.status, refusal(api.status));
    }
    if (request.method === 'POST') {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      api.posts.push({ path: url.pathname, body: JSON.parse(Buffer.concat(parts).toString()) });
      return answer(response, 201, api.posts.at(-1)?.body ?? {});
    }
    if (url.searchParams.get('watch') === 'true') {
      response.writeHead(200, { 'Content-Type': 'application/json' }).flushHeaders();
      api.watchers.push(response);
      return;
    }
    api.lists.push(url.search);
    answer(response, 200, { kind: 'PodList', apiVersion: 'v1', metadata: { resourceVersion: '1' }, items: api.pods });
  };
  const server = createServer((request, response) => void serve(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  api.config.loadFromClusterAndUser({ name: 'c', server: url, skipTLSVerify: true }, { name: 'u' });
  api.file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(api.file, api.config.exportConfig());
  return api;
}

test('containers get their names from a list and a watch of this node only', async (t) => {
  const api = await startApi(t);
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = watchPods(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await pods.ready;
  const name = { namespace: 'team', pod: 'one', podUid: UID, container: 'main' };
  t.deepEqual(pods.of(ID), name);
  t.is(pods.of('cd'.repeat(32)), undefined);
  t.true(api.lists.every((query) => new URLSearchParams(query).get('fieldSelector') === 'spec.nodeName=node-a'));

  await eventually(() => (api.watchers.length > 0 ? true : undefined), 'a watch');
  const second = podOf('two', 'other-uid', 'cd'.repeat(32));
  api.send('ADDED', second);
  await eventually(() => pods.of('cd'.repeat(32)), 'the second pod');
  // A restarted container has another id, and the old one belongs to nobody.
  api.send('MODIFIED', podOf('two', 'other-uid', 'ef'.repeat(32)));
  await eventually(() => pods.of('ef'.repeat(32)), 'the new id');
  t.is(pods.of('cd'.repeat(32)), undefined);
  api.send('DELETED', podOf('two', 'other-uid', 'ef'.repeat(32)));
  await eventually(() => (pods.of('ef'.repeat(32)) === undefined ? true : undefined), 'its end');
  t.deepEqual(pods.of(ID), name);
  t.deepEqual(problems, []);
});

test('a watch that breaks is made anew, and nothing that was learned is forgotten meanwhile', async (t) => {
  const api = await startApi(t);
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = watchPods(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await pods.ready;
  await eventually(() => (api.watchers.length > 0 ? true : undefined), 'a watch');
  // "Gone": what happened since cannot be told, so the list is made anew, and is refused at first.
  api.send('ERROR', { kind: 'Status', status: 'Failure', code: 410, message: 'too old resource version' });
  api.status = 503;
  api.hangUp();
  await eventually(() => (problems.length > 0 ? true : undefined), 'the problem is told');
  t.is(pods.of(ID)?.pod, 'one');
  api.pods = [podOf('three', 'third-uid', 'cd'.repeat(32))];
  api.status = 200;
  await eventually(() => pods.of('cd'.repeat(32)), 'what came meanwhile');
  t.is(pods.of(ID), undefined);
});

test('a list that is refused at the start is asked for again', async (t) => {
  const api = await startApi(t);
  api.status = 403;
  api.pods = [podOf('one', UID, ID)];
  const problems: string[] = [];
  const pods = watchPods(api.config, 'node-a', (text) => problems.push(text));
  t.teardown(() => pods.close());
  await eventually(() => (problems.length > 0 ? true : undefined), 'the refusal is told');
  t.is(problems[0], 'the pods of this node cannot be followed, and are asked for again: status 403: on purpose');
  let listed = false;
  void pods.ready.then(() => {
    listed = true;
  });
  await new Promise(setImmediate);
  t.false(listed, 'a refused list is no list');
  api.status = 200;
  await pods.ready;
  t.is(pods.of(ID)?.pod, 'one');
});

test('resource slices of this node are read again and again; where they cannot be, that is said once and what was told stands', async (t) => {
  const api = await startApi(t);
  const slice = {
    kind: 'ResourceSlice',
    metadata: { name: 'a' },
    spec: { driver: 'gpu.nvidia.com', nodeName: 'node-a' },
  };
  api.pods = [slice as unknown as V1Pod];
  api.status = 404;
  const problems: string[] = [];
  const told: (readonly unknown[])[] = [];
  const slices = followSlices(
    api.config,
    'node-a',
    (list) => told.push(list),
    (text) => problems.push(text),
    20,
  );
  t.teardown(() => slices.close());
  await eventually(() => api.refused > 3 || undefined, 'it is asked for again');
  t.is(problems.length, 1);
  t.regex(problems[0] ?? '', /told by their names: status 404: on purpose/);
  api.status = 200;
  await eventually(() => told.length > 1 || undefined, 'they are read, and again');
  t.like(told[0]?.[0], { spec: { driver: 'gpu.nvidia.com', nodeName: 'node-a' } });
  t.true(api.lists.every((search) => search.includes(`fieldSelector=${encodeURIComponent('spec.nodeName=node-a')}`)));
  api.status = 403;
  await eventually(() => api.refused > 6 || undefined, 'it is asked for again');
  t.is(problems.length, 2, 'another outage is said, once');
  t.true(
    told.every((list) => list.length === 1),
    'and takes nothing back',
  );
});

test('an Event names pod, container, reason and node; one that cannot be written is told and costs nothing else', async (t) => {
  const api = await startApi(t);
  const problems: string[] = [];
  const report = createReporter(api.config, (text) => problems.push(text));
  const event = {
    namespace: 'team',
    pod: 'one',
    podUid: UID,
    container: 'main',
    reason: 'GPUMemoryQuotaExceeded',
    type: 'Warning' as const,
    message: 'm'.repeat(2000),
    atMs: Date.UTC(2026, 0, 2),
    by: { component: 'agent' as const, instance: 'node-a' },
  };
  await report(event);
  t.is(api.posts[0]?.path, '/api/v1/namespaces/team/events');
  t.like(api.posts[0]?.body, {
    metadata: { generateName: 'one.cotenant-', namespace: 'team' },
    involvedObject: {
      apiVersion: 'v1',
      kind: 'Pod',
      namespace: 'team',
      name: 'one',
      uid: UID,
      fieldPath: 'spec.containers{main}',
    },
    type: 'Warning',
    reason: 'GPUMemoryQuotaExceeded',
    message: 'm'.repeat(1024),
    lastTimestamp: '2026-01-02T00:00:00.000Z',
    source: { component: 'cotenant-agent', host: 'node-a' },
  });
  api.status = 403;
  await report(event);
  t.regex(problems[0] ?? '', /^the Event for team\/one could not be written: status 403: on purpose$/);
});

/** The part of a kubelet that tells which devices it gave out. */
async function startPodResources(t: ExecutionContext) {
  const socket = join(temporaryFolder(t), 'kubelet.sock');
  const kubelet = { socket, pods: [] as readonly PodResources[], asked: 0, channels: new Set<string>() };
  const server = new Server({ 'grpc.max_send_message_length': 64 << 20 });
  server.addService(POD_RESOURCES, {
    List(call: { getPeer(): string }, answer: (error: null, value: object) => void) {
      kubelet.asked += 1;
      kubelet.channels.add(call.getPeer());
      answer(null, { pod_resources: kubelet.pods });
    },
  });
  await new Promise<void>((resolve, reject) =>
    server.bindAsync(`unix:${socket}`, ServerCredentials.createInsecure(), (error) =>
      error ? reject(error) : resolve(),
    ),
  );
  t.teardown(() => server.forceShutdown());
  return kubelet;
}

const devicesOf = (pod: string, ids: readonly string[]): PodResources => ({
  name: pod,
  namespace: 'team',
  containers: [
    { name: 'main', devices: [{ resource_name: 'nvidia.com/gpu', device_ids: ids }], dynamic_resources: [] },
  ],
});

/** A group as the kubelet makes it for one container of a pod. */
function podGroup(t: ExecutionContext, uid: string, id: string): string {
  const groups: string[] = [];
  for (const part of ['kubepods', `kubepods/pod${uid}`, `kubepods/pod${uid}/${id}`]) {
    const path = join('home' in place ? place.home : '', part);
    mkdirSync(path, { recursive: true });
    groups.unshift(path);
  }
  t.teardown(() => {
    for (const path of groups) {
      try {
        rmdirSync(path);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EBUSY' && (error as NodeJS.ErrnoException).code !== 'ENOENT')
          throw error;
      }
    }
  });
  return groups[0] ?? '';
}

/** A program in that group that holds 300 MiB of a card. */
async function startHolder(t: ExecutionContext, lib: string, group: string, card: number) {
  const script = `echo $$ > ${group}/cgroup.procs && exec ${join(BUILD, 'tests/client')}`;
  const client = spawn('/bin/sh', ['-c', script], {
    env: { ...process.env, LD_LIBRARY_PATH: lib },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => client.once('exit', resolve));
  const end = async () => {
    client.kill('SIGKILL');
    await ended;
  };
  t.teardown(end);
  const lines = createInterface({ input: client.stdout })[Symbol.asyncIterator]();
  for (const command of ['init', `context ${card}`, `alloc ${300 * 2 ** 20}`]) {
    client.stdin.write(`${command}\n`);
    t.regex(String((await lines.next()).value), /^0/);
  }
  return { pid: client.pid, end };
}

testUnless('reason' in place ? place.reason : undefined)(
  "whole cards that the kubelet gave out stand in the same families as shares, with the driver's figures, and are no foreign use",
  async (t) => {
    t.timeout(60_000);
    const [whole, other] = [UID, UID.replace(/1$/, '2')];
    const [wholeId, otherId] = [ID, 'ef'.repeat(32)];
    const node = await startNode(t, '--card', 'l4', '--card', 'l4', '--card', 'l4');
    const kubelet = await startPodResources(t);
    const api = await startApi(t);
    const ended = podOf('ended', 'third', '12'.repeat(32));
    api.pods = [
      podOf('whole', whole, wholeId),
      podOf('idle', other, otherId),
      { ...ended, status: { ...ended.status, phase: 'Succeeded' } },
    ];
    // Far more than the 4 MiB that a client takes unless told otherwise.
    const crowd = Array.from({ length: 1000 }, (_, index) =>
      devicesOf(`crowd-${index}`, [`of-another-vendor-${'x'.repeat(6000)}`]),
    );
    kubelet.pods = [
      devicesOf('whole', [node.uuid(0)]),
      devicesOf('idle', ['nvidia1']),
      devicesOf('ended', [node.uuid(0)]),
      ...crowd,
    ];
    const agent = await startAgent(t, node, {
      env: { KUBECONFIG: api.file },
      settings: {
        intervalMs: 100,
        'kubernetes.enabled': true,
        'kubernetes.nodeName': 'node-a',
        'kubernetes.podResources': kubelet.socket,
      },
    });
    const holder = await startHolder(t, node.lib, podGroup(t, whole, wholeId), 0);
    const books = () => node.books().clients.find(({ pid }) => pid === holder.pid)?.cards[0]?.bytes ?? -1;
    const used = (pod: string) =>
      agent.metric('cotenant_container_memory_used_bytes', { namespace: 'team', pod, mode: 'exclusive' });
    await eventually(async () => (await used('whole')) === books() || undefined, 'the whole card and its holder');
    t.true(books() > 300 * 2 ** 20);
    t.is(await used('idle'), 0, 'allocated and idle is 0, not absent');
    t.is(await agent.metric('cotenant_container_info', { pod: 'whole', pod_uid: whole, container_id: wholeId }), 1);
    t.is(await agent.metric('cotenant_device_allocation_mode', { gpu: '0', mode: 'exclusive' }), 1);
    t.is(await agent.metric('cotenant_device_allocation_mode', { gpu: '2', mode: 'none' }), 1);
    t.is(await agent.metric('cotenant_container_memory_used_bytes', { pod: 'ended' }), undefined);
    t.is(await agent.metric('cotenant_foreign_memory_used_bytes'), undefined);
    t.is(await agent.metric('cotenant_container_memory_limit_bytes'), undefined, 'nobody holds it to anything');
    const cardUsed = await agent.metric('cotenant_device_memory_used_bytes', { gpu: '0' });
    t.is(await agent.metric('cotenant_device_unattributed_memory_bytes', { gpu: '0' }), (cardUsed ?? 0) - books());

    // On another card than its own it is foreign use, and whoever comes is asked about at once.
    const asked = kubelet.asked;
    const stray = await startHolder(t, node.lib, podGroup(t, other, otherId), 2);
    const foreign = { namespace: 'team', pod: 'idle', gpu: '2' };
    await eventually(
      async () => (await agent.metric('cotenant_foreign_memory_used_bytes', foreign)) || undefined,
      'its use of a card that nobody gave it',
    );
    await eventually(() => kubelet.asked > asked || undefined, 'the kubelet is asked about it');
    for (let scrape = 0; scrape < 50; scrape += 1) await agent.metrics();
    t.true(kubelet.asked <= asked + 3, 'scrapes ask the kubelet nothing');
    t.is(kubelet.channels.size, 1, 'one connection for all');
    await Promise.all([holder.end(), stray.end()]);
    await eventually(async () => (await used('whole')) === 0 || undefined, 'it idles');
    t.deepEqual(agent.audit(), []);
  },
);

testUnless('reason' in place ? place.reason : undefined)(
  'the agent names containers without a grant by their pods',
  async (t) => {
    const api = await startApi(t);
    const uid = UID.replace(/1$/, '3');
    api.pods = [podOf('sneaky', uid, ID)];
    const node = await startNode(t, '--card', 'l4');
    const socket = join(temporaryFolder(t), 'nobody.sock');
    const agent = await startAgent(t, node, {
      env: { KUBECONFIG: api.file },
      settings: {
        intervalMs: 100,
        'kubernetes.enabled': true,
        'kubernetes.nodeName': 'node-a',
        'kubernetes.podResources': socket,
      },
    });
    const holder = await startHolder(t, node.lib, podGroup(t, uid, ID), 0);
    const books = node.books().clients.find(({ pid }) => pid === holder.pid)?.cards[0]?.bytes;
    const labels = { namespace: 'team', pod: 'sneaky', container: 'main' };
    const used = await eventually(async () => {
      const value = await agent.metric('cotenant_foreign_memory_used_bytes', labels);
      return value === books ? value : undefined;
    }, 'its memory under its own name');
    t.true(used > 300 * 2 ** 20);
    t.deepEqual(agent.audit(), [], 'foreign use is reported, never stopped');
    const said = agent.log.filter((line) => line.includes(`the kubelet does not tell at ${socket}`));
    t.is(said.length, 1, 'that the kubelet cannot be asked is said, once');
    await holder.end();
  },
);
