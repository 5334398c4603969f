// The containers of a pod as places: the object, its field path, its kind. Checks that the lists are lists.
// Owns how a pod is walked; ephemeral containers are not here, for they can hold no resources.

import type { ContainerKind } from '../api/request.ts';
import { field, isObject, type JsonObject } from '../common/json.ts';
import { type Checked, invalid, missing, type Problem } from '../common/problem.ts';
import { err } from '../common/result.ts';

export type ContainerPlace = {
  readonly container: JsonObject;
  /** e.g. `spec.initContainers[0]` */
  readonly path: string;
  readonly kind: ContainerKind;
};

/** Init containers (a sidecar is one that restarts always), then containers, in the pod's order. */
export function containersOf(pod: unknown): Checked<ContainerPlace[]> {
  const spec = field(pod, 'spec');
  if (!isObject(spec)) return err([missing('spec', 'write the pod with its spec')]);
  const places: ContainerPlace[] = [];
  const problems: Problem[] = [];
  for (const list of ['initContainers', 'containers']) {
    const given = field(spec, list);
    if (given === undefined) continue;
    if (!Array.isArray(given)) {
      problems.push(invalid(`spec.${list}`, given, 'is not a list', 'write a list of containers'));
      continue;
    }
    for (const [index, container] of given.entries()) {
      const path = `spec.${list}[${index}]`;
      if (!isObject(container)) {
        problems.push(invalid(path, container, 'is not a container', 'write an object with a name and an image'));
      } else if (list === 'containers') {
        places.push({ container, path, kind: 'app' });
      } else {
        places.push({ container, path, kind: field(container, 'restartPolicy') === 'Always' ? 'sidecar' : 'init' });
      }
    }
  }
  return problems.length > 0 ? err(problems) : { ok: true, value: places };
}
