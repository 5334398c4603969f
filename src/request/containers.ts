// A pod's containers with their field paths and kinds. Ephemeral containers are left out: they cannot have resources.

import type { ContainerKind } from '../api/request.ts';
import { field, isObject, type JsonObject, textAt } from '../common/json.ts';
import { type Checked, invalid, missing, type Problem } from '../common/problem.ts';
import { err, ok } from '../common/result.ts';

export type PodContainer = {
  readonly spec: JsonObject;
  /** Empty where the container has no name or one that is not text. */
  readonly name: string;
  /** e.g. `spec.initContainers[0]` */
  readonly path: string;
  readonly kind: ContainerKind;
};

/** Init containers (one that always restarts is a sidecar), then containers, in the pod's order. */
export function listContainers(pod: unknown): Checked<readonly PodContainer[]> {
  const spec = field(pod, 'spec');
  if (!isObject(spec)) return err([missing('spec', 'write the pod with its spec')]);
  const containers: PodContainer[] = [];
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
      if (isObject(container))
        containers.push({
          spec: container,
          name: textAt(container, 'name') ?? '',
          path,
          kind: kindOf(container, list),
        });
      else problems.push(invalid(path, container, 'is not a container', 'write an object with a name and an image'));
    }
  }
  return problems.length > 0 ? err(problems) : ok(containers);
}

function kindOf(container: JsonObject, list: string): ContainerKind {
  if (list === 'containers') return 'app';
  return field(container, 'restartPolicy') === 'Always' ? 'sidecar' : 'init';
}
