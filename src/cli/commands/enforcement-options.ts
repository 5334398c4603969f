// The options --enforcement and --override of `set`.
import { MODES, type Mode } from '../../api/request.ts';
import { parseMode } from '../../policy/mode.ts';
import { flag, type Option, type Parsed, text, UsageError } from '../lib/command.ts';

export const ENFORCEMENT_OPTIONS: Record<string, Option> = {
  enforcement: {
    type: 'string',
    value: 'MODE',
    help: `what is done when it is over its grant: ${MODES.join(', ')}, or default`,
  },
  override: {
    type: 'boolean',
    help: 'with --enforcement, on a pod: set as administrator, which takes precedence over pod and namespace',
  },
};

/** Null resets the mode. */
export function enforcementOption(parsed: Parsed): Mode | null | undefined {
  const given = text(parsed, 'enforcement');
  if (given === undefined) {
    if (flag(parsed, 'override')) throw new UsageError('--override needs --enforcement');
    return undefined;
  }
  if (given === 'default') return null;
  const mode = parseMode(given);
  if (mode) return mode;
  throw new UsageError(`--enforcement ${given}: want ${MODES.join(', ')}, or default`);
}
