// What the agent takes from a cluster and tells it. The API server here is a small one made for these tests: it answers the
// three calls that the agent makes, and breaks on demand. A real one is not part of this layer.
import { spawn } from 'node:child_process';
import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { KubeConfig, type V1Pod } from '@kubernetes/client-node';
import test, { type ExecutionContext } from 'ava';
import { createReporter } from '../../../src/kube/events.ts';
import { watchPods } from '../../../src/kube/pods.ts';
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
    if (api.status !== 200) return answer(response, api.status, refusal(api.status));
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

testUnless('reason' in place ? place.reason : undefined)(
  'the agent names containers without a grant by their pods',
  async (t) => {
    const groups: string[] = [];
    for (const part of ['kubepods', `kubepods/pod${UID}`, `kubepods/pod${UID}/${ID}`]) {
      const path = join('home' in place ? place.home : '', part);
      mkdirSync(path);
      groups.unshift(path);
    }
    t.teardown(() => {
      for (const path of groups) rmdirSync(path);
    });
    const api = await startApi(t);
    api.pods = [podOf('sneaky', UID, ID)];
    const node = await startNode(t, '--card', 'l4');
    process.env.KUBECONFIG = api.file;
    const agent = await startAgent(t, node, {
      settings: { intervalMs: 100, 'kubernetes.enabled': true, 'kubernetes.nodeName': 'node-a' },
    });
    const script = `echo $$ > ${groups[0]}/cgroup.procs && exec ${join(BUILD, 'tests/client')}`;
    const client = spawn('/bin/sh', ['-c', script], {
      env: { ...process.env, LD_LIBRARY_PATH: node.lib },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const ended = new Promise((resolve) => client.once('exit', resolve));
    const lines = createInterface({ input: client.stdout })[Symbol.asyncIterator]();
    for (const command of ['init', 'context 0', `alloc ${300 * 2 ** 20}`]) {
      client.stdin.write(`${command}\n`);
      t.regex(String((await lines.next()).value), /^0/);
    }
    const books = node.books().clients.find(({ pid }) => pid === client.pid)?.cards[0]?.bytes;
    const labels = { namespace: 'team', pod: 'sneaky', container: 'main' };
    const used = await eventually(async () => {
      const value = await agent.metric('cotenant_foreign_memory_used_bytes', labels);
      return value === books ? value : undefined;
    }, 'its memory under its own name');
    t.true(used > 300 * 2 ** 20);
    t.deepEqual(agent.audit(), [], 'foreign use is reported, never stopped');
    client.kill('SIGKILL');
    await ended;
  },
);
