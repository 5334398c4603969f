// The options of `set` that say what changes. The value `default` resets a choice: it is read as null.
import type { ComputeChange } from '../../api/compute-annotation.ts';
import {
  COMPUTE_POLICIES,
  type ComputePolicy,
  MODES,
  MOST_MEMORY_BYTES,
  MOST_WEIGHT,
  type Mode,
  PRIORITIES,
  parseComputePolicy,
} from '../../api/request.ts';
import { MIB, parseWhole } from '../../common/quantity.ts';
import { choice, flag, given, type Options, type Parsed, percent, text, UsageError, whole } from '../lib/command.ts';
import { memoryProblem } from '../lib/split-amounts.ts';

const DEFAULT = 'default';
const MOST_GPUS = 16;

export const COMPUTE_OPTIONS: Options = {
  policy: {
    value: 'POLICY',
    choices: COMPUTE_POLICIES,
    help: `${COMPUTE_POLICIES.join(', ')}, a number 0 to 5, or default`,
  },
  priority: { value: 'PRIORITY', choices: PRIORITIES, help: 'normal or high' },
  weight: { value: 'N', help: `under the weighted policy, 1 to ${MOST_WEIGHT}, or default` },
  'gpu-cores': { value: 'PERCENT', help: 'percent of compute in total over its GPUs, as run has it; 0: none' },
  'gpu-cores-limit': { value: 'PERCENT', help: 'what it may have of each while others leave it idle, or default' },
};

export const ENFORCEMENT_OPTIONS: Options = {
  enforcement: {
    value: 'MODE',
    choices: [...MODES, DEFAULT],
    help: `what is done when it is over its grant: ${MODES.join(', ')}, or default`,
  },
  override: {
    help: 'with --enforcement, on a pod: set as administrator, which takes precedence over pod and namespace',
  },
};

export function policyOption(parsed: Parsed): ComputePolicy | null | undefined {
  const policyGiven = text(parsed, 'policy');
  if (policyGiven === undefined || policyGiven === DEFAULT) return policyGiven && null;
  const policy = parseComputePolicy(policyGiven);
  if (policy) return policy;
  throw new UsageError(
    `${given('policy', policyGiven)}: want ${COMPUTE_POLICIES.join(', ')}, a number 0 to 5, or ${DEFAULT}`,
  );
}

export const percentOption = (parsed: Parsed, name: string): number | null | undefined =>
  text(parsed, name) === DEFAULT ? null : percent(parsed, name, { least: 1, most: 100 });

const weightOption = (parsed: Parsed): number | null | undefined =>
  text(parsed, 'weight') === DEFAULT ? null : whole(parsed, 'weight', 1, MOST_WEIGHT);

export function computeChange(parsed: Parsed): ComputeChange {
  const change = {
    policy: policyOption(parsed),
    priority: choice(parsed, 'priority', PRIORITIES),
    weight: weightOption(parsed),
    coresPercent: percent(parsed, 'gpu-cores', { least: 0, most: 100 * MOST_GPUS, gpus: 'unknown' }),
    coresLimitPercent: percentOption(parsed, 'gpu-cores-limit'),
  };
  return Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined)) as ComputeChange;
}

export function enforcementOption(parsed: Parsed): Mode | null | undefined {
  const mode = choice(parsed, 'enforcement', [...MODES, DEFAULT]);
  if (mode === undefined && flag(parsed, 'override')) throw new UsageError('--override needs --enforcement');
  return mode === DEFAULT ? null : mode;
}

export function memoryOption(parsed: Parsed): number | undefined {
  const memory = text(parsed, 'gpu-memory');
  if (memory === undefined) return undefined;
  const bytes = parseWhole(memory, MIB, MOST_MEMORY_BYTES);
  if (!bytes.ok) throw new UsageError(memoryProblem(memory, bytes.error.wrong));
  if (bytes.value % MIB !== 0)
    throw new UsageError(
      `${given('gpu-memory', memory)}: want whole MiB; the nearest is ${Math.max(1, Math.round(bytes.value / MIB))}Mi`,
    );
  return bytes.value;
}
