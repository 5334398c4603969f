// The enforcement mode of a pod as `get`, `set` and `inspect` show it: by its agent, or by annotations where the agent
// does not answer; and the annotations that change it. Pure.
import { requestedMode } from '../../agent/enforcement/pod-mode.ts';
import { ENFORCEMENT_ANNOTATION, ENFORCEMENT_OVERRIDE_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import type { Mode } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { err, ok, type Result } from '../../common/result.ts';
import {
  type EffectiveMode,
  effectiveMode,
  notWeakerThan,
  parseMode,
  resolveRequestedMode,
} from '../../policy/mode.ts';
import { type Use, useOn } from './use.ts';

type Annotations = Readonly<Record<string, string>>;

/** `atMost`: the node's mode is not known, and may be weaker. */
export type ShownMode = EffectiveMode & { readonly atMost?: true };

/**
 * The annotations that set this mode on a pod, null for one to remove; or why the agent would not follow it. The
 * webhook decides which users may write them.
 */
export function modeAnnotations(
  annotations: Annotations,
  mode: Mode | null,
  override: boolean,
): Result<Readonly<Record<string, Mode | null>>> {
  if (override) return ok({ [ENFORCEMENT_OVERRIDE_ANNOTATION]: mode });
  if (mode === null)
    return err("a pod's own mode can only become stricter; --override resets the mode that an administrator set");
  const record = parsePodRequest(annotations[REQUEST_ANNOTATION]);
  const namespace = (record.ok ? record.value.enforcement : undefined) ?? 'enforce';
  const pod = parseMode(annotations[ENFORCEMENT_ANNOTATION]);
  const now = resolveRequestedMode({ namespace, pod, administrator: undefined }) ?? {
    mode: namespace,
    by: 'namespace',
  };
  if (notWeakerThan(now.mode).includes(mode)) return ok({ [ENFORCEMENT_ANNOTATION]: mode });
  const source = now.by === 'pod' ? 'the pod sets' : 'its namespace sets';
  return err(`${mode} is weaker than ${now.mode}, which ${source}; only administrators can weaken it, with --override`);
}

/** By its annotations, in this mode of its node; undefined: that is not known. */
export function modeBy(annotations: unknown, node: Mode | undefined): ShownMode {
  const mode = effectiveMode(node ?? 'enforce', requestedMode(annotations));
  return node === undefined ? { ...mode, atMost: true } : mode;
}

/** As the node's agent reports it; without a report, by the annotations. */
export function modeOf(
  use: Use | undefined,
  of: { readonly namespace: string; readonly pod: string; readonly container: string },
  annotations: unknown,
): ShownMode {
  return useOn(use, of)?.enforcement ?? modeBy(annotations, use?.known ? use.mode : undefined);
}

/** The mode that applies after `requested`, and why it is another one. */
export function modeSentence(requested: Mode | null, { mode, by, atMost }: ShownMode): string {
  const applies = `enforcement ${mode}${atMost ? ' at most' : ''}, set by ${by}`;
  if (requested === null || mode === requested)
    return atMost ? `${applies}: the mode of its node is not known` : applies;
  return by === 'node' ? `${applies}: the mode of its node is the upper bound` : `${applies}: it takes precedence`;
}
