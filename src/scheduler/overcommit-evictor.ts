// Evicts what was double-booked, so that its successor is placed anew: looks at the GPUs that have changed, waits for overlaps
// that pass, and asks the API server. Owns when that is done and how often; who has to go is overbooked.ts' business. A pod that
// nobody would make again is only told.
import { setTimeout as delay } from 'node:timers/promises';
import { CoreV1Api, type KubeConfig } from '@kubernetes/client-node';
import { problemOf } from '../kube/api-error.ts';
import { clientOf } from '../kube/client.ts';
import { createReporter } from '../kube/events.ts';
import type { Ledger } from '../placement/allocations.ts';
import { displacedOn, excessesOf, type Holder } from '../placement/overcommit.ts';
import type { BoundPodFacts } from './bound-pod.ts';
import type { Leadership } from './leader-election.ts';

/** `kept`: told, and left where it is. */
export type Displacement = 'evicted' | 'kept' | 'failed';

export type EvictorParts = {
  readonly config: KubeConfig;
  readonly ledger: Ledger;
  readonly leadership: Leadership;
  /** By UID. */
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  /** For how long a GPU must be overbooked: pods that are just ending pass. */
  readonly afterMs: number;
  /** Of this replica, for Events. */
  readonly hostname: string;
  readonly onDisplaced: (outcome: Displacement) => void;
  readonly log: (line: string) => void;
};

export type Evictor = {
  /** As of the last look; none while another replica leads. */
  readonly overbookedGpus: number;
  close(): Promise<void>;
};

/** What a pod is told behind the reason. */
export const EVICTED = 'this pod had not started and was evicted, for its successor to be placed anew';
export const KEPT =
  'this pod has not started, and nobody is known to make another in its place, so it is left here: it starts when others leave the GPU. To have it placed elsewhere, delete it and create it anew';
const ROUND_MS = 1000;
/** In one round, over all nodes. */
const MOST_EVICTIONS = 5;
const AGAIN_MS = 5000;

export function startEvictor(parts: EvictorParts): Evictor {
  const { config, ledger, leadership, boundPods, afterMs, hostname, onDisplaced, log } = parts;
  const api = clientOf(config, CoreV1Api);
  const report = createReporter(config, log);
  const closing = new AbortController();
  /** Node -> GPU -> since when. */
  const overbooked = new Map<string, Map<string, number>>();
  /** By UID of the pod. */
  const done = new Map<string, { readonly outcome: Displacement; readonly atMs: number }>();
  let seen: number | undefined;

  const holdersOn = (node: string): Holder[] =>
    [...ledger.bookingsOn(node)].map(({ podUid, need }) => {
      // What the watch has not shown yet cannot be judged, and stays.
      const { epoch = 0, createdMs = 0, state = 'started' } = boundPods.get(podUid) ?? {};
      // The API server has taken it; the watch is to tell.
      return { podUid, need, epoch, createdMs, state: done.get(podUid)?.outcome === 'evicted' ? 'leaves' : state };
    });

  /** Who has to go, from GPUs that have been overbooked for long enough. */
  const look = (nowMs: number) => {
    const changed = (seen !== undefined && ledger.changedSince(seen)) || ledger.nodeNames();
    seen = ledger.version;
    return [...new Set([...changed, ...overbooked.keys()])].flatMap((node) => {
      const gpus = ledger.gpusOf(node);
      const holders = gpus ? holdersOn(node) : [];
      const excesses = gpus ? excessesOf(node, gpus, holders) : [];
      const before = overbooked.get(node);
      const since = new Map(excesses.map(({ gpuUuid }) => [gpuUuid, before?.get(gpuUuid) ?? nowMs]));
      if (since.size > 0) overbooked.set(node, since);
      else overbooked.delete(node);
      if (!gpus) return [];
      const ripe = new Set([...since].flatMap(([gpuUuid, sinceMs]) => (nowMs - sinceMs >= afterMs ? gpuUuid : [])));
      return ripe.size === 0 ? [] : displacedOn(node, gpus, holders, ripe);
    });
  };

  const displace = async (podUid: string, pod: BoundPodFacts, because: string): Promise<Displacement> => {
    const { namespace, name, resourceVersion } = pod;
    const tell = (what: string) =>
      report({
        namespace,
        pod: name,
        podUid,
        reason: 'GPUGrantOverbooked',
        type: 'Warning',
        message: `${because}; ${what}`,
        atMs: Date.now(),
        by: { component: 'scheduler', instance: hostname },
      });
    if (!pod.isMadeAgain) {
      await tell(KEPT);
      log(`${because}; pod ${namespace}/${name} is left there, for nobody is known to make it again`);
      return 'kept';
    }
    try {
      // With the version that was seen: a pod that has started meanwhile stays.
      const deleteOptions = { preconditions: { uid: podUid, resourceVersion } };
      const body = { metadata: { name, namespace }, deleteOptions };
      await api.createNamespacedPodEviction({ name, namespace, body });
    } catch (error) {
      // Gone, or another than was judged: the next look tells.
      const { code } = error as { code?: unknown };
      if (code !== 404 && code !== 409) log(`pod ${namespace}/${name} could not be evicted: ${problemOf(error)}`);
      return 'failed';
    }
    await tell(EVICTED);
    log(`${because}; pod ${namespace}/${name} had not started and was evicted`);
    return 'evicted';
  };

  const round = async (): Promise<void> => {
    if (!leadership.state().leads) {
      overbooked.clear();
      seen = undefined;
      return;
    }
    for (const podUid of done.keys()) if (!boundPods.has(podUid)) done.delete(podUid);
    const nowMs = performance.now();
    let evictions = 0;
    for (const { podUid, because } of look(nowMs)) {
      const [pod, before] = [boundPods.get(podUid), done.get(podUid)];
      if (!pod || (before && (before.outcome !== 'failed' || nowMs < before.atMs + AGAIN_MS))) continue;
      if (pod.isMadeAgain) evictions += 1;
      if (evictions > MOST_EVICTIONS || closing.signal.aborted || !leadership.state().leads) return;
      const outcome = await displace(podUid, pod, because);
      done.set(podUid, { outcome, atMs: performance.now() });
      onDisplaced(outcome);
    }
  };
  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      await round();
      await delay(ROUND_MS, undefined, { signal: closing.signal }).catch(() => undefined);
    }
  };
  const ran = run();
  return {
    get overbookedGpus() {
      return [...overbooked.values()].reduce((count, gpus) => count + gpus.size, 0);
    },
    async close() {
      closing.abort();
      await ran;
    },
  };
}
