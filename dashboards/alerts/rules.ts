// All alert rules. Each has an entry of its name in docs/operate/runbook.md, and its thresholds in
// lib/configuration.ts.
import { CONFIGURATION, type Configuration } from '../lib/configuration.ts';
import { AGENT_ALERTS } from './agent.ts';
import { CONTAINER_ALERTS } from './container.ts';
import { CONTROL_PLANE_ALERTS } from './control-plane.ts';
import { GPU_ALERTS } from './gpu.ts';
import { HEALTH_ALERTS } from './health.ts';
import type { RuleFile } from './rule.ts';

export function alertRules(configuration: Configuration = CONFIGURATION): RuleFile {
  const alerts = [...AGENT_ALERTS, ...GPU_ALERTS, ...HEALTH_ALERTS, ...CONTAINER_ALERTS, ...CONTROL_PLANE_ALERTS];
  return { groups: [{ name: 'cotenant', rules: alerts.map((alert) => alert(configuration)) }] };
}
