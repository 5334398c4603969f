import type { PodContainers } from '../../../../src/agent/attribution/attribute.ts';

/** A node on which no container of a pod is known. */
export const NO_PODS: PodContainers = {
  nameOf: () => undefined,
  grantOf: () => undefined,
  grantsOf: () => [],
};
