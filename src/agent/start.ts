// The agent put together: sampler, node half, local socket, and the exporter half, or the socket on which that one is told of snapshots
// (page.socket). Owns their start, their order of ending, and what is said on standard error.
import { chmodSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import type { Logger } from '../common/logger.ts';
import { selfMetrics, serializeMetrics } from '../exporter/process-metrics.ts';
import type { EvictCall } from '../kube/eviction.ts';
import type { ReviewCall } from '../kube/token-review.ts';
import { startHttpServer } from '../serving/http-server.ts';
import { createAdmin } from './admin-api.ts';
import type { DeviceUuids } from './attribution/resource-slices.ts';
import type { RefusedChange } from './compute/node-policy.ts';
import { type AgentConfiguration, SOCKET_NAME } from './config.ts';
import { type ActionRecord, resultText } from './enforcement/action-record.ts';
import { createLastWords } from './enforcement/termination-message.ts';
import type { Cluster, PodServices } from './kubelet/start.ts';
import { openNode } from './node.ts';
import type { PassedBy } from './node-api.ts';
import { loadNative } from './os/addon.ts';
import { createDriver } from './os/driver-handle.ts';
import { startSampler } from './sampling/sampler-process.ts';
import { createRecorder } from './snapshot/history.ts';
import { serveSnapshots } from './snapshot/ipc/server.ts';
import type { NameOf, Snapshot } from './snapshot/snapshot.ts';
import { type Here, sourceHere, standingOf } from './snapshot/source.ts';

export type Agent = {
  /** Undefined: it listens on none. */
  readonly port: number | undefined;
  readonly socket: string;
  close(): Promise<void>;
};

export type AgentHooks = {
  readonly log: Logger;
  /** Names of containers without a grant; a watch of pods where there is a cluster. */
  readonly nameOf?: NameOf;
  /** Has that pod ended, by the cluster's word? */
  readonly isOver?: (namespace: string, pod: string) => boolean;
  /** Which GPUs the devices of DRA drivers are; none: they are told by their names. */
  readonly deviceUuids?: () => DeviceUuids;
  readonly onActions?: (records: readonly ActionRecord[]) => void;
  readonly onRefused?: (change: RefusedChange) => void;
  readonly onPassedBy?: (container: PassedBy, message: string) => void;
  /** Needed where the API server says who may read the page. */
  readonly review?: ReviewCall;
  /** Needed where pods that are stopped too often are evicted. */
  readonly evict?: EvictCall;
  /** Needed where pods are served. */
  readonly cluster?: Cluster;
};

export const VERSION = (
  JSON.parse(readFileSync(join(import.meta.dirname, '../../package.json'), 'utf8')) as { version: string }
).version;
const LOOK_AT_AGE_MS = 1000;
const NAMELESS: NameOf = () => ({ namespace: '', pod: '', podUid: '', container: '' });

/** With the keys of the container; what was not done as planned is a warning, as each stop is. */
function logAction(log: Logger, record: ActionRecord): void {
  const { action, message, namespace, pod, container, grantId } = record;
  const write = action === 'released' || action === 'open-gate' ? log.info : log.warn;
  write(`${action}: ${message} (${resultText(record)})`, { pod: `${namespace}/${pod}`, container, grant: grantId });
}

/** Another agent on the same state folder would fight over its files. */
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

type Publishing = {
  readonly port: number | undefined;
  publish(snapshot: Snapshot): void;
  /** To be called each second or so. */
  beat(): void;
  close(): Promise<void>;
};

/** The exporter half in this process, or what one in another process connects to; rejects where it cannot be had. */
async function openPublishing(configuration: AgentConfiguration, here: Here, hooks: AgentHooks): Promise<Publishing> {
  const { socket: path, socketUser, tokenReview } = configuration.page;
  const review = tokenReview ? hooks.review : undefined;
  const log = hooks.log.component(path === '' ? 'exporter' : 'snapshot-socket');
  if (path === '') {
    // What serves a network is not even there in a process that must not.
    const { guardOf, startExporter } = await import('../exporter/start.ts');
    const access = await guardOf(configuration, review, log.warn);
    const exporter = await startExporter(configuration, sourceHere(here), access, {
      log: log.info,
      onProblem: log.warn,
    });
    return { ...exporter, publish: (snapshot) => exporter.tell(standingOf(snapshot)), beat: () => {} };
  }
  if (tokenReview && !review) throw new Error('page.tokenReview: there is no cluster to ask');
  if (await isServed(path))
    throw new Error(`${path}: another agent serves this socket; give this one another page.socket`);
  return {
    port: undefined,
    ...(await serveSnapshots({ ...here, path, review, user: socketUser, onProblem: log.warn })),
  };
}

export async function startAgent(configuration: AgentConfiguration, hooks: AgentHooks): Promise<Agent> {
  const native = loadNative();
  mkdirSync(configuration.stateFolder, { recursive: true, mode: 0o755 });
  const socket = join(configuration.stateFolder, SOCKET_NAME);
  if (await isServed(socket))
    throw new Error(`${socket}: another agent serves this folder; give this one its own stateFolder`);
  rmSync(socket, { force: true });

  const { log } = hooks;
  const { kubernetes } = configuration;
  const { cluster } = hooks;
  const servesPods = kubernetes.enabled && kubernetes.pods;
  if (servesPods && !cluster) throw new Error('kubernetes.pods: there is no cluster to serve pods of');
  // Loaded where there is a kubelet: they bring gRPC, which is large.
  const pods = servesPods ? await import('./kubelet/start.ts') : undefined;
  const assignments =
    kubernetes.enabled && kubernetes.podResources !== ''
      ? (await import('./attribution/pod-resources.ts')).followAssignments({
          socket: kubernetes.podResources,
          isOver: hooks.isOver ?? (() => false),
          uuids: hooks.deviceUuids,
          onProblem: log.component('pod-resources').warn,
        })
      : undefined;
  const self = selfMetrics();
  const recorder = createRecorder();
  let services: PodServices | undefined;
  const driver = createDriver(() => {
    log.info('the driver is released on command; no container is watched or stopped until it is opened again');
    node.lookAtAge();
    services?.changed();
  });
  const node = openNode(configuration, native, {
    onSnapshot: (snapshot) => {
      if (snapshot.self.problem !== undefined) log.component('sampler').warn(snapshot.self.problem);
      recorder.push(snapshot);
      publishing.publish(snapshot);
    },
    onActions: (records) => {
      for (const record of records) logAction(log.component('enforcer'), record);
      hooks.onActions?.(records);
    },
    log,
    onRefused: hooks.onRefused,
    onPassedBy: hooks.onPassedBy,
    evict: hooks.evict,
    onInterval: (intervalMs) => sampler.setInterval(intervalMs),
    samplers: () => sampler.abandonedCounts(),
    driver,
    nameOf: hooks.nameOf ?? NAMELESS,
    assignments,
    volumes: pods?.volumesOf(native),
    lastWords: createLastWords(kubernetes.kubeletRoot, log.component('enforcer').warn),
    version: VERSION,
    revision: process.env.COTENANT_REVISION ?? '',
    clock: () => performance.now(),
  });

  const here: Here = {
    snapshot: node.snapshot,
    history: recorder.history,
    own: () =>
      serializeMetrics(self).catch((error: unknown) => {
        log.component('exporter').warn(`the process's own metrics cannot be read: ${String(error)}`);
        return '';
      }),
  };
  const publishing = await openPublishing(configuration, here, hooks);
  const admin = await startHttpServer(createAdmin(node, driver), { listen: { socket } }).catch(
    async (error: unknown) => {
      await publishing.close();
      throw error;
    },
  );
  chmodSync(socket, 0o660);
  // Before the driver is read: pods that end need us whether there is a driver or not.
  if (pods && cluster) {
    services = await pods.startPodServices(configuration, node, cluster, log).catch(async (error: unknown) => {
      await Promise.all([publishing.close(), admin.close()]);
      throw error;
    });
  }
  // Last: where a port is taken, nothing is left running.
  const sampler = startSampler({
    intervalMs: configuration.intervalMs,
    library: configuration.nvmlLibrary,
    silenceMs: configuration.silenceMs,
    onProblem: log.component('sampler').warn,
    onSample: (sample) => {
      try {
        node.onSample(sample);
        services?.changed();
      } catch (error) {
        log.error(`a sample could not be processed: ${(error as Error).stack ?? String(error)}`);
      }
    },
  });

  driver.join({
    release: sampler.release,
    reacquire() {
      log.info('the driver is opened again');
      sampler.reacquire();
    },
    openCount: () => sampler.abandonedCounts().hung,
  });

  const ageing = setInterval(() => {
    node.lookAtAge();
    publishing.beat();
    services?.changed();
  }, LOOK_AT_AGE_MS);

  return {
    port: publishing.port,
    socket,
    async close() {
      clearInterval(ageing);
      await Promise.all([services?.close(), assignments?.close()]);
      await sampler.close();
      await Promise.all([publishing.close(), admin.close()]);
      await node.close();
      rmSync(socket, { force: true });
    },
  };
}
