// The labels that a node must have for a pod to run there: those of its `nodeSelector`, and those on which all terms of
// its required node affinity agree. Pure.
import { field, type JsonObject, listAt, objectAt, textAt } from '../common/json.ts';

/** Label -> the only value that the pod accepts; labels of which it accepts several are not among them. */
export function requiredNodeLabels(pod: unknown): JsonObject {
  const spec = field(pod, 'spec');
  const required = field(field(field(spec, 'affinity'), 'nodeAffinity'), REQUIRED);
  const [first = {}, ...others] = listAt(required, 'nodeSelectorTerms').map(labelsOf);
  const common = Object.entries(first).filter(([key, value]) => others.every((labels) => field(labels, key) === value));
  return { ...Object.fromEntries(common), ...objectAt(spec, 'nodeSelector') };
}

const REQUIRED = 'requiredDuringSchedulingIgnoredDuringExecution';

/** Of the terms of one list all must hold. */
function labelsOf(term: unknown): JsonObject {
  const single = listAt(term, 'matchExpressions').flatMap((expression): [string, unknown][] => {
    const values = new Set(listAt(expression, 'values'));
    const key = textAt(expression, 'key');
    return textAt(expression, 'operator') === 'In' && values.size === 1 && key !== undefined
      ? [[key, [...values][0]]]
      : [];
  });
  return Object.fromEntries(single);
}
