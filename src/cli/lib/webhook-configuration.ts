// Reads the webhook's configuration from a file: settings in YAML or JSON, or the chart's ConfigMap that holds them.
import { readFileSync } from 'node:fs';
import { parse as parseYaml } from 'yaml';
import { parseConfiguration, type WebhookConfiguration } from '../../../webhook/config.ts';
import { RULES_KEY } from '../../../webhook/live-rules.ts';
import { field, textAt } from '../../common/json.ts';
import { formatProblem } from '../../common/problem.ts';
import { UsageError } from './command.ts';

/** The text of a file, or of standard input for `-`. */
export function readText(path: string): string {
  try {
    return readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (error) {
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
}

export function readConfiguration(path: string): WebhookConfiguration {
  return configurationOf(readSettings(path), path);
}

/** The settings of a file as they are written, or of a ConfigMap: the chart's, or one of live rules. */
export function readSettings(path: string): unknown {
  try {
    const settings: unknown = parseYaml(readText(path));
    if (textAt(settings, 'kind') !== 'ConfigMap') return settings;
    const data = field(settings, 'data');
    const inside = textAt(data, 'configuration.yaml') ?? textAt(data, RULES_KEY);
    return inside === undefined ? settings : parseYaml(inside);
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
