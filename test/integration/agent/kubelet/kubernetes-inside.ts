// What the agent's tests have of a cluster: an API server made for them, which answers the calls that the agent makes
// and breaks on demand; the part of a kubelet that tells which devices it gave out; programs in groups such as the
// kubelet makes.
import { spawn } from 'node:child_process';
import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Server, ServerCredentials } from '@grpc/grpc-js';
import type { V1Pod } from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import type { PodResources } from '../../../../src/agent/attribution/other-allocations.ts';
import { POD_RESOURCES } from '../../../../src/agent/attribution/pod-resources.ts';
import { groupHome } from '../../../support/machine/cgroups.ts';
import { BUILD, temporaryFolder } from '../../../support/native/node.ts';
import { answer, answerList, refuse, startApiServer, watchers } from '../../../support/services/api-server.ts';

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
  const { open, add, send, hangUp } = watchers();
  const api = {
    pods: [] as V1Pod[],
    status: 200,
    lists: [] as string[],
    refused: 0,
    watchers: open,
    posts: [] as Post[],
    send,
    hangUp,
  };
  const { config } = await startApiServer(t, async ({ method, url, isWatch, body }, response) => {
    if (api.status !== 200) {
      api.refused += 1;
      return refuse(response, api.status);
    }
    if (method === 'POST') {
      const posted = (await body()) as Post['body'];
      api.posts.push({ path: url.pathname, body: posted });
      return answer(response, 201, posted);
    }
    if (isWatch) return add(response);
    api.lists.push(url.search);
    answerList(response, api.pods);
  });
  const file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(file, config.exportConfig());
  return Object.assign(api, { config, file });
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

/** A program in that group that holds 300 MiB of a GPU. */
export async function startHolder(t: ExecutionContext, lib: string, group: string, gpu: number) {
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
  for (const command of ['init', `context ${gpu}`, `alloc ${300 * 2 ** 20}`]) {
    client.stdin.write(`${command}\n`);
    t.regex(String((await lines.next()).value), /^0/);
  }
  return { pid: client.pid, end };
}
