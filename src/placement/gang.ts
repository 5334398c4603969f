// Which pods are placed all or none: those of one group that says how many it needs. Pure. Names of labels are those of
// scheduler-plugins (lightweight coscheduling), LeaderWorkerSet and JobSet.

export type Gang = {
  /** Namespace and group. */
  readonly key: string;
  /** Pods with a share without which none shall start. */
  readonly size: number;
};

/** The group's size; also on pods whose group another label names. */
export const MIN_AVAILABLE_LABEL = 'pod-group.scheduling.sigs.k8s.io/min-available';
/** Labels that name a pod's group, the first that is there counts. */
export const GROUP_LABELS = [
  'pod-group.scheduling.sigs.k8s.io/name',
  'leaderworkerset.sigs.k8s.io/group-key',
  'jobset.sigs.k8s.io/jobset-name',
] as const;
const MOST_PODS = 1000;

type Metadata = { readonly namespace?: string; readonly labels?: Readonly<Record<string, string>> };

/** Undefined: it is placed alone. */
export function gangOf({ namespace = '', labels = {} }: Metadata): Gang | undefined {
  const name = GROUP_LABELS.map((label) => labels[label]).find((value) => value !== undefined && value !== '');
  const size = Number(labels[MIN_AVAILABLE_LABEL]);
  if (name === undefined || !Number.isInteger(size) || size < 2 || size > MOST_PODS) return undefined;
  return { key: `${namespace}/${name}`, size };
}
