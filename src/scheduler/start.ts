// Starts the scheduler extender: leader election, allocations kept by watches, decisions, bindings, evictions, and two
// servers.
import type { Placement } from '../api/request.ts';
import type { Logger } from '../common/logger.ts';
import type { ApiConfig } from '../kube/config.ts';
import { createEventWriter } from '../kube/events.ts';
import { createEvictCall } from '../kube/eviction.ts';
import { createAllocations } from '../placement/allocations.ts';
import { createHealthHandler, type HttpServer, startHttpServer } from '../serving/http-server.ts';
import { type CertificateFiles, fromFiles } from '../serving/tls-files.ts';
import { watchCluster } from './allocations/cluster-state.ts';
import { createFreeCores } from './allocations/free-cores.ts';
import { createInFlightBindings } from './allocations/in-flight.ts';
import { type BinderTimes, createBinder } from './bind.ts';
import { createDecider } from './decisions/filter-and-score.ts';
import { fitPods, type WantedPods } from './decisions/fits.ts';
import { createDecideInLag } from './decisions/watch-lag.ts';
import { watchDisruptionBudgets } from './evictions/disruption-budgets.ts';
import { createRoomMaker } from './evictions/make-room.ts';
import { createNominations, watchNominations } from './evictions/nominations.ts';
import { createOvercommitEvictor } from './evictions/overcommit-evictor.ts';
import { createPreemptionPlanner } from './evictions/preemption.ts';
import { createGangs } from './groups/gangs.ts';
import { createPodGroups, unboundPodsOf } from './groups/pod-groups.ts';
import { followLease, holdLease, type LeaseName } from './leadership/leader-election.ts';
import { createMetrics, type SchedulerMetrics } from './metrics.ts';
import { createResizer } from './resizer.ts';
import { createExtender } from './server.ts';

export type SchedulerOptions = {
  readonly config: ApiConfig;
  /** Where kube-scheduler calls. Anything but loopback needs `tls`. */
  readonly host: string;
  readonly port: number;
  readonly tls?: Required<CertificateFiles>;
  /** Probes and metrics, on all addresses, plain HTTP; absent: not served. */
  readonly healthPort?: number;
  readonly lease: LeaseName;
  /** Which process holds the Lease: the kube-scheduler in the same pod, or this one for a kube-scheduler elsewhere. */
  readonly leaseHolder: 'sidecar' | 'self';
  /** Of the pod: the Lease's holder identity begins with it. */
  readonly hostname: string;
  /** For pods that choose none. */
  readonly placement: Placement;
  /** How many of the nodes that can take a pod kube-scheduler gets, the best ones; all when it tries the pod again. */
  readonly mostNodes: number;
  /** How long a GPU must be overcommitted before pods are evicted from it. */
  readonly evictOvercommittedAfterMs: number;
  /** For tests. */
  readonly binderTimes?: BinderTimes;
  readonly logger: Logger;
};

type Scheduler = {
  readonly port: number;
  readonly healthPort: number | undefined;
  close(): Promise<void>;
};

const STOPPING = 'stopping';
const GRACE_MS = 5_000;

export async function startScheduler(options: SchedulerOptions): Promise<Scheduler> {
  const { logger } = options;
  const metrics = createMetrics();
  const parts = createParts(options, metrics);
  const { leadership, cluster, evictor, resizer, closeWatches, ...deciding } = parts;
  let missing: string | undefined = 'nodes and pods were not listed yet';
  void cluster.ready.then(() => {
    if (missing === STOPPING) return;
    missing = undefined;
    evictor.start();
    resizer.start();
    logger.info('nodes and bound pods were listed');
  });
  /** A Service must lead to the replica that binds, so only that one is ready. */
  const notLeadingReason = () => {
    const state = leadership.state();
    return state.leads || options.leaseHolder === 'sidecar' ? undefined : state.because;
  };
  let extender: HttpServer | undefined;
  let health: HttpServer | undefined;
  const close = async () => {
    missing = STOPPING;
    await Promise.all([extender?.close(GRACE_MS), evictor.close(), resizer.close()]);
    deciding.binder.close();
    await Promise.all([leadership.close(), cluster.close(), closeWatches()]);
    await health?.close();
  };
  try {
    const { host, port, tls, healthPort } = options;
    extender = await startHttpServer(createExtender({ ...deciding, metrics, notReadyReason: () => missing, logger }), {
      listen: { host, port },
      tls: tls && { source: fromFiles(tls), minVersion: 'TLSv1.3', logger },
      requestMs: 30_000,
    });
    const probes = createHealthHandler({ notReadyReason: () => missing ?? notLeadingReason(), metrics });
    if (healthPort !== undefined) health = await startHttpServer(probes, { listen: { port: healthPort } });
    return { port: extender.port, healthPort: health?.port, close };
  } catch (error) {
    // A replica that cannot be called must not hold the Lease.
    await close();
    throw error;
  }
}

/** What decides, binds, evicts and resizes, over one set of allocations. Evictor and resizer are not started yet. */
export function createParts(options: SchedulerOptions, metrics: SchedulerMetrics) {
  const { config, lease, hostname, logger, binderTimes, placement } = options;
  const allocations = createAllocations();
  const inFlight = createInFlightBindings();
  const decider = createDecider(allocations, placement);
  const countFits = (wanted: WantedPods) => fitPods([wanted], allocations, placement)[0];
  const elect = options.leaseHolder === 'self' ? holdLease : followLease;
  const leadership = elect(config, lease, hostname, (text) => {
    metrics.watchProblem('lease');
    logger.warn(text);
  });
  const onWatchProblem = (kind: 'nodes' | 'pods' | 'budgets', text: string) => {
    metrics.watchProblem(kind);
    logger.warn(`the watch of ${kind} failed and is retried: ${text}`);
  };
  const freeCores = placement === 'fragmentation' ? createFreeCores(allocations.setFreeCores) : undefined;
  // A pod has its own name, unless it is in the host's network; the Lease is beside it.
  const ownPod = { namespace: lease.namespace, name: hostname };
  const watched = { config, allocations, inFlight, onWatchProblem, logger, ownPod, ...(freeCores && { freeCores }) };
  const cluster = watchCluster(watched);
  const { boundPods, relistPods: relist, catchUp, resizeRequests } = cluster;
  const { budgets, close: closeBudgets } = watchDisruptionBudgets(config, (text) => onWatchProblem('budgets', text));
  const planner = createPreemptionPlanner({ allocations, boundPods, budgets, defaultPlacement: placement });
  const roomMaker = createRoomMaker({
    ...{ allocations, inFlight, planner, boundPods, hostname, logger },
    evict: createEvictCall(config),
    writeEvent: createEventWriter(config, logger.warn),
  });
  const nominations = createNominations({ allocations, decider, planner, roomMaker });
  const nominated = watchNominations(config, nominations, (text) => onWatchProblem('pods', text));
  const podGroups = createPodGroups(config);
  const gangs = createGangs({ allocations, inFlight, decider, unboundPods: unboundPodsOf(config, logger) });
  const binder = createBinder({
    ...{ config, allocations, inFlight, decider, leadership, roomMaker, podGroups, gangs, nominations, logger },
    ...{ relist, catchUp },
    ...(binderTimes && { times: binderTimes }),
  });
  const writing = { config, allocations, leadership, hostname, logger };
  const afterMs = options.evictOvercommittedAfterMs;
  const evictor = createOvercommitEvictor({ ...writing, boundPods, afterMs, onEviction: metrics.eviction });
  const resizer = createResizer({ ...writing, resizeRequests, onResize: metrics.memoryChange });
  metrics.addState({
    epoch: () => {
      const state = leadership.state();
      return state.leads ? state.epoch : undefined;
    },
    nodes: () => allocations.nodes,
    grantedPods: () => allocations.pods,
    bindingsInFlight: () => inFlight.count,
    overcommittedGpus: () => evictor.overcommittedGpus,
    invalid: () => cluster.invalid,
  });
  const closeWatches = () => Promise.all([closeBudgets(), nominated.close()]);
  return {
    ...{ decider, countFits, binder, planner, roomMaker, podGroups, gangs, nominations },
    ...{ decideInLag: createDecideInLag(allocations), mostNodes: options.mostNodes },
    ...{ leadership, cluster, evictor, resizer, closeWatches },
  };
}
