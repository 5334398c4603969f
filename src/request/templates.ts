// Templates, sizes by a name: as amounts of our own names, and what is wrong with those that an operator configures.
import { GPU, GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import { keyPath, type Problem } from '../common/problem.ts';
import type { Amounts } from './amounts.ts';
import { cotenant } from './dialects/cotenant.ts';
import type { Rules, Template } from './rules/namespace-rules.ts';

const SETTINGS: ReadonlyMap<string, keyof Template> = new Map([
  [GPU, 'gpu'],
  [GPU_MEMORY, 'gpuMemory'],
  [GPU_CORES, 'gpuCores'],
]);

export function templateAmounts(template: Template): Amounts {
  const amounts = new Map<string, string>();
  for (const [resource, setting] of SETTINGS) {
    const amount = template[setting];
    if (amount !== undefined) amounts.set(resource, amount);
  }
  return amounts;
}

/** Templates that make no share: a tenant who names one could not mend it. `path`: of the rules in the configuration. */
export function checkTemplates(rules: Rules, path: string): readonly Problem[] {
  return [...rules.templates].flatMap(([name, template]) => {
    const amountPath = (resource: string) => `${keyPath(`${path}.templates`, name)}.${SETTINGS.get(resource)}`;
    const none = { environment: new Map(), labels: {}, annotations: {}, nodeLabels: {} };
    const answer = cotenant.read({ amounts: templateAmounts(template), amountPath, ...none }, rules);
    return answer.ok ? [] : answer.error;
  });
}
