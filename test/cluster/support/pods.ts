// Pods of the tests: creates them, waits for them, reads their output and sends commands to them.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Answer, User } from '../bed/api.ts';
import { type Bed, BUSYBOX_IMAGE } from '../bed/bed.ts';
import { eventually, WAIT_MS } from '../bed/eventually.ts';
import { NODE_NAME } from '../bed/node.ts';
import { BYPASSING, CLIENT_IMAGE, NAMESPACE } from '../bed/product.ts';

export const MIB = 2 ** 20;
/** The only user that may write grants; has all rights, for clusters without our scheduler. */
export const SCHEDULER: User = {
  name: `system:serviceaccount:${NAMESPACE}:cotenant-scheduler`,
  groups: ['system:masters'],
};

export type ContainerStatus = {
  readonly name: string;
  readonly containerID?: string;
  readonly restartCount: number;
  readonly ready: boolean;
  readonly state: ContainerState;
  readonly lastState: ContainerState;
};
export type ContainerState = {
  readonly waiting?: { readonly reason?: string; readonly message?: string };
  readonly running?: { readonly startedAt: string };
  readonly terminated?: { readonly exitCode: number; readonly reason?: string; readonly message?: string };
};
export type Pod = {
  readonly metadata: {
    readonly name: string;
    readonly namespace: string;
    readonly uid: string;
    readonly resourceVersion: string;
    readonly annotations?: Readonly<Record<string, string>>;
    readonly labels?: Readonly<Record<string, string>>;
    readonly deletionTimestamp?: string;
  };
  readonly spec: {
    readonly nodeName?: string;
    readonly schedulerName?: string;
    readonly containers?: readonly { readonly name: string; readonly args?: readonly string[] }[];
    readonly initContainers?: readonly { readonly name: string }[];
  };
  readonly status?: {
    readonly phase?: string;
    readonly reason?: string;
    readonly message?: string;
    readonly startTime?: string;
    readonly qosClass?: string;
    readonly podIP?: string;
    readonly conditions?: readonly {
      readonly type: string;
      readonly status: string;
      readonly reason?: string;
      readonly message?: string;
    }[];
    readonly containerStatuses?: readonly ContainerStatus[];
    readonly initContainerStatuses?: readonly ContainerStatus[];
  };
};
export type Event = { readonly type: string; readonly reason: string; readonly message: string };

export type Amounts = Readonly<Record<string, string | number>>;

/** Resource limits for `mib` of one GPU in each dialect that the tests enable. `gpuMib`: the GPU's memory in total. */
export const ONE_SHARE = {
  own: (mib: number): Amounts => ({ 'cotenant.io/gpu-memory': `${mib}Mi` }),
  /** In GiB, unless the cluster's rules say otherwise. */
  ack: (mib: number): Amounts => ({ 'aliyun.com/gpu-mem': mib / 1024 }),
  /** In percent of the GPU. */
  metagpu: (percent: number): Amounts => ({ 'cnvrg.io/metagpu': percent }),
};

/** What the PodSecurity profile `restricted` requires of a container, and a read-only root. */
export const RESTRICTED = {
  runAsNonRoot: true,
  runAsUser: 1000,
  runAsGroup: 1000,
  allowPrivilegeEscalation: false,
  readOnlyRootFilesystem: true,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
};

/** A namespace; `level` is its enforced PodSecurity profile. */
export const namespaceOf = (name: string, level?: 'restricted' | 'baseline' | 'privileged'): object => ({
  apiVersion: 'v1',
  kind: 'Namespace',
  metadata: { name, ...(level && { labels: { 'pod-security.kubernetes.io/enforce': level } }) },
});

/** A CUDA program that runs `commands` and then waits for more, as the container's first process. */
export const clientOf = (limits: Amounts, commands: readonly string[] = [], more: object = {}): object => ({
  name: 'main',
  image: CLIENT_IMAGE,
  imagePullPolicy: 'Never',
  args: commands,
  stdin: true,
  resources: { limits },
  securityContext: RESTRICTED,
  ...more,
});

/** The same without the interposer, so that only the driver sees it. */
export const rogueOf = (limits: Amounts, commands: readonly string[], more: object = {}): object =>
  clientOf(limits, commands, { command: BYPASSING, ...more });

/** A shell that runs `script`. */
export const shellOf = (script: string, more: object = {}): object => ({
  name: 'main',
  image: BUSYBOX_IMAGE,
  imagePullPolicy: 'Never',
  command: ['/bin/sh', '-c', script],
  ...more,
});

export type PodSettings = {
  readonly namespace?: string;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly labels?: Readonly<Record<string, string>>;
  /** Merged into the pod's spec. */
  readonly spec?: object;
};

export const podOf = (name: string, containers: readonly object[], settings: PodSettings = {}): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: {
    name,
    namespace: settings.namespace ?? 'default',
    ...(settings.annotations && { annotations: settings.annotations }),
    ...(settings.labels && { labels: settings.labels }),
  },
  spec: { terminationGracePeriodSeconds: 1, restartPolicy: 'Always', containers, ...settings.spec },
});

/** Binds a pod to the node as our scheduler does, with annotations that the same write puts on the pod. */
export function bind(
  bed: Bed,
  name: string,
  namespace = 'default',
  annotations: Readonly<Record<string, string>> = {},
): Promise<Answer> {
  const binding = {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name, namespace, annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
  };
  return bed.api.ask('POST', `${podPath(name, namespace)}/binding`, binding, SCHEDULER);
}

export const podPath = (name: string, namespace = 'default'): string => `/api/v1/namespaces/${namespace}/pods/${name}`;

export const getPod = (bed: Bed, name: string, namespace?: string): Promise<Pod | undefined> =>
  bed.api.get<Pod>(podPath(name, namespace));

export const containerOf = (pod: Pod | undefined, name = 'main'): ContainerStatus | undefined =>
  [...(pod?.status?.initContainerStatuses ?? []), ...(pod?.status?.containerStatuses ?? [])].find(
    (status) => status.name === name,
  );

export type Waiting = { readonly namespace?: string };

type Node = {
  readonly metadata: { readonly name: string };
  readonly spec: { readonly taints?: readonly { readonly key: string }[] };
};

/** The taints of the nodes, which say why nothing is placed there, and what the pod's containers wait for. */
async function obstacles(bed: Bed, pod: Pod | undefined): Promise<readonly string[]> {
  const nodes = (await bed.api.get<{ items: readonly Node[] }>('/api/v1/nodes'))?.items ?? [];
  const tainted = nodes.flatMap(
    ({ metadata, spec }) => spec.taints?.map(({ key }) => `${metadata.name}: ${key}`) ?? [],
  );
  const waiting = [...(pod?.status?.initContainerStatuses ?? []), ...(pod?.status?.containerStatuses ?? [])].flatMap(
    ({ name, state }) => (state.waiting === undefined ? [] : [`${name}: ${state.waiting.reason}`]),
  );
  return [...tainted, ...waiting];
}

/** Waits until the pod is as `good` says; fails with what keeps it, its last state and Events. */
export async function untilPod(
  bed: Bed,
  name: string,
  what: string,
  good: (pod: Pod) => boolean,
  { namespace = 'default' }: Waiting = {},
  ms = WAIT_MS,
): Promise<Pod> {
  let last: Pod | undefined;
  const look = async () => {
    last = await getPod(bed, name, namespace);
    return last !== undefined && good(last) ? last : undefined;
  };
  return await eventually(look, `pod ${namespace}/${name} ${what}`, ms).catch(async (error: unknown) => {
    const events = (await eventsOf(bed, name, namespace)).map(({ reason, message }) => `${reason}: ${message}`);
    const lines = [(error as Error).message, ...(await obstacles(bed, last)), JSON.stringify(last?.status), ...events];
    throw new Error(lines.join('\n'));
  });
}

export const untilPhase = (bed: Bed, name: string, phase: string, waiting?: Waiting): Promise<Pod> =>
  untilPod(bed, name, `is ${phase}`, (pod) => pod.status?.phase === phase, waiting);

/** Waits until the pod and its containers run. */
export const untilRunning = (bed: Bed, name: string, waiting?: Waiting): Promise<Pod> =>
  untilPod(
    bed,
    name,
    'runs',
    ({ status }) =>
      status?.phase === 'Running' && (status.containerStatuses ?? []).every(({ state }) => state.running !== undefined),
    waiting,
  );

export async function untilGone(bed: Bed, name: string, { namespace }: Waiting = {}): Promise<void> {
  const gone = async () => ((await getPod(bed, name, namespace)) === undefined ? true : undefined);
  await eventually(gone, `pod ${name} is gone`);
}

/** Events about a pod, oldest first. */
export async function eventsOf(bed: Bed, name: string, namespace = 'default'): Promise<readonly Event[]> {
  const query = `fieldSelector=${encodeURIComponent(`involvedObject.kind=Pod,involvedObject.name=${name}`)}`;
  const list = await bed.api.get<{ items: Event[] }>(`/api/v1/namespaces/${namespace}/events?${query}`);
  return list?.items ?? [];
}

const ENDED = 'ended';

/** Output of a container over all its runs; read on the node, which is cheap. */
export function outputOf(bed: Bed, { metadata }: Pod, container = 'main'): readonly string[] {
  const { namespace, name, uid } = metadata;
  const folder = join(bed.folder, 'host', '_var_log_pods', `${namespace}_${name}_${uid}`, container);
  const files = unlessGone(() => readdirSync(folder), []).toSorted(
    (a, b) => Number.parseInt(a, 10) - Number.parseInt(b, 10),
  );
  // A line of the runtime's log: time, stream, F for a whole line, text.
  return files.flatMap((file) =>
    unlessGone(() => readFileSync(join(folder, file), 'utf8'), '')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => line.split(' ').slice(3).join(' ')),
  );
}

/** Reads a log; logs of a pod that ends may vanish meanwhile. */
function unlessGone<T>(read: () => T, gone: T): T {
  try {
    return read();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return gone;
    throw error;
  }
}

/** The client's answers so far, each with the driver's result first. */
export const answersOf = (bed: Bed, pod: Pod, container?: string): readonly (readonly number[])[] =>
  outputOf(bed, pod, container).map((line) => line.split(' ').map(Number));

export type Attached = {
  /** The driver's result code, then the returned values. */
  ask(command: string): Promise<readonly number[]>;
  /** Throws unless the result is success; returns the first value. */
  must(command: string): Promise<number>;
  /** Detaches; the client keeps running. */
  leave(): Promise<void>;
};

/**
 * Attaches to a running client. Answers are read from the container's log: what it prints before the runtime has attached
 * its output, which may be after its input, is in no stream. `output`: all lines of that log so far.
 */
export function attach(
  bed: Bed,
  name: string,
  namespace = 'default',
  container = 'main',
  output: (pod: Pod, container: string) => readonly string[] | Promise<readonly string[]> = (pod) =>
    outputOf(bed, pod, container),
): Attached {
  const pod = bed.get<Pod>('pod', name, namespace);
  if (!pod) throw new Error(`there is no pod ${namespace}/${name}`);
  const child = bed.talk('attach', '--quiet', '-i', '-n', namespace, name, '-c', container);
  child.stdout.resume();
  /** Commands of its arguments, each with a line of output. */
  const first = pod.spec.containers?.find((one) => one.name === container)?.args?.length ?? 0;
  const ask = async (command: string): Promise<readonly number[]> => {
    const before = await eventually(async () => {
      const { length } = await output(pod, container);
      return length >= first && { length };
    }, `${namespace}/${name} has carried out its arguments`);
    child.stdin.write(`${command}\n`);
    const answered = async () => {
      const answer = (await output(pod, container))[before.length];
      return answer ?? (child.exitCode === null && child.signalCode === null ? undefined : ENDED);
    };
    const answer = await eventually(answered, `${namespace}/${name} answers: ${command}`);
    if (answer === ENDED) throw new Error(`${namespace}/${name} ended at: ${command}`);
    return answer.split(' ').map(Number);
  };
  return {
    ask,
    async must(command) {
      const [result, value = 0] = await ask(command);
      if (result !== 0) throw new Error(`${namespace}/${name}: ${command}: the driver answered ${result}`);
      return value;
    },
    async leave() {
      if (child.exitCode !== null || child.signalCode !== null) return; // with what it talked to
      const over = new Promise((resolve) => child.once('exit', resolve));
      child.kill();
      await over;
    },
  };
}
