// What the agent's tests have of a cluster: an API server made for them, which answers the calls that the agent makes and breaks on
// demand; the part of a kubelet that tells which devices it gave out; programs in groups such as the kubelet makes.
import { spawn } from 'node:child_process';
import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import { KubeConfig, type V1Pod } from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import type { PodResources } from '../../../src/agent/attribution/assignments.ts';
import { POD_RESOURCES } from '../../../src/agent/attribution/pod-resources.ts';
import { groupHome } from '../../support/groups.ts';
import { BUILD, temporaryFolder } from '../../support/node.ts';

export const place = groupHome();
export const UID = '0a1b2c3d-0000-4000-8000-000000000001';
export const ID = 'ab'.repeat(32);

let version = 1;
export const podOf = (name: string, uid: string, id: string): V1Pod => ({
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
export async function startApi(t: ExecutionContext) {
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

/** The part of a kubelet that tells which devices it gave out. */
export async function startPodResources(t: ExecutionContext) {
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

export const devicesOf = (pod: string, ids: readonly string[]): PodResources => ({
  name: pod,
  namespace: 'team',
  containers: [
    { name: 'main', devices: [{ resource_name: 'nvidia.com/gpu', device_ids: ids }], dynamic_resources: [] },
  ],
});

/** A group as the kubelet makes it for one container of a pod. */
export function podGroup(t: ExecutionContext, uid: string, id: string): string {
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
export async function startHolder(t: ExecutionContext, lib: string, group: string, card: number) {
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
