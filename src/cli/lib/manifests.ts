// Reads manifests of Kubernetes from files, and finds the pods in them. Objects stay as they were written.
import { parseAllDocuments } from 'yaml';
import { isObject, isWithin, type JsonObject, objectAt, textAt } from '../../common/json.ts';
import { UsageError } from './command.ts';
import { readText } from './webhook-configuration.ts';

/** The objects of a file, or of standard input for `-`; those of a list are objects of their own. */
export function documentsOf(file: string): readonly JsonObject[] {
  const documents = parseAllDocuments(readText(file));
  return [documents].flat().flatMap((document, index) => {
    const [error] = 'errors' in document ? document.errors : [];
    if (error) throw new UsageError(`${file}: ${error.message}`);
    const value: unknown = document.toJS();
    if (value === null || value === undefined) return [];
    if (!isObject(value)) throw new UsageError(`${file}: document ${index + 1} is not an object of Kubernetes`);
    const { items } = value;
    return (textAt(value, 'kind') ?? '').endsWith('List') && Array.isArray(items) ? items.filter(isObject) : [value];
  });
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
  if (inline) return inline.after(change(inline.pod, { place, replicas }));
  const entries = Object.entries(value).map(([key, part]) => [
    key,
    mapPods(part, change, {
      place: place === '' ? key : `${place}.${key}`,
      replicas: replicas * timesOf(value, key),
    }),
  ]);
  return Object.fromEntries(entries);
}

/**
 * A pod that an object describes without a `spec`, and the object after a change of the pod. An object with containers is
 * the spec itself, with annotations and labels beside it (KServe's predictors, sets of containers of Argo). One container
 * that its project completes stays as it is written: `container` and `script` of Argo, `model` of KServe.
 */
function inlinePod(value: JsonObject): { pod: JsonObject; after: (pod: JsonObject) => unknown } | undefined {
  const { containers, annotations, labels } = value;
  if (Array.isArray(containers) && containers.some((one) => textAt(one, 'image') !== undefined)) {
    const metadata = { ...(isObject(annotations) && { annotations }), ...(isObject(labels) && { labels }) };
    return { pod: { metadata, spec: value }, after: ({ spec }) => spec };
  }
  const [key, name] = SINGLE.find(([one]) => isAsking(objectAt(value, one), value)) ?? [];
  if (key === undefined) return undefined;
  const pod = { metadata: objectAt(value, 'metadata'), spec: { containers: [{ ...objectAt(value, key), name }] } };
  return { pod, after: () => value };
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
 * `parallelism` of Jobs, and in the `leaderWorkerTemplate` of a LeaderWorkerSet `size` with the leader.
 */
function timesOf(value: JsonObject, key: string): number {
  const { replicas, parallelism, size } = value;
  const count = replicas ?? parallelism;
  if (isWithin(count, 0, MOST_PODS)) return count;
  if (isWithin(size, 1, MOST_PODS) && key === 'workerTemplate') return 'leaderTemplate' in value ? size - 1 : size;
  return 1;
}

const MOST_PODS = 100_000;
