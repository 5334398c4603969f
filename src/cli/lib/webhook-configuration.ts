// Reads the webhook's configuration from a file: settings in YAML or JSON, or the chart's ConfigMap that holds them.
import { parse as parseYaml } from 'yaml';
import { parseConfiguration, type WebhookConfiguration } from '../../../webhook/config.ts';
import { RULES_KEY } from '../../../webhook/live-rules.ts';
import { field, textAt } from '../../common/json.ts';
import { formatProblem } from '../../common/problem.ts';
import { UsageError } from './command.ts';
import { readYaml } from './yaml.ts';

const SETTINGS_KEY = 'configuration.yaml';

export function readConfiguration(path: string): WebhookConfiguration {
  return configurationOf(readSettings(path), path);
}

/** The settings of a file as they are written, in the chart's values, or in a ConfigMap: the chart's, or one of live rules. */
export function readSettings(path: string): unknown {
  try {
    const [settings, other] = readYaml(path);
    if (other !== undefined) throw new UsageError(`${path}: has several documents; want one, with the settings`);
    if (textAt(settings, 'kind') !== 'ConfigMap') return field(field(settings, 'webhook'), 'configuration') ?? settings;
    const data = field(settings, 'data');
    const inside = textAt(data, SETTINGS_KEY) ?? textAt(data, RULES_KEY);
    if (inside === undefined)
      throw new UsageError(`${path}: the ConfigMap has no settings: want the key ${SETTINGS_KEY} or ${RULES_KEY}`);
    return parseYaml(inside);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
}

/** `path`: where the settings are from, for the message of a fault. */
export function configurationOf(settings: unknown, path: string): WebhookConfiguration {
  const read = parseConfiguration(settings);
  if (!read.ok) throw new UsageError(`${path}:\n  ${read.error.map(formatProblem).join('\n  ')}`);
  return read.value;
}
