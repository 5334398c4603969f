// Carries out a plan of `cotenant defrag`: evicts one pod, waits for its successor, compares what became of it with the
// plan, and goes on only where nothing differs.
import { setTimeout as delay } from 'node:timers/promises';
import { err, ok, type Result } from '../../common/result.ts';
import { readBoundPod } from '../../scheduler/allocations/bound-pod.ts';
import { continuePlan, type DefragSituation } from '../../scheduler/decisions/defrag.ts';
import type { Cluster, Refusal } from './api-client.ts';
import { type DefragObjects, moveText, type ShownMove, type ShownPlan, spotText } from './defrag.ts';
import { asApiPod } from './granted.ts';
import type { Pod } from './objects.ts';

type MoveParts = {
  readonly cluster: Cluster;
  /** All objects, read anew. */
  readonly read: () => Promise<DefragObjects>;
  readonly situationOf: (objects: DefragObjects) => DefragSituation;
  /** How long a pod may take to end and its successor to be bound. */
  readonly waitMs: number;
  /** Between two looks at a namespace's pods. */
  readonly lookMs: number;
  readonly print: (line: string) => void;
};

/** An error says why it stopped; what was moved before it stays moved. */
export async function movePods(plan: ShownPlan, parts: MoveParts): Promise<Result<void>> {
  const { read, situationOf, print } = parts;
  const { node = '', moves } = plan;
  for (const [index, move] of moves.entries()) {
    // Also before the first one: time has passed since the plan was made.
    const rest = continuePlan(
      situationOf(await read()),
      node,
      moves.slice(index).map(({ uid }) => uid),
    );
    if (typeof rest === 'string') return err(`the plan no longer holds: ${rest}`);
    const moved = await moveOne(move, parts);
    if (!moved.ok) return moved;
    print(`moved ${moveText(move)}`);
  }
  const end = continuePlan(situationOf(await read()), node, []);
  return typeof end === 'string' ? err(`the pods have moved, but the share does not fit: ${end}`) : ok(undefined);
}

async function moveOne(move: ShownMove, { cluster, waitMs, lookMs }: MoveParts): Promise<Result<void>> {
  const { pod, uid, to } = move;
  const [namespace = '', name = ''] = pod.split('/');
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`;
  const before = await cluster.list<Pod>(path);
  if (!before.ok) return err(`pods of namespace ${namespace} cannot be listed: ${before.message}`);
  const owner = controllerUid(before.value.find(({ metadata }) => metadata.uid === uid));
  const known = new Set(before.value.map(({ metadata }) => metadata.uid));
  // By UID: not a successor of the same name.
  const body = {
    ...{ apiVersion: 'policy/v1', kind: 'Eviction', metadata: { namespace, name } },
    deleteOptions: { preconditions: { uid } },
  };
  const evicted = await cluster.post(`${path}/${encodeURIComponent(name)}/eviction`, body);
  if (!evicted.ok) return err(`${pod} cannot be evicted: ${refusalText(evicted)}`);
  const untilMs = performance.now() + waitMs;
  while (performance.now() < untilMs) {
    const now = await cluster.list<Pod>(path);
    if (!now.ok) return err(`pods of namespace ${namespace} cannot be listed: ${now.message}`);
    const isThere = now.value.some(({ metadata }) => metadata.uid === uid);
    const fresh = now.value.filter(({ metadata }) => !known.has(metadata.uid));
    const bound = fresh.filter((one) => controllerUid(one) === owner).map((one) => readBoundPod(asApiPod(one)));
    const granted = bound.find((one) => one.kind === 'granted');
    if (!isThere && granted) {
      const spot = { node: granted.allocation.nodeName, gpus: [...granted.allocation.demand.keys()] };
      if (spotText(spot) === spotText(to)) return ok(undefined);
      return err(`the successor of ${pod} got ${spotText(spot)}, not ${spotText(to)}`);
    }
    await delay(lookMs);
  }
  return err(`${pod} was evicted, and no successor was bound within ${waitMs / 1000} s`);
}

const controllerUid = (pod: Pod | undefined): string | undefined =>
  pod?.metadata.ownerReferences?.find(({ controller }) => controller)?.uid;

/** The answers that Kubernetes documents for evictions, besides those to any request. */
function refusalText({ status, message }: Refusal): string {
  if (status === 429) return `a disruption budget does not allow it now (${message})`;
  if (status === 404 || status === 409) return `it is gone or was replaced (${message})`;
  return message;
}
