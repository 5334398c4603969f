// Stops, restarts and freezes the programs of a test cluster one by one, and waits until each is ready. Defines "ready"
// for each of them; bed.ts starts them first.
import { setTimeout as delay } from 'node:timers/promises';
import { Client, credentials } from '@grpc/grpc-js';
import { NETWORK } from './control-plane.ts';
import { WAIT_MS } from './eventually.ts';
import { kubernetesMinor } from './kubernetes.ts';
import { lastWords, type Namespaces, type Ran } from './namespaces.ts';
import { NODE_NAME } from './node.ts';

export const PARTS = ['containerd', 'etcd', 'apiserver', 'controllers', 'scheduler', 'kubelet'] as const;
export type Part = (typeof PARTS)[number];

export type Parts = {
  /** Ends it; the default is like a crash. Containers keep running without the kubelet and without containerd. */
  stop(part: Part, signal?: NodeJS.Signals): Promise<void>;
  /** Starts a stopped part and waits until it is ready. */
  start(part: Part): Promise<void>;
  restart(part: Part, signal?: NodeJS.Signals): Promise<void>;
  /** Freezes it: its sockets stay open without answers. */
  pause(part: Part): void;
  resume(part: Part): void;
  /** Resolves once it is ready, having started at `sinceMs` or later. */
  untilReady(part: Part, sinceMs?: number): Promise<void>;
};

const LOOK_EVERY_MS = 200;
const ANSWER_MS = 2000;
const PORTS = { controllers: 10257, scheduler: 10259, kubelet: 10250 };

export function bedParts(
  folder: string,
  namespaces: Namespaces,
  kubectl: (...args: readonly string[]) => Ran,
  containerdSocket: string,
): Parts {
  const answers = (server: string, path: string) => kubectl('--server', server, 'get', '--raw', path).code === 0;
  const ofNode = (kind: string, path: string, ...more: readonly string[]) =>
    kubectl('get', kind, NODE_NAME, ...more, '-o', `jsonpath=${path}`).out;
  const ready: Record<Part, (sinceMs: number) => boolean | Promise<boolean>> = {
    // The kubelet's first request, without whose answer it exits; containerd answers others earlier.
    containerd: () => answersRuntimeVersion(containerdSocket),
    // Only the API server can tell.
    etcd: () => kubectl('get', '--raw', '/readyz/etcd').code === 0,
    apiserver: () => kubectl('get', '--raw', '/readyz').code === 0,
    controllers: () => answers(`https://127.0.0.1:${PORTS.controllers}`, '/healthz'),
    // It has /readyz since Kubernetes 1.31.
    scheduler: () => answers(`https://127.0.0.1:${PORTS.scheduler}`, kubernetesMinor() >= 31 ? '/readyz' : '/healthz'),
    // The status of the last kubelet is still there; its lease tells whether this one reports. The first one's lease
    // comes late.
    kubelet: (sinceMs) =>
      answers(`https://${NETWORK.node}:${PORTS.kubelet}`, '/healthz') &&
      (sinceMs === 0 || Date.parse(ofNode('lease', '{.spec.renewTime}', '-n', 'kube-node-lease')) > sinceMs) &&
      ofNode('node', '{.status.conditions[?(@.type=="Ready")].status}') === 'True',
  };
  const untilReady: Parts['untilReady'] = async (part, sinceMs = 0) => {
    const deadline = Date.now() + WAIT_MS;
    while (!(await ready[part](sinceMs))) {
      if (Date.now() > deadline)
        throw new Error(`${part} was not ready within ${WAIT_MS / 1000} s\n${lastWords(folder, part)}`);
      await delay(LOOK_EVERY_MS);
    }
  };
  const stop: Parts['stop'] = (part, signal = 'SIGKILL') => namespaces.stop(part, signal);
  const start: Parts['start'] = async (part) => {
    const sinceMs = Date.now();
    namespaces.startAgain(part);
    await untilReady(part, sinceMs);
  };
  return {
    stop,
    start,
    async restart(part, signal) {
      await stop(part, signal);
      await start(part);
    },
    pause: (part) => namespaces.signal(part, 'SIGSTOP'),
    resume: (part) => namespaces.signal(part, 'SIGCONT'),
    untilReady,
  };
}

/** Whether the runtime service of a container runtime answers on a socket. */
function answersRuntimeVersion(socket: string): Promise<boolean> {
  const client = new Client(`unix:${socket}`, credentials.createInsecure());
  const raw = (bytes: Buffer) => bytes;
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const deadline = { deadline: Date.now() + ANSWER_MS };
  client.makeUnaryRequest('/runtime.v1.RuntimeService/Version', raw, raw, Buffer.alloc(0), deadline, (error) => {
    client.close();
    resolve(error === null);
  });
  return promise;
}
