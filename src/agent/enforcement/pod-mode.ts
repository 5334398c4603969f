// Reads the enforcement mode of a pod from its annotations, and applies changes to its grants while it runs. The
// namespace's mode is in the request that the webhook recorded; the tenant's annotation counts only where it is
// stricter.

import { ENFORCEMENT_ANNOTATION, ENFORCEMENT_OVERRIDE_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import { MODES } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { field } from '../../common/json.ts';
import type { Logger } from '../../common/logger.ts';
import { parseMode, type RequestedMode, resolveRequestedMode } from '../../policy/mode.ts';
import { podUidOf } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';

/** A recorded request that cannot be read does not weaken the mode. */
export function requestedMode(annotations: unknown): RequestedMode | undefined {
  const record = parsePodRequest(field(annotations, REQUEST_ANNOTATION));
  return resolveRequestedMode({
    namespace: (record.ok ? record.value.enforcement : undefined) ?? 'enforce',
    pod: parseMode(field(annotations, ENFORCEMENT_ANNOTATION)),
    administrator: parseMode(field(annotations, ENFORCEMENT_OVERRIDE_ANNOTATION)),
  });
}

type PodModes = {
  /** Called with the present annotations of a pod of this node. */
  onPod(podUid: string, annotations: unknown): void;
};

export function createPodModes(registry: Pick<Registry, 'list' | 'change'>, log: Pick<Logger, 'warn'>): PodModes {
  return {
    onPod(podUid, annotations) {
      const own = registry.list().filter(({ grant }) => podUidOf(grant) === podUid);
      const [first] = own;
      const override = field(annotations, ENFORCEMENT_OVERRIDE_ANNOTATION);
      if (first && override !== undefined && !parseMode(override)) {
        const { namespace, pod } = first.grant;
        log.warn(
          `${namespace}/${pod}: annotation ${ENFORCEMENT_OVERRIDE_ANNOTATION} is not one of ${MODES.join(', ')} and is ignored`,
        );
      }
      const requested = requestedMode(annotations);
      for (const { grant } of own) {
        const before = grant.enforcement;
        if (before?.mode === requested?.mode && before?.by === requested?.by) continue;
        try {
          registry.change(grant.id, { enforcement: requested });
        } catch (error) {
          log.warn(`cannot change the enforcement mode of grant ${grant.id}: ${(error as Error).message}`);
        }
      }
    },
  };
}
