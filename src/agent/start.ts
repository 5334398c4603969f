// Starts the agent: node half, sampler, local socket, and either the exporter half or the socket through which one in
// another process follows the snapshots (page.socket). Subscribes the parts to one another's events, and closes them in
// order.
import { mkdirSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import type { Logger } from '../common/logger.ts';
import { reviewingSetting } from '../exporter/settings.ts';
import type { EvictCall } from '../kube/eviction.ts';
import type { ReviewCall } from '../kube/token-review.ts';
import { startHttpServer } from '../serving/http-server.ts';
import { selfMetrics, serializeMetrics } from '../serving/process-metrics.ts';
import { createAdmin } from './admin-api.ts';
import type { Assignments } from './attribution/other-allocations.ts';
import type { DeviceUuids } from './attribution/resource-slices.ts';
import type { RefusedChange } from './compute/node-policy.ts';
import { type AgentConfiguration, SOCKET_NAME } from './config.ts';
import { type ActionRecord, resultText } from './enforcement/action-record.ts';
import { createTerminationMessages } from './enforcement/termination-message.ts';
import type { MissedContainer } from './kubelet/missed-containers.ts';
import type { Cluster, PodServices } from './kubelet/start.ts';
import { openNode } from './node.ts';
import type { Node } from './node-api.ts';
import { loadNative, type Native } from './os/addon.ts';
import { createDriver, type Driver } from './os/driver-handle.ts';
import { type SamplerHandle, startSampler } from './sampling/sampler-process.ts';
import { createRecorder } from './snapshot/history.ts';
import { serveSnapshots } from './snapshot/ipc/server.ts';
import type { Connections, NameOf } from './snapshot/snapshot.ts';
import { createLocalSource, type LocalSource } from './snapshot/source.ts';

type Agent = {
  /** Undefined: it listens on none. */
  readonly port: number | undefined;
  readonly socket: string;
  close(): Promise<void>;
};

/** What the agent uses of its cluster. */
export type AgentCluster = Cluster & {
  /** Names of containers without a grant. */
  readonly nameOf: NameOf;
  /** Has that pod ended? */
  readonly isOver: (namespace: string, pod: string) => boolean;
  /** GPUs of the devices of DRA drivers. */
  readonly deviceUuids: () => DeviceUuids;
  readonly review: ReviewCall;
  readonly evict: EvictCall;
  /** The API server answered the last list or watch. */
  readonly connected: () => boolean;
  readonly podGoneSinceMs: (podUid: string) => number | undefined;
  /** Write Events for pods. */
  reportActions(records: readonly ActionRecord[]): void;
  reportRefused(change: RefusedChange): void;
  reportMissing(container: MissedContainer, message: string): void;
};

type AgentInputs = {
  readonly log: Logger;
  /** Absent: the agent serves processes of one machine. */
  readonly cluster?: AgentCluster | undefined;
};

const VERSION = (
  JSON.parse(readFileSync(join(import.meta.dirname, '../../package.json'), 'utf8')) as { version: string }
).version;
const CHECK_AGE_MS = 1000;
const NO_NAMES: NameOf = () => ({ namespace: '', pod: '', podUid: '', container: '' });

/** An action that ends a restriction is no warning. */
function logAction(log: Logger, record: ActionRecord): void {
  const { action, message, namespace, pod, container, grantId } = record;
  const write = action === 'released' || action === 'open-gate' ? log.info : log.warn;
  write(`${action}: ${message} (${resultText(record)})`, { pod: `${namespace}/${pod}`, container, grant: grantId });
}

/** Does another process listen there? Two agents with one state folder would overwrite each other's files. */
async function isServed(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = connect(socket);
    probe.on('connect', () => {
      probe.destroy();
      resolve(true);
    });
    probe.on('error', () => resolve(false));
  });
}

type Publishing = { readonly port: number | undefined; close(): Promise<void> };

/** The exporter half in this process, or the socket to which one in another process connects. */
async function openPublishing(
  configuration: AgentConfiguration,
  source: LocalSource,
  rootLog: Logger,
): Promise<Publishing> {
  const { socket: path, socketUser: user } = configuration.page;
  if (path === '') {
    // Not even loaded in a process that must not serve a network.
    const { guardsOf, startExporter } = await import('../exporter/start.ts');
    const log = rootLog.component('exporter');
    return startExporter(configuration, source, await guardsOf(configuration, source.review, log), log);
  }
  const reviewing = reviewingSetting(configuration.page);
  if (reviewing !== undefined && !source.review)
    throw new Error(`page.${reviewing}: needs a cluster (kubernetes.enabled)`);
  if (await isServed(path))
    throw new Error(`${path}: another agent serves this socket; give this one another page.socket`);
  const { close } = await serveSnapshots(source, { path, user, log: rootLog.component('snapshot-socket') });
  return { port: undefined, close };
}

/** The path of the agent's socket in its state folder; rejects where another agent uses the folder. */
async function claimStateFolder({ stateFolder }: AgentConfiguration): Promise<string> {
  mkdirSync(stateFolder, { recursive: true, mode: 0o755 });
  const socket = join(stateFolder, SOCKET_NAME);
  if (await isServed(socket))
    throw new Error(`${socket}: another agent serves this folder; give this one its own stateFolder`);
  return socket;
}

/** Devices that the kubelet allocated to other containers of this node. */
async function followAllocations(
  { kubernetes }: AgentConfiguration,
  { log, cluster }: AgentInputs,
): Promise<(Assignments & { close(): Promise<void> }) | undefined> {
  if (!kubernetes.enabled || kubernetes.podResources === '') return undefined;
  const { followAssignments } = await import('./attribution/pod-resources.ts');
  return followAssignments({
    socket: kubernetes.podResources,
    isOver: cluster?.isOver ?? (() => false),
    uuids: cluster?.deviceUuids,
    log: log.component('pod-resources'),
  });
}

type NodeNeeds = {
  readonly native: Native;
  readonly driver: Driver;
  readonly assignments: Assignments | undefined;
  readonly connections: () => Connections;
};

async function createNode(configuration: AgentConfiguration, inputs: AgentInputs, needs: NodeNeeds): Promise<Node> {
  const { kubernetes } = configuration;
  const { log, cluster } = inputs;
  const servesPods = kubernetes.enabled && kubernetes.pods;
  const volumes = servesPods ? (await import('./kubelet/csi/volume.ts')).podVolumes(needs.native) : undefined;
  const node = openNode(configuration, needs.native, {
    log,
    clock: () => performance.now(),
    build: { version: VERSION, revision: process.env.COTENANT_REVISION ?? '' },
    driver: needs.driver,
    nameOf: cluster?.nameOf ?? NO_NAMES,
    assignments: needs.assignments,
    evict: cluster?.evict,
    connections: needs.connections,
    podGoneSinceMs: cluster?.podGoneSinceMs,
    volumes,
    writeReason: createTerminationMessages(kubernetes.kubeletRoot, log.component('enforcer')),
  });
  node.events.on('snapshot', ({ self }) => {
    if (self.problem !== undefined) log.component('sampler').warn(self.problem);
  });
  node.events.on('actions', (records) => {
    for (const record of records) logAction(log.component('enforcer'), record);
    cluster?.reportActions(records);
  });
  if (cluster) {
    node.events.on('change-refused', cluster.reportRefused);
    node.events.on('gpus-missing', cluster.reportMissing);
  }
  return node;
}

/** Serves pods of the cluster; undefined where the settings say that it does not. */
async function startServices(
  configuration: AgentConfiguration,
  { log, cluster }: AgentInputs,
  node: Node,
): Promise<PodServices | undefined> {
  const { enabled, pods } = configuration.kubernetes;
  if (!enabled || !pods) return undefined;
  if (!cluster) throw new Error('kubernetes.pods: there is no cluster to serve pods of');
  // Loaded only for a kubelet: gRPC is large.
  const { startPodServices } = await import('./kubelet/start.ts');
  return startPodServices(configuration, node, cluster, log);
}

type Sampled = {
  readonly node: Node;
  readonly driver: Driver;
  readonly log: Logger;
  /** Called after each change of the snapshot. */
  readonly onChange: () => void;
};

/** Samples go to the node, and its intervals to the sampler; both follow the release of the driver. */
function startSampling(configuration: AgentConfiguration, { node, driver, log, onChange }: Sampled): SamplerHandle {
  const sampler = startSampler({
    intervalMs: configuration.intervalMs,
    library: configuration.nvmlLibrary,
    silenceMs: configuration.silenceMs,
    log: log.component('sampler'),
    onSample: (sample) => {
      try {
        node.onSample(sample, sampler.abandonedCounts());
        onChange();
      } catch (error) {
        log.error(`a sample could not be processed: ${(error as Error).stack ?? String(error)}`);
      }
    },
  });
  node.events.on('interval', sampler.setInterval);
  driver.onRelease(() => {
    log.info('the driver is released on command; no container is watched or stopped until it is opened again');
    node.checkAge(sampler.abandonedCounts());
    onChange();
  });
  driver.join({
    release: sampler.release,
    reacquire() {
      log.info('the driver is opened again');
      sampler.reacquire();
    },
    openCount: () => sampler.abandonedCounts().hung,
  });
  return sampler;
}

export async function startAgent(configuration: AgentConfiguration, inputs: AgentInputs): Promise<Agent> {
  const { log } = inputs;
  const native = loadNative();
  await using opened = new AsyncDisposableStack();
  const socket = await claimStateFolder(configuration);
  const driver = createDriver();
  const assignments = await followAllocations(configuration, inputs);
  opened.defer(() => assignments?.close());
  let services: PodServices | undefined;
  const { cluster } = inputs;
  const connections = () => ({ ...(cluster && { api: cluster.connected() }), ...services?.connections() });
  const node = await createNode(configuration, inputs, { native, driver, assignments, connections });
  opened.defer(() => node.close());

  const self = selfMetrics();
  const recorder = createRecorder();
  node.events.on('snapshot', recorder.push);
  const own = () =>
    serializeMetrics(self).catch((error: unknown) => {
      log.component('exporter').warn(`the process's own metrics cannot be read: ${String(error)}`);
      return '';
    });
  const review = reviewingSetting(configuration.page) !== undefined ? inputs.cluster?.review : undefined;
  const source = createLocalSource({ snapshot: node.snapshot, history: recorder.history, own, review });
  const publishing = await openPublishing(configuration, source, log);
  opened.defer(() => publishing.close());
  const admin = await startHttpServer(createAdmin(node, driver), { listen: { socket, mode: 0o660 } });
  opened.defer(() => admin.close());

  let sampler: SamplerHandle | undefined;
  opened.defer(() => sampler?.close());
  // Before the driver is read: pods can end without a driver.
  services = await startServices(configuration, inputs, node);
  opened.defer(() => services?.close());
  // Last: where a port is taken, no sampler is left running.
  sampler = startSampling(configuration, { node, driver, log, onChange: () => services?.changed() });
  const ageing = setInterval(() => {
    node.checkAge(sampler.abandonedCounts());
    services?.changed();
  }, CHECK_AGE_MS);
  opened.defer(() => clearInterval(ageing));

  const running = opened.move();
  return { port: publishing.port, socket, close: () => running.disposeAsync() };
}
