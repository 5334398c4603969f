// The NRI plugin of the agent: gives each container with a grant exactly its GPUs when it is created, by CDI names, and
// learns the ids of containers before anything in them runs. The runtime waits 2 s for an answer and then continues
// without the plugin, so nothing here blocks; containers created meanwhile are listed with the next connection.
// Reconnects after a restart of the runtime.

import { connect, type Socket } from 'node:net';
import { GIVEN_ANNOTATION, NRI_PLUGIN } from '../../../api/names.ts';
import type { Logger } from '../../../common/logger.ts';
import { terminationLogBehind } from '../../enforcement/termination-message.ts';
import { refusalOf } from '../cdi/split-spec.ts';
import {
  adjustment,
  answer,
  call,
  decode,
  type Kinds,
  nothing,
  RUNTIME_SERVICE,
  type RuntimeContainer,
  type RuntimePod,
  refuse,
  registration,
  subscription,
  synchronized,
} from './messages.ts';
import {
  createFrameReader,
  framesOf,
  type Message,
  PLUGIN_CONNECTION,
  REQUEST,
  RESPONSE,
  RUNTIME_CONNECTION,
} from './ttrpc.ts';

export type NriContainer = {
  readonly containerId: string;
  readonly podUid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Name of the kubelet's file that the container sees at its terminationMessagePath. */
  readonly terminationLog?: string;
};

export type NriOptions = {
  readonly socket?: string;
  /** Two digits: the runtime calls plugins in this order. */
  readonly index?: string;
  /** Of the names under which the node's CDI specs list its GPUs: `kind=UUID`. */
  readonly cdiKind?: string;
  /** UUIDs of a granted container's GPUs; undefined: it has no grant. Must answer at once. */
  readonly gpusOf: (podUid: string, container: string) => readonly string[] | undefined;
  /** CDI devices for these GPUs in a container of this environment; at once, too. Without it: each GPU by `cdiKind`. */
  readonly devicesFor?: (gpus: readonly string[], env: readonly string[]) => readonly string[];
  /** Called once for each container: for existing ones at the start, for new ones before they run. */
  readonly onContainer: (container: NriContainer) => void;
  /** With each connection, of a container that is there and was made without a GPU, by all that the runtime shows; also
   * without a grant. */
  readonly onMissed?: (container: NriContainer) => void;
  /** Likewise for each pod's sandbox, in whose group a sandboxed runtime keeps the processes of all its containers. */
  readonly onSandbox?: (sandboxId: string, podUid: string) => void;
  /** A container, or a sandbox. */
  readonly onRemoved: (containerId: string) => void;
  /** For tests: how long the runtime may take to answer a connection. */
  readonly answerMs?: number;
  readonly log: Logger;
};

type Nri = {
  /** Is the runtime connected, so that it calls the plugin for new containers? */
  readonly connected: () => boolean;
  close(): void;
};

export const NRI_SOCKET = '/var/run/nri/nri.sock';
export const CDI_KIND = 'nvidia.com/gpu';
export const DEFAULT_INDEX = '10';
const EVENT = {
  runPodSandbox: 1,
  removePodSandbox: 3,
  createContainer: 4,
  postCreateContainer: 5,
  startContainer: 6,
  removeContainer: 11,
};
/** Runtimes report these events by a call of their own, others by StateChange. */
const EVENT_OF_METHOD: ReadonlyMap<string, number> = new Map([
  ['RunPodSandbox', EVENT.runPodSandbox],
  ['RemovePodSandbox', EVENT.removePodSandbox],
  ['PostCreateContainer', EVENT.postCreateContainer],
  ['StartContainer', EVENT.startContainer],
  ['RemoveContainer', EVENT.removeContainer],
]);
/** NRI's numbers of container states that need GPUs: created, paused, running. */
const LIVING: readonly number[] = [1, 2, 3];
/** Codes of gRPC. The runtime does not create a container for which a plugin returns one; the pod's Events have the
 * text. */
const FAILED_PRECONDITION = 9;
const UNIMPLEMENTED = 12;
/** An error instead of an answer. */
type Refused = { readonly code: number; readonly message: string };
const SHORTEST_RETRY_MS = 100;
/** Containers that start meanwhile get no GPUs. */
const LONGEST_RETRY_MS = 1000;
const ANSWER_MS = 5000;

export function containerOf(pod: RuntimePod, container: RuntimeContainer): NriContainer {
  // By the source of the mount: the tenant chooses the destination, and may have mounted something else there.
  const [terminationLog] = container.mounts.flatMap(
    ({ source }) => terminationLogBehind(source, pod.uid, container.name) ?? [],
  );
  return {
    containerId: container.id,
    podUid: pod.uid,
    namespace: pod.namespace,
    pod: pod.name,
    container: container.name,
    ...(terminationLog === undefined ? {} : { terminationLog }),
  };
}

const GPU_NODE = /^\/dev\/nvidia\d+$/;

/** What we noted on it is in the runtime's own record, so it outlives the runtime and us. An agent that noted nothing
 * gave GPUs, too. */
const hasGpus = ({ annotations, linux }: RuntimeContainer): boolean =>
  GIVEN_ANNOTATION in annotations || (linux?.devices.some(({ path }) => GPU_NODE.test(path)) ?? false);

/** The containers and sandboxes that there are. */
function createInventory(options: NriOptions) {
  const known = new Set<string>();
  const learnSandbox = (pod: RuntimePod | undefined | null) => {
    if (!pod || pod.id === '' || known.has(pod.id)) return;
    known.add(pod.id);
    options.onSandbox?.(pod.id, pod.uid);
  };
  const learn = (pod: RuntimePod | undefined | null, container: RuntimeContainer | null) => {
    learnSandbox(pod);
    if (!pod || !container || container.id === '' || known.has(container.id)) return;
    known.add(container.id);
    options.onContainer(containerOf(pod, container));
  };
  const forget = (id: string) => {
    if (known.delete(id)) options.onRemoved(id);
  };
  const onEvent = (event: number, pod: RuntimePod | null, container: RuntimeContainer | null) => {
    if (event === EVENT.removeContainer) forget(container?.id ?? '');
    else if (event === EVENT.removePodSandbox) forget(pod?.id ?? '');
    else if (event === EVENT.runPodSandbox) learnSandbox(pod);
    else learn(pod, container);
  };
  return { known, learnSandbox, learn, forget, onEvent };
}

/** Answers the runtime's calls. */
function createCalls(options: NriOptions) {
  const { cdiKind = CDI_KIND, devicesFor = (gpus: readonly string[]) => gpus.map((uuid) => `${cdiKind}=${uuid}`) } =
    options;
  const { known, learnSandbox, learn, forget, onEvent } = createInventory(options);

  const synchronize = (payload: Buffer, present: Set<string>, podsSeen: Map<string, RuntimePod>): boolean => {
    const { pods, containers, more } = readable('SynchronizeRequest', payload);
    for (const pod of pods) {
      podsSeen.set(pod.id, pod);
      present.add(pod.id);
      learnSandbox(pod);
    }
    for (const container of containers) {
      present.add(container.id);
      const pod = podsSeen.get(container.pod_sandbox_id);
      learn(pod, container);
      if (pod && LIVING.includes(container.state) && !hasGpus(container))
        options.onMissed?.(containerOf(pod, container));
    }
    if (!more) {
      for (const id of known) if (!present.has(id)) forget(id);
      podsSeen.clear();
      present.clear();
    }
    return more;
  };
  const createContainer = (payload: Buffer): Buffer | Refused => {
    const { pod, container } = readable('ContainerRequest', payload);
    learn(pod, container);
    const gpus = pod && container ? (options.gpusOf(pod.uid, container.name) ?? []) : [];
    const env = container?.env ?? [];
    const devices = gpus.length === 0 ? [] : devicesFor(gpus, env);
    // Runtimes pass over a plugin that removes a variable of the container's own, or replaces it (containerd up to 2.3).
    const refusal = refusalOf(devices, env);
    if (refusal !== undefined) {
      const message = `${pod?.namespace}/${pod?.name}/${container?.name} is not made: ${refusal}`;
      options.log.warn(message);
      return { code: FAILED_PRECONDITION, message: `${NRI_PLUGIN}: ${message}` };
    }
    return adjustment(devices, { [GIVEN_ANNOTATION]: gpus.join(',') });
  };

  /**
   * For one connection: the payload of the answer, or a refusal; undefined: there is no such method. Throws where the
   * bytes are not such a request. `onSynchronized`: all that is there is known.
   */
  return (onSynchronized: () => void) => {
    const present = new Set<string>();
    const podsSeen = new Map<string, RuntimePod>();
    return (method: string, payload: Buffer): Buffer | Refused | undefined => {
      const event = EVENT_OF_METHOD.get(method);
      if (event !== undefined) {
        const { pod, container } = readable('ContainerRequest', payload);
        onEvent(event, pod, container);
        return nothing();
      }
      switch (method) {
        case 'Configure':
          return subscription(Object.values(EVENT));
        case 'Synchronize': {
          const more = synchronize(payload, present, podsSeen);
          if (!more) onSynchronized();
          return synchronized(more);
        }
        case 'CreateContainer':
          return createContainer(payload);
        case 'StateChange': {
          const { event: kind, pod, container } = readable('StateChangeEvent', payload);
          onEvent(kind, pod, container);
          return nothing();
        }
        case 'Shutdown':
          return nothing();
        default:
          return undefined;
      }
    };
  };
}

export function startNri(options: NriOptions): Nri {
  const { socket: path = NRI_SOCKET, index = DEFAULT_INDEX, answerMs = ANSWER_MS } = options;
  const callsOf = createCalls(options);
  let trunk: Socket | undefined;
  let retry: NodeJS.Timeout | undefined;
  let retryMs = SHORTEST_RETRY_MS;
  let inSync = false;
  let closing = false;

  const begin = () => {
    const current = connect(path);
    trunk = current;
    const reader = createFrameReader();
    const send = (message: Message) => {
      current.write(framesOf(message));
    };
    const end = (why: string) => {
      clearTimeout(silence);
      if (trunk !== current) return;
      trunk = undefined;
      inSync = false;
      current.destroy();
      if (closing) return;
      options.log.warn(`${why}; containers that start meanwhile get no GPUs`);
      retry = setTimeout(begin, retryMs);
      retryMs = Math.min(2 * retryMs, LONGEST_RETRY_MS);
    };
    const handle = callsOf(() => {
      clearTimeout(silence);
      inSync = true;
      retryMs = SHORTEST_RETRY_MS;
    });
    let silence = setTimeout(() => end(`${path} did not answer for ${answerMs} ms`), answerMs);
    // From here on the runtime waits until it has finished what it does to containers, such as a stop with its grace
    // period (nri/pkg/adaptation: requestPluginSync), and begins nothing else. Another connection would wait behind this.
    const onConfigured = () => {
      clearTimeout(silence);
      const text = `${path}: the runtime first finishes what it does to containers; those that it is making get no GPUs`;
      silence = setTimeout(() => {
        if (trunk === current) options.log.warn(text);
      }, answerMs);
    };

    const take = ({ connection, stream, type, payload }: Message) => {
      if (connection === RUNTIME_CONNECTION && type === RESPONSE) {
        const { status } = readable('TtrpcResponse', payload);
        if (status && status.code !== 0) throw new Error(`the runtime refuses the plugin: ${status.message}`);
        return;
      }
      if (connection !== PLUGIN_CONNECTION || type !== REQUEST) throw new Error(`a message of type ${type}`);
      const { method, payload: asked } = readable('TtrpcRequest', payload);
      if (method === 'Configure') onConfigured();
      const result = handle(method, asked) ?? { code: UNIMPLEMENTED, message: `no method ${method}` };
      const reply = Buffer.isBuffer(result) ? answer(result) : refuse(result.code, result.message);
      send({ connection, stream, type: RESPONSE, payload: reply });
    };

    current.on('connect', () => {
      const payload = call(RUNTIME_SERVICE, 'RegisterPlugin', registration(NRI_PLUGIN, index));
      send({ connection: RUNTIME_CONNECTION, stream: 1, type: REQUEST, payload });
    });
    current.on('data', (piece: Buffer) => {
      const { messages, wrong } = reader.push(piece);
      try {
        for (const message of messages) if (trunk === current) take(message);
      } catch (error) {
        return end(`${path} sent an unusable message: ${(error as Error).message}`);
      }
      if (wrong !== undefined) end(`${path} sent ${wrong}`);
    });
    current.on('error', (error) => end(`${path}: ${error.message}`));
    current.on('close', () => end(`${path}: the runtime closed the connection`));
  };

  begin();
  return {
    connected: () => inSync,
    close() {
      closing = true;
      clearTimeout(retry);
      const last = trunk;
      trunk = undefined;
      inSync = false;
      last?.destroy();
    },
  };
}

function readable<K extends keyof Kinds>(kind: K, bytes: Buffer): Kinds[K] {
  const value = decode(kind, bytes);
  if (value === undefined) throw new Error(`not a valid ${kind}`);
  return value;
}
