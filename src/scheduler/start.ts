// The extender put together: leadership, the ledger that follows the cluster, decisions, bindings, evictions, and the two servers.
import type { KubeConfig } from '@kubernetes/client-node';
import type { Placement } from '../api/request.ts';
import { createLedger } from '../placement/allocations.ts';
import { createHealthHandler, type HttpServer, startHttpServer } from '../serving/http-server.ts';
import { type CertificateFiles, fromFiles } from '../serving/tls-files.ts';
import { type Binder, type BinderTimes, createBinder } from './bind.ts';
import { followCluster } from './cluster-state.ts';
import { createDecider } from './filter-and-score.ts';
import { followLease, keepLease, type LeaseName } from './leader-election.ts';
import { createMetrics } from './metrics.ts';
import { type Evictor, startEvictor } from './overcommit-evictor.ts';
import { createExtender, type ExtenderParts } from './server.ts';

export type SchedulerOptions = {
  readonly config: KubeConfig;
  /** Where kube-scheduler calls. Anything but loopback needs `tls`. */
  readonly host: string;
  readonly port: number;
  readonly tls?: Required<CertificateFiles>;
  /** Probes and metrics, on all addresses, plain; absent: nowhere. */
  readonly healthPort?: number;
  readonly lease: LeaseName;
  /** Who keeps the Lease: the kube-scheduler in the same pod, or this process for one elsewhere. */
  readonly leaseHolder: 'sidecar' | 'self';
  /** Of the pod, with which the holder of the Lease begins. */
  readonly hostname: string;
  /** For pods that choose none. */
  readonly placement: Placement;
  /** For how long a GPU must be overbooked until pods are evicted from it. */
  readonly overbookedAfterMs: number;
  /** Other than the usual ones, for tests. */
  readonly binderTimes?: BinderTimes;
  readonly log: (line: string) => void;
};

export type Scheduler = {
  readonly port: number;
  readonly healthPort: number | undefined;
  close(): Promise<void>;
};

const STOPPING = 'stopping';
const GRACE_MS = 5_000;

export async function startScheduler(options: SchedulerOptions): Promise<Scheduler> {
  const { config, lease, log } = options;
  const ledger = createLedger();
  const decider = createDecider(ledger, options.placement);
  const problem = (of: 'nodes' | 'pods' | 'lease') => (text: string) => {
    metrics.problem(of);
    log(text);
  };
  const keep = options.leaseHolder === 'self' ? keepLease : followLease;
  const leadership = keep(config, lease, options.hostname, (text) => problem('lease')(text));
  const cluster = followCluster(config, ledger, {
    onProblem: (of, text) =>
      problem(of)(`the ${of} of the cluster cannot be followed, and are asked for again: ${text}`),
    isUnderWay: (podUid, listedMs) => binder.isUnderWay(podUid, listedMs),
    settle: (podUid) => binder.settle(podUid),
    onUnreadable: log,
  });
  const binder: Binder = createBinder({
    ...{ config, ledger, decider, leadership, log },
    relist: cluster.relistPods,
    ...(options.binderTimes && { times: options.binderTimes }),
  });
  const metrics = createMetrics({
    epoch: () => {
      const state = leadership.state();
      return state.leads ? state.epoch : undefined;
    },
    nodes: () => ledger.nodes,
    grantedPods: () => [...ledger.bookings()].length,
    underWay: () => binder.underWay,
    overbookedGpus: () => evictor?.overbookedGpus ?? 0,
    unreadable: (of) => cluster.unreadable[of],
  });
  let missing: string | undefined = 'nodes and pods of the cluster have not been read yet';
  let evictor: Evictor | undefined;
  void cluster.ready.then(() => {
    if (missing === STOPPING) return;
    missing = undefined;
    evictor = startEvictor({
      ...{ config, ledger, leadership, log },
      boundPods: cluster.boundPods,
      afterMs: options.overbookedAfterMs,
      hostname: options.hostname,
      onDisplaced: metrics.displaced,
    });
    log('nodes and bound pods are known');
  });
  /** Calls that come through a Service must reach the one that leads, so only that one is ready. */
  const notLeading = () => {
    const state = leadership.state();
    return state.leads ? undefined : state.because;
  };
  const parts: ExtenderParts = { decider, binder, metrics, notReadyReason: () => missing, log };
  let extender: HttpServer | undefined;
  let health: HttpServer | undefined;
  const close = async () => {
    missing = STOPPING;
    await Promise.all([extender?.close(GRACE_MS), evictor?.close()]);
    binder.close();
    await Promise.all([leadership.close(), cluster.close()]);
    await health?.close();
  };
  try {
    const { host, port, tls, healthPort } = options;
    const logger = { info: log, warn: log };
    extender = await startHttpServer(createExtender(parts), {
      listen: { host, port },
      tls: tls && { source: fromFiles(tls), minVersion: 'TLSv1.3', logger },
      requestMs: 30_000,
    });
    const notReadyReason = () => missing ?? (options.leaseHolder === 'self' ? notLeading() : undefined);
    const probes = createHealthHandler({ notReadyReason, metrics });
    if (healthPort !== undefined) health = await startHttpServer(probes, { listen: { port: healthPort } });
    return { port: extender.port, healthPort: health?.port, close };
  } catch (error) {
    // One that nobody can call must not keep the Lease.
    await close();
    throw error;
  }
}
