// Where the pods of manifests would fit a cluster as it is now, and how many more of them. Pure. scheduler/fits.ts counts
// GPUs; of the rest only nodes that are closed to new pods, and node selectors, are looked at.

import type { WebhookConfiguration } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import type { Placement } from '../../api/request.ts';
import { type JsonObject, objectAt, textAt } from '../../common/json.ts';
import { formatProblem } from '../../common/problem.ts';
import { createDecider } from '../../scheduler/decisions/filter-and-score.ts';
import { type Fit, fitPods, MOST_MORE, MOST_REPLICAS, type WantedPods } from '../../scheduler/decisions/fits.ts';
import { aspectsOf } from '../../scheduler/decisions/pod-aspects.ts';
import { mapPods, objectName } from '../lib/manifests.ts';
import { oneLine } from '../lib/text.ts';
import { allocationsOf, nodesFor, openNodes } from './granted.ts';
import type { Node, Pod } from './objects.ts';

type PodFit = {
  /** `Deployment/train`, and the place of the pod's template in it. */
  readonly object: string;
  readonly place: string;
  readonly replicas: number;
  readonly outcome: 'fits' | 'does not fit' | 'no share' | 'refused';
  readonly problems?: readonly string[];
} & Partial<Fit>;

type FitsAsked = {
  readonly documents: readonly JsonObject[];
  readonly configuration: WebhookConfiguration;
  /** For pods that choose none. */
  readonly placement: Placement;
  /** Of manifests that name none. */
  readonly namespace: string;
};

type Found = Pick<PodFit, 'object' | 'place' | 'replicas'> & {
  readonly wanted?: WantedPods;
  readonly problems?: readonly string[];
};

export function fitsOf(nodes: readonly Node[], pods: readonly Pod[], asked: FitsAsked): readonly PodFit[] {
  const { placement } = asked;
  const allocations = allocationsOf(nodes, pods);
  const { read } = createDecider(allocations, placement);
  const open = openNodes(nodes);
  const found = asked.documents.flatMap((document) => podsIn(document, asked, open, read));
  const fits = fitPods(
    found.flatMap(({ wanted }) => wanted ?? []),
    allocations,
    placement,
  ).values();
  return found.map(({ wanted, ...one }): PodFit => {
    if (!wanted) return { ...one, outcome: one.problems ? 'refused' : 'no share' };
    const fit = fits.next().value;
    return { ...one, outcome: fit?.placed.length === one.replicas ? 'fits' : 'does not fit', ...fit };
  });
}

function podsIn(
  document: JsonObject,
  { configuration, namespace: usual }: FitsAsked,
  nodes: readonly Node[],
  read: ReturnType<typeof createDecider>['read'],
): readonly Found[] {
  const namespace = textAt(objectAt(document, 'metadata'), 'namespace') ?? usual;
  const found: Found[] = [];
  const isOnEachNode = textAt(document, 'kind') === 'DaemonSet';
  mapPods(document, (pod, { place, replicas: count }) => {
    const replicas = isOnEachNode ? nodesFor(pod.spec, nodes).length : count;
    const one = { object: objectName(document), place, replicas };
    const mutation = mutatePod(pod, namespace, configuration);
    if (mutation.kind === 'untouched') found.push(one);
    else if (mutation.kind === 'refused') found.push({ ...one, problems: mutation.problems.map(formatProblem) });
    else {
      const { metadata, spec } = mutation.pod;
      const request = read(mutation.record, aspectsOf({ ...objectAt({ metadata }, 'metadata'), namespace }, spec));
      const names = nodesFor(spec, nodes);
      if (!request.ok) found.push({ ...one, problems: [request.error] });
      else
        found.push({
          ...one,
          wanted: { request: request.value, replicas: Math.min(replicas, MOST_REPLICAS), nodes: names, isOnEachNode },
        });
    }
    return pod;
  });
  return found;
}

export function fitLines(fits: readonly PodFit[]): readonly string[] {
  if (fits.length === 0) return ['there are no pods in these manifests'];
  return fits.flatMap((fit) => {
    const [head, ...lines] = linesOf(fit);
    return [
      oneLine(`${fit.object}${fit.place === '' ? '' : ` ${fit.place}`}: ${head}`),
      ...lines.map((line) => `  ${oneLine(line)}`),
    ];
  });
}

function linesOf({ outcome, replicas, problems = [], placed = [], more = 0, moreOn = [], nearest }: PodFit) {
  if (outcome === 'no share') return ['asks for no share'];
  if (outcome === 'refused') return ['is refused', ...problems];
  const where = new Map<string, number>();
  for (const { node, gpus } of placed) {
    const text = `node ${node}: ${gpus.join(', ')}`;
    where.set(text, (where.get(text) ?? 0) + 1);
  }
  const head = `${placed.length} of ${replicas} ${replicas === 1 ? 'pod fits' : 'pods fit'}`;
  const also = more === MOST_MORE ? `${MOST_MORE} or more` : String(more);
  return [
    outcome === 'fits' ? `${head}, and ${also} more` : head,
    ...[...where].map(([text, count]) => `${count} on ${text}`),
    ...(moreOn.length > 0 ? [`more: ${moreOn.map(({ node, count }) => `${count} on node ${node}`).join(', ')}`] : []),
    ...(nearest === undefined ? [] : [`the next one: ${nearest}`]),
  ];
}
