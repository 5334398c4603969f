// Which pods are placed all or none: those of one group that says how many it needs. Pure. Names of labels are those of
// scheduler-plugins (lightweight coscheduling), LeaderWorkerSet and JobSet; the field is Kubernetes' own.
import { field, textAt } from '../common/json.ts';

export type Gang = {
  /** Namespace and group. */
  readonly key: string;
  /** Pods with a share without which none shall start; absent: a PodGroup of that name says it. */
  readonly size?: number;
};

/** A group whose size is known. */
export type SizedGang = Required<Gang>;

/** The group's size; also on pods whose group another label names. */
const MIN_AVAILABLE_LABEL = 'pod-group.scheduling.sigs.k8s.io/min-available';
/** Labels that name a pod's group, the first that is there counts. */
const GROUP_LABELS = [
  'pod-group.scheduling.sigs.k8s.io/name',
  'leaderworkerset.sigs.k8s.io/group-key',
  'jobset.sigs.k8s.io/jobset-name',
] as const;
/** Larger groups are placed pod by pod: all pods of a group are placed in one step, in which no other pod is. */
const MOST_PODS = 5000;

type Metadata = { readonly namespace?: string; readonly labels?: Readonly<Record<string, string>> };

export const isGangSize = (size: unknown): size is number =>
  typeof size === 'number' && Number.isInteger(size) && size >= 2 && size <= MOST_PODS;

/** Undefined: it is placed alone. `spec`: of the pod; its `schedulingGroup` counts before labels. */
export function gangOf({ namespace = '', labels = {} }: Metadata, spec?: unknown): Gang | undefined {
  const podGroup = textAt(field(spec, 'schedulingGroup'), 'podGroupName');
  if (podGroup !== undefined && podGroup !== '') return { key: `${namespace}/${podGroup}` };
  const name = GROUP_LABELS.map((label) => labels[label]).find((value) => value !== undefined && value !== '');
  const size = Number(labels[MIN_AVAILABLE_LABEL]);
  return name === undefined || !isGangSize(size) ? undefined : { key: `${namespace}/${name}`, size };
}
