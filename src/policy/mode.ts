// The enforcement mode of a container: at most that of its node, and below that what its namespace, its pod and an
// administrator request. Pure. Tenants can only request a stricter mode than their namespace has.
import { MODES, type Mode } from '../api/request.ts';

/** Sources of a mode other than the node's; a later one takes precedence. */
export const MODE_SOURCES = ['namespace', 'pod', 'administrator'] as const;

/** The mode that was requested for a container, and its source; absent: `enforce`. */
export type RequestedMode = { readonly mode: Mode; readonly by: (typeof MODE_SOURCES)[number] };

export type EffectiveMode = { readonly mode: Mode; readonly by: 'node' | RequestedMode['by'] };

export const parseMode = (value: unknown): Mode | undefined => MODES.find((mode) => mode === value);

/** The modes that are at least as strict as this one. */
export const notWeakerThan = (mode: Mode): readonly Mode[] => MODES.slice(MODES.indexOf(mode));

const isStricter = (mode: Mode, than: Mode): boolean => MODES.indexOf(mode) > MODES.indexOf(than);

/**
 * An administrator's mode takes precedence over all others, and the pod's own counts where it is stricter than the
 * namespace's.
 */
export function resolveRequestedMode(modes: {
  readonly namespace: Mode;
  readonly pod: Mode | undefined;
  readonly administrator: Mode | undefined;
}): RequestedMode | undefined {
  const { namespace, pod, administrator } = modes;
  if (administrator !== undefined) return { mode: administrator, by: 'administrator' };
  if (pod !== undefined && isStricter(pod, namespace)) return { mode: pod, by: 'pod' };
  return namespace === 'enforce' ? undefined : { mode: namespace, by: 'namespace' };
}

/** At most the node's mode: on a node in mode `off` no container is stopped. */
export function effectiveMode(node: Mode, requested: RequestedMode | undefined): EffectiveMode {
  if (requested === undefined || isStricter(requested.mode, node)) return { mode: node, by: 'node' };
  return requested;
}
