// Which enforcement mode holds for a container: what its node allows at most, and below that what its namespace, its pod and an
// administrator say. Pure. Tenants can only make it stricter than their namespace has it.
import { MODES, type Mode } from '../api/request.ts';

/** Who may say a mode that is not the node's; the last one's word goes before all others. */
export const MODE_SOURCES = ['namespace', 'pod', 'administrator'] as const;

/** What was said of a container, and by whom; absent: nobody made it anything else than `enforce`. */
export type RequestedMode = { readonly mode: Mode; readonly by: (typeof MODE_SOURCES)[number] };

export type EffectiveMode = { readonly mode: Mode; readonly by: 'node' | RequestedMode['by'] };

export const parseMode = (value: unknown): Mode | undefined => MODES.find((mode) => mode === value);

/** The modes that are at least as strict as this one. */
export const notWeakerThan = (mode: Mode): readonly Mode[] => MODES.slice(MODES.indexOf(mode));

const isStricter = (mode: Mode, than: Mode): boolean => MODES.indexOf(mode) > MODES.indexOf(than);

/**
 * What is said of a pod: an administrator's word for it goes before all others, and the pod's own counts where it is stricter
 * than the namespace's.
 */
export function resolveRequestedMode(said: {
  readonly namespace: Mode;
  readonly pod: Mode | undefined;
  readonly administrator: Mode | undefined;
}): RequestedMode | undefined {
  const { namespace, pod, administrator } = said;
  if (administrator !== undefined) return { mode: administrator, by: 'administrator' };
  if (pod !== undefined && isStricter(pod, namespace)) return { mode: pod, by: 'pod' };
  return namespace === 'enforce' ? undefined : { mode: namespace, by: 'namespace' };
}

/** The node's mode is the most that is done on it, whoever asks for more: a node that is switched off stops nobody. */
export function effectiveMode(node: Mode, said: RequestedMode | undefined): EffectiveMode {
  if (said === undefined || isStricter(said.mode, node)) return { mode: node, by: 'node' };
  return said;
}
