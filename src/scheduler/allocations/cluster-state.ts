// Keeps the allocations as the cluster has them: watches nodes for their GPUs and bound pods for their grants. Of pods
// it keeps besides what the evictor must know, and nothing else of either.
import type { V1Node, V1Pod } from '@kubernetes/client-node';
import { GPUS_ANNOTATION, GRANT_ANNOTATION, WATCH_MARK_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import type { Placement } from '../../api/request.ts';
import { shortDigest } from '../../common/digest.ts';
import type { Logger } from '../../common/logger.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { listAndWatch } from '../../kube/list-watch.ts';
import type { Allocations } from '../../placement/allocations.ts';
import { placementIn } from '../../placement/node.ts';
import { coresIn, coresOf } from '../decisions/pod-aspects.ts';
import { BOUND_POD_FIELDS, type BoundPod, type BoundPodFacts, type ResizeRequest, readBoundPod } from './bound-pod.ts';
import { type CatchUpOptions, createCatchUp } from './catch-up.ts';
import type { FreeCores } from './free-cores.ts';
import type { InFlightBindings } from './in-flight.ts';

type ClusterParts = {
  readonly config: ApiConfig;
  /** Written here. */
  readonly allocations: Allocations;
  /** Settled here. */
  readonly inFlight: InFlightBindings;
  /** Written here; absent: CPU is not counted. */
  readonly freeCores?: FreeCores;
  readonly onWatchProblem: (kind: 'nodes' | 'pods', text: string) => void;
  readonly logger: Logger;
  /** This replica's pod; absent: it runs in none. */
  readonly ownPod?: CatchUpOptions['ownPod'];
};

type Cluster = {
  /** Resolves when nodes and pods were listed once. */
  readonly ready: Promise<void>;
  relistPods(): Promise<void>;
  /** Resolves when all that was written on bound pods before the call is known. */
  catchUp(): Promise<void>;
  /** Those with a valid grant, by UID. */
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  /** Bound pods whose memory an operator changed, by UID. */
  readonly resizeRequests: ReadonlyMap<string, ResizeRequest>;
  /** How many bound pods have an invalid grant, and how many nodes an invalid annotation. */
  readonly invalid: { readonly pods: number; readonly nodes: number };
  close(): Promise<void>;
};

type ClosableWatch = { readonly ready: Promise<void>; close(): Promise<void> };

export function watchCluster(parts: ClusterParts): Cluster {
  const nodes = watchNodes(parts);
  const pods = watchBoundPods(parts);
  return {
    ready: Promise.all([nodes.ready, pods.ready]).then(() => undefined),
    relistPods: pods.relist,
    catchUp: pods.catchUp,
    boundPods: pods.boundPods,
    resizeRequests: pods.resizeRequests,
    invalid: {
      get pods() {
        return pods.invalid.size;
      },
      get nodes() {
        return nodes.invalid.size;
      },
    },
    async close() {
      await Promise.all([nodes.close(), pods.close()]);
    },
  };
}

type WatchedNode = {
  readonly name: string;
  readonly text: string | undefined;
  readonly placement: Placement | undefined;
  readonly cores: number;
};

/** Nodes are written all the time, their GPUs hardly ever: only another text of the annotation is read again. */
function watchNodes(parts: ClusterParts): ClosableWatch & { readonly invalid: ReadonlyMap<string, string> } {
  const { config, allocations, freeCores, onWatchProblem, logger } = parts;
  /** Of the annotation, with the node's placement before it. */
  const digests = new Map<string, string>();
  const invalid = new Map<string, string>();
  const forget = (name: string) => {
    allocations.removeNode(name);
    freeCores?.removeNode(name);
    digests.delete(name);
    invalid.delete(name);
  };
  const update = ({ name, text, placement, cores }: WatchedNode) => {
    if (text === undefined) return forget(name);
    freeCores?.setNode(name, cores);
    const digest = shortDigest(`${placement ?? ''}${text}`);
    if (digests.get(name) === digest) return;
    const gpus = parseNodeGpus(text);
    if (!gpus.ok) {
      forget(name);
      invalid.set(name, gpus.error);
      logger.warn(`annotation ${GPUS_ANNOTATION} of the node is invalid: ${gpus.error}`, { node: name });
    } else {
      invalid.delete(name);
      allocations.setNode(name, { ...gpus.value, ...(placement && { placement }) });
    }
    digests.set(name, digest);
  };
  const watch = listAndWatch(config, {
    path: '/api/v1/nodes',
    keep: ({ metadata, status }: V1Node): WatchedNode => ({
      name: metadata?.name ?? '',
      text: metadata?.annotations?.[GPUS_ANNOTATION],
      placement: placementIn(metadata?.labels),
      cores: freeCores ? coresIn(status?.allocatable) : 0,
    }),
    onList(items) {
      const listed = new Set(items.map(({ name }) => name));
      for (const name of [...digests.keys()]) if (!listed.has(name)) forget(name);
      for (const node of items) update(node);
    },
    onChange: update,
    onGone: ({ name }) => forget(name),
    onProblem: (text) => onWatchProblem('nodes', text),
  });
  return { ...watch, invalid };
}

type WatchedPod = {
  readonly podUid: string;
  readonly read: BoundPod;
  readonly node: string;
  readonly cores: number;
  readonly mark: string | undefined;
};

function readWatchedPod(pod: V1Pod, countsCores: boolean): WatchedPod {
  const { metadata, spec } = pod;
  return {
    podUid: metadata?.uid ?? '',
    read: readBoundPod(pod),
    node: spec?.nodeName ?? '',
    cores: countsCores ? coresOf(spec) : 0,
    mark: metadata?.annotations?.[WATCH_MARK_ANNOTATION],
  };
}

function watchBoundPods(parts: ClusterParts) {
  const { config, allocations, inFlight, freeCores, onWatchProblem, logger } = parts;
  const boundPods = new Map<string, BoundPodFacts>();
  const resizeRequests = new Map<string, ResizeRequest>();
  const invalid = new Map<string, string>();
  const forget = (podUid: string) => {
    inFlight.settle(podUid);
    allocations.release(podUid);
    boundPods.delete(podUid);
    resizeRequests.delete(podUid);
    invalid.delete(podUid);
  };
  const update = ({ podUid, read, node, cores }: WatchedPod) => {
    freeCores?.setPod(podUid, node, cores);
    if (read.kind === 'no-grant') return forget(podUid);
    if (read.kind === 'granted') boundPods.set(podUid, read.facts);
    else boundPods.delete(podUid);
    if (read.kind === 'granted' && read.resize) resizeRequests.set(podUid, read.resize);
    else resizeRequests.delete(podUid);
    if (allocations.allocationOf(podUid)?.digest === read.allocation.digest) return;
    inFlight.settle(podUid);
    if (read.kind === 'invalid') {
      invalid.set(podUid, read.why);
      logger.warn(`annotation ${GRANT_ANNOTATION} of the pod is invalid: ${read.why}`, { pod: read.pod });
    } else invalid.delete(podUid);
    allocations.allocate(read.allocation);
  };
  const watch = listAndWatch(config, {
    path: '/api/v1/pods',
    query: { fieldSelector: BOUND_POD_FIELDS },
    keep: (pod: V1Pod) => readWatchedPod(pod, freeCores !== undefined),
    // Most pods of a cluster have none; their cores count all the same.
    ...(!freeCores && { mentions: GRANT_ANNOTATION }),
    // One by one: all of them beside what is kept would be as much again.
    onListed(pod) {
      update(pod);
      return pod.podUid;
    },
    onList(podUids, startedMs) {
      const listed = new Set(podUids);
      for (const { podUid } of [...allocations.all()])
        if (!listed.has(podUid) && !inFlight.isExpected(podUid, startedMs)) forget(podUid);
      freeCores?.keepPods(listed);
    },
    onChange(pod) {
      update(pod);
      catchingUp?.shown(pod.mark);
    },
    onGone({ podUid }) {
      freeCores?.removePod(podUid);
      forget(podUid);
    },
    onProblem: (text) => onWatchProblem('pods', text),
  });
  const { relist } = watch;
  const { ownPod } = parts;
  const catchingUp = ownPod && createCatchUp({ config, ownPod, relist, logger });
  return { ...watch, catchUp: catchingUp?.catchUp ?? relist, boundPods, resizeRequests, invalid };
}
