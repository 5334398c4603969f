// Reads manifests of Kubernetes from files, and finds the pods in them. Objects stay as they were written.
import { isGrantKey } from '../../api/names.ts';
import { isObject, isWithin, type JsonObject, listAt, objectAt, textAt } from '../../common/json.ts';
import { UsageError } from './command.ts';
import { manifestsIn, readYaml } from './yaml.ts';

/** The objects of a file, of the files of a folder, or of standard input for `-`; those of a list are objects of their own. */
export function documentsOf(path: string): readonly JsonObject[] {
  return manifestsIn(path).flatMap((file) =>
    readYaml(file).flatMap((value, index) => {
      if (!isObject(value)) throw new UsageError(`${file}: document ${index + 1} is not an object of Kubernetes`);
      const { items } = value;
      return (textAt(value, 'kind') ?? '').endsWith('List') && Array.isArray(items)
        ? items.filter(isObject).map(asCreated)
        : [asCreated(value)];
    }),
  );
}

/** A pod from a cluster (`kubectl get -o yaml`) as it was created: without its node and grant, which the scheduler wrote. */
function asCreated(document: JsonObject): JsonObject {
  const [metadata, spec] = [objectAt(document, 'metadata'), objectAt(document, 'spec')];
  if (textAt(document, 'kind') !== 'Pod' || textAt(metadata, 'uid') === undefined) return document;
  const { nodeName: _, ...rest } = spec;
  if (!isObject(metadata.annotations)) return { ...document, spec: rest };
  const annotations = Object.entries(metadata.annotations).filter(([key]) => !isGrantKey(key));
  return { ...document, metadata: { ...metadata, annotations: Object.fromEntries(annotations) }, spec: rest };
}

/** `Deployment/train` */
export function objectName(document: JsonObject): string {
  const metadata = objectAt(document, 'metadata');
  const name = textAt(metadata, 'name') ?? textAt(metadata, 'generateName') ?? '';
  return `${textAt(document, 'kind') ?? 'object'}/${name}`;
}

type PodPlace = {
  /** Of the pod's template in the object; empty: the object is a pod. */
  readonly place: string;
  /** How many pods the object makes of it. */
  readonly replicas: number;
};

/**
 * A pod, or a template of pods, is an object whose `spec` has containers: so in every kind, also of other projects. Some
 * of them write a pod's spec or its container elsewhere (`inlinePod`).
 */
export function mapPods(
  value: unknown,
  change: (pod: JsonObject, found: PodPlace) => JsonObject,
  { place, replicas }: PodPlace = { place: '', replicas: 1 },
): unknown {
  if (Array.isArray(value))
    return value.map((item, index) => mapPods(item, change, { place: `${place}[${index}]`, replicas }));
  if (!isObject(value)) return value;
  if (Array.isArray(objectAt(value, 'spec').containers)) return change(value, { place, replicas });
  const inline = inlinePod(value);
  const times = (key: string) => replicas * timesOf(value, key);
  const after = inline ? inline.after(change(inline.pod, { place, replicas: times('containers') })) : value;
  const entries = Object.entries(after).map(([key, part]) => [
    key,
    inline?.parts.includes(key)
      ? part
      : mapPods(part, change, { place: place === '' ? key : `${place}.${key}`, replicas: times(key) }),
  ]);
  return Object.fromEntries(entries);
}

type InlinePod = {
  readonly pod: JsonObject;
  /** The object's keys that the pod is made of. */
  readonly parts: readonly string[];
  /** The object after a change of the pod, or without one that is empty. */
  readonly after: (pod: JsonObject) => JsonObject;
};

/**
 * A pod that an object describes without a `spec`. An object with containers is the spec itself, with annotations and
 * labels beside it (KServe's predictors, sets of containers of Argo). One container that its project completes stays as it
 * is written, with the others of its pod: `container` and `script` of Argo beside its `initContainers` and `sidecars`,
 * `model` of KServe beside `containers`.
 */
function inlinePod(value: JsonObject): InlinePod | undefined {
  const { annotations, labels } = value;
  const [key, name] = SINGLE.find(([one]) => isAsking(objectAt(value, one), value)) ?? [];
  const containers = listAt(value, 'containers').filter(isObject);
  const isSpec = containers.some((one) => textAt(one, 'image') !== undefined || isObject(one.resources));
  if (key === undefined && !isSpec) return undefined;
  const metadata = {
    ...objectAt(value, 'metadata'),
    ...(isObject(annotations) && { annotations }),
    ...(isObject(labels) && { labels }),
  };
  if (key === undefined)
    return {
      pod: { metadata, spec: value },
      parts: ['containers', 'initContainers'],
      after: ({ spec }) => objectAt({ spec }, 'spec'),
    };
  const spec = {
    initContainers: listAt(value, 'initContainers'),
    containers: [{ ...objectAt(value, key), name }, ...containers, ...listAt(value, 'sidecars')],
  };
  const parts = [key, 'containers', 'initContainers', 'sidecars'];
  const others = Object.entries(value).filter(([one]) => !parts.includes(one));
  return { pod: { metadata, spec }, parts, after: (pod) => ('spec' in pod ? value : Object.fromEntries(others)) };
}

/** By its resources, or by annotations and labels of its pod. */
const isAsking = ({ resources, image }: JsonObject, { metadata }: JsonObject): boolean =>
  isObject(resources) || (image !== undefined && isObject(metadata));

/** Where a single container is written, and its name in the pod. */
const SINGLE = [
  ['container', 'main'],
  ['script', 'main'],
  ['model', 'kserve-container'],
] as const;

/**
 * How often an object has what is below this key: `replicas` of Deployments and of each part of a JobSet or RayCluster,
 * which has as many on `numOfHosts` each; `parallelism` of Jobs, and no more than their `completions`; `minReplicas` of an
 * InferenceService; in the `leaderWorkerTemplate` of a LeaderWorkerSet `size` with the leader, and in the `workerSpec` of
 * KServe `pipelineParallelSize` with the head.
 */
function timesOf(value: JsonObject, key: string): number {
  const { replicas, parallelism, completions, minReplicas, numOfHosts, size, pipelineParallelSize } = value;
  const positive = (count: unknown): count is number => isWithin(count, 1, MOST_PODS);
  if (key === 'workerTemplate' && positive(size)) return 'leaderTemplate' in value ? size - 1 : size;
  if (key === 'containers' && isWithin(pipelineParallelSize, 2, MOST_PODS)) return pipelineParallelSize - 1;
  const count = replicas ?? parallelism ?? (positive(minReplicas) ? minReplicas : 1);
  if (!isWithin(count, 0, MOST_PODS)) return 1;
  const most = replicas === undefined && positive(completions) ? completions : count;
  return Math.min(count, most) * (positive(numOfHosts) ? numOfHosts : 1);
}

const MOST_PODS = 100_000;
