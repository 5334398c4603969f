// All alert rules. Each has an entry of its name in docs/operate/runbook.md, and its thresholds in lib/configuration.ts.
import { CONFIGURATION, type Configuration } from '../lib/configuration.ts';
import { agentAlerts } from './agent.ts';
import { containerAlerts } from './container.ts';
import { gpuAlerts } from './gpu.ts';
import { healthAlerts } from './health.ts';
import type { RuleFile } from './rule.ts';

export function alertRules(configuration: Configuration = CONFIGURATION): RuleFile {
  const rules = [
    ...agentAlerts(configuration),
    ...gpuAlerts(configuration),
    ...healthAlerts(configuration),
    ...containerAlerts(configuration),
  ];
  return { groups: [{ name: 'cotenant', rules }] };
}
