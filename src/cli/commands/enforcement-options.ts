// The mode of enforcement as `get`, `set` and `inspect` speak of it: the options, which of a pod's annotations says it and what may
// not be said there, and the sentence for what came of it. Pure; whom that reaches, and how, is theirs.

import { saidOf } from '../../agent/enforcement/pod-mode.ts';
import { ENFORCEMENT_ANNOTATION, ENFORCEMENT_OVERRIDE_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import { MODES, type Mode } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { type EffectiveMode, effectiveMode, modeNamed, notWeakerThan, saidMode } from '../../policy/mode.ts';
import { modeOn, type Use } from '../cluster/parse-metrics.ts';
import { flag, type Option, type Parsed, text, UsageError } from '../lib/command.ts';

export const ENFORCEMENT_OPTIONS: Record<string, Option> = {
  enforcement: {
    type: 'string',
    value: 'MODE',
    help: `what is done when it is over its grant: ${MODES.join(', ')}, or default`,
  },
  override: {
    type: 'boolean',
    help: "with --enforcement, of a pod: as an administrator's word, which goes before all others",
  },
};

type Annotations = Readonly<Record<string, string>>;

/** `atMost`: the node's mode is not known, and may be weaker. */
export type ShownMode = EffectiveMode & { readonly atMost?: true };

/** Null takes back what was said. */
export function enforcementOption(parsed: Parsed): Mode | null | undefined {
  const given = text(parsed, 'enforcement');
  if (given === undefined) {
    if (flag(parsed, 'override')) throw new UsageError('--override: is of --enforcement, which is missing');
    return undefined;
  }
  if (given === 'default') return null;
  const mode = modeNamed(given);
  if (mode) return mode;
  throw new UsageError(`--enforcement ${given}: want ${MODES.join(', ')}, or default`);
}

/**
 * The annotations by which that is said of a pod, null for what goes; or why the agent would not follow it. Who may write them is
 * the webhook's to say.
 */
export function wordOnPod(
  annotations: Annotations,
  mode: Mode | null,
  override: boolean,
): { readonly annotations: Readonly<Record<string, Mode | null>> } | { readonly wrong: string } {
  if (override) return { annotations: { [ENFORCEMENT_OVERRIDE_ANNOTATION]: mode } };
  if (mode === null)
    return { wrong: "its own word is not taken back, only made stricter; with --override an administrator's is" };
  const record = parsePodRequest(annotations[REQUEST_ANNOTATION]);
  const namespace = (record.ok ? record.value.enforcement : undefined) ?? 'enforce';
  const pod = modeNamed(annotations[ENFORCEMENT_ANNOTATION]);
  const now = saidMode({ namespace, pod, administrator: undefined }) ?? { mode: namespace, by: 'namespace' };
  if (notWeakerThan(now.mode).includes(mode)) return { annotations: { [ENFORCEMENT_ANNOTATION]: mode } };
  const who = now.by === 'pod' ? 'it says itself' : 'its namespace has it';
  return {
    wrong: `${mode} is weaker than ${now.mode}, as ${who}; only administrators make it weaker, with --override`,
  };
}

/** By its annotations, in this mode of its node; undefined: that is not known. */
export function modeBy(annotations: unknown, node: Mode | undefined): ShownMode {
  const mode = effectiveMode(node ?? 'enforce', saidOf(annotations));
  return node === undefined ? { ...mode, atMost: true } : mode;
}

/** As the node's agent has it now; of what it does not tell of, by the annotations. */
export function modeOf(
  use: Use | undefined,
  of: { readonly namespace: string; readonly pod: string; readonly container: string },
  annotations: unknown,
): ShownMode {
  return modeOn(use, of) ?? modeBy(annotations, use?.known ? use.mode : undefined);
}

/** What holds after `asked`, and why it is not that. */
export function modeSentence(asked: Mode | null, { mode, by, atMost }: ShownMode): string {
  const said = `enforcement ${mode}${atMost ? ' at most' : ''}, said by ${by}`;
  if (asked === null || mode === asked) return atMost ? `${said}: the mode of its node is not known` : said;
  if (by === 'node') return `${said}: that is the most that is done on its node`;
  return `${said}: that goes before all others`;
}
