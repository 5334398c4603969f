// Which pods are replicas of one another, for `spread`: those of one owner, and those with the same labels. Pure.
import { createPool, shortDigest } from '../common/digest.ts';

/** Short digests; without an owner or without labels one of them is absent. */
export type ReplicaOf = { readonly owner?: string; readonly labels?: string };

type Metadata = {
  readonly namespace?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly ownerReferences?: readonly { readonly uid: string; readonly controller?: boolean }[];
};

/** Labels that controllers give to single pods or to one revision: without them replicas have equal ones. */
const OWN_LABELS = [
  'pod-template-hash',
  'controller-revision-hash',
  'statefulset.kubernetes.io/pod-name',
  'apps.kubernetes.io/pod-index',
  'batch.kubernetes.io/job-completion-index',
  'batch.kubernetes.io/controller-uid',
  'batch.kubernetes.io/job-name',
  'controller-uid',
  'job-name',
];

const digest = (value: unknown): string => shortDigest(JSON.stringify(value));

const shared = createPool<ReplicaOf>(10_000);

/** Undefined: it is a replica of none. */
export function replicaOf({ namespace, labels = {}, ownerReferences = [] }: Metadata): ReplicaOf | undefined {
  const owner = ownerReferences.find(({ controller }) => controller)?.uid;
  const own = Object.entries(labels)
    .filter(([key]) => !OWN_LABELS.includes(key))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  if (owner === undefined && own.length === 0) return undefined;
  const found = {
    ...(owner !== undefined && { owner: digest(owner) }),
    ...(own.length > 0 && { labels: digest([namespace, own]) }),
  };
  return shared(`${found.owner} ${found.labels}`, found);
}

type ReplicaCounts = { readonly owner: number; readonly labels: number };

/** How many pods on these GPUs are replicas of the pod by owner, and by labels; one with several GPUs counts on each. */
export function countReplicas(
  pod: ReplicaOf | undefined,
  gpus: readonly { readonly replicas?: readonly ReplicaOf[] }[],
): ReplicaCounts {
  let [owner, labels] = [0, 0];
  for (const { replicas } of gpus)
    for (const other of replicas ?? []) {
      if (pod?.owner !== undefined && other.owner === pod.owner) owner += 1;
      if (pod?.labels !== undefined && other.labels === pod.labels) labels += 1;
    }
  return { owner, labels };
}
