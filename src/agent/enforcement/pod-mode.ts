// What is said of a pod's enforcement, by its annotations, and how that reaches its grants while it runs. The namespace's word is
// in what the webhook recorded; the tenant's own key is believed as far as it is stricter than that, whoever wrote it.

import { ENFORCEMENT_ANNOTATION, ENFORCEMENT_OVERRIDE_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import { MODES } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { field } from '../../common/json.ts';
import { parseMode, type RequestedMode, resolveRequestedMode } from '../../policy/mode.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';

/** A record that cannot be read weakens nothing. */
export function requestedMode(annotations: unknown): RequestedMode | undefined {
  const record = parsePodRequest(field(annotations, REQUEST_ANNOTATION));
  return resolveRequestedMode({
    namespace: (record.ok ? record.value.enforcement : undefined) ?? 'enforce',
    pod: parseMode(field(annotations, ENFORCEMENT_ANNOTATION)),
    administrator: parseMode(field(annotations, ENFORCEMENT_OVERRIDE_ANNOTATION)),
  });
}

export type PodModes = {
  /** A pod of this node has these annotations now. */
  onPod(podUid: string, annotations: unknown): void;
};

export function createPodModes(registry: Pick<Registry, 'list' | 'change'>, onProblem: (text: string) => void): PodModes {
  /** What is no mode, by the pod's UID; told once of each text. */
  const told = new Map<string, unknown>();
  return {
    onPod(podUid, annotations) {
      const own = registry.list().filter(({ grant }) => podUidOf(grant) === podUid);
      const [first] = own;
      const override = field(annotations, ENFORCEMENT_OVERRIDE_ANNOTATION);
      if (!first || override === undefined || parseMode(override)) told.delete(podUid);
      else if (told.get(podUid) !== override) {
        told.set(podUid, override);
        const { namespace, pod } = first.grant;
        onProblem(
          `${namespace}/${pod}: annotation ${ENFORCEMENT_OVERRIDE_ANNOTATION} is none of ${MODES.join(', ')}, and changes nothing`,
        );
      }
      const said = requestedMode(annotations);
      for (const { grant } of own) {
        const before = grant.enforcement;
        if (before?.mode === said?.mode && before?.by === said?.by) continue;
        try {
          registry.change(grant.id, { enforcement: said });
        } catch (error) {
          onProblem(`the enforcement of grant ${grant.id} is not changed: ${(error as Error).message}`);
        }
      }
    },
  };
}
