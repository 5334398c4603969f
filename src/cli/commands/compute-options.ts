// The options of `set` that change compute.
import type { ComputeChange } from '../../api/compute-annotation.ts';
import {
  COMPUTE_POLICIES,
  type ComputePolicy,
  MOST_WEIGHT,
  PRIORITIES,
  parseComputePolicy,
} from '../../api/request.ts';
import { parseWhole } from '../../common/quantity.ts';
import { type Option, type Parsed, text, UsageError } from '../lib/command.ts';

/** The value that resets a choice. */
const DEFAULT = 'default';

export const COMPUTE_OPTIONS: Record<string, Option> = {
  policy: { type: 'string', value: 'POLICY', help: `${COMPUTE_POLICIES.join(', ')}, a number 0 to 5, or default` },
  priority: { type: 'string', value: 'PRIORITY', help: 'normal or high' },
  weight: { type: 'string', value: 'N', help: `under the weighted policy, 1 to ${MOST_WEIGHT}, or default` },
  'gpu-cores': { type: 'string', value: 'PERCENT', help: 'share of the compute of each of its GPUs; 0: none' },
  'gpu-cores-limit': {
    type: 'string',
    value: 'PERCENT',
    help: 'what it may have of each while others leave it idle, or default',
  },
};

export function policyOption(parsed: Parsed): ComputePolicy | null | undefined {
  const given = text(parsed, 'policy');
  if (given === undefined || given === DEFAULT) return given === undefined ? undefined : null;
  const policy = parseComputePolicy(given);
  if (policy) return policy;
  throw new UsageError(`--policy ${given}: want ${COMPUTE_POLICIES.join(', ')}, a number 0 to 5, or ${DEFAULT}`);
}

export function wholeOption(parsed: Parsed, name: string, least: number, most: number): number | null | undefined {
  const given = text(parsed, name);
  if (given === undefined || given === DEFAULT) return given === undefined ? undefined : null;
  const whole = parseWhole(given, least, most);
  if (whole.ok) return whole.value;
  throw new UsageError(`--${name} ${given} ${whole.error.wrong}; ${whole.error.right}`);
}

export function computeChange(parsed: Parsed): ComputeChange {
  const [policy, weight] = [policyOption(parsed), wholeOption(parsed, 'weight', 1, MOST_WEIGHT)];
  const given = text(parsed, 'priority');
  const priority = PRIORITIES.find((name) => name === given);
  if (given !== undefined && !priority) throw new UsageError(`--priority ${given}: want ${PRIORITIES.join(' or ')}`);
  const [cores, limit] = [wholeOption(parsed, 'gpu-cores', 0, 100), wholeOption(parsed, 'gpu-cores-limit', 1, 100)];
  if (cores === null) throw new UsageError('--gpu-cores default: want percent, 0 to 100');
  return {
    ...(policy !== undefined && { policy }),
    ...(priority && { priority }),
    ...(weight !== undefined && { weight }),
    ...(cores !== undefined && { coresPercent: cores }),
    ...(limit !== undefined && { coresLimitPercent: limit }),
  };
}
