// The field that a refusal is about, as a label of a metric: one of a fixed list, whatever a pod has in it.
import type { Problem } from '../src/common/problem.ts';

/** Of a pod and its containers, as Kubernetes names them; `other`: all else, such as live rules. */
export const REFUSED_FIELDS = [
  'affinity',
  'annotations',
  'containers',
  'env',
  'ephemeralContainers',
  'hostPID',
  'initContainers',
  'labels',
  'name',
  'nodeName',
  'nodeSelector',
  'os',
  'resources',
  'runtimeClassName',
  'schedulerName',
  'securityContext',
  'terminationMessagePath',
  'volumeDevices',
  'volumeMounts',
  'volumes',
  'other',
] as const;
export type RefusedField = (typeof REFUSED_FIELDS)[number];

export const PROBLEM_KINDS = ['invalid', 'forbidden'] as const satisfies readonly Problem['kind'][];

const FIELDS: ReadonlySet<string> = new Set(REFUSED_FIELDS);
/** Behind the pod's own part, and behind a container's place in its list. */
const FIRST_NAME = /^(?:spec\.|metadata\.)?(?:(?:containers|initContainers|ephemeralContainers)\[\d+\]\.)?([A-Za-z]+)/;

export function refusedField({ path }: Pick<Problem, 'path'>): RefusedField {
  const [, name = ''] = FIRST_NAME.exec(path) ?? [];
  return FIELDS.has(name) ? (name as RefusedField) : 'other';
}
