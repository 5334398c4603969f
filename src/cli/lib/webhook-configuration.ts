// Reads the webhook's configuration from a file: settings in YAML or JSON, or the chart's ConfigMap that holds them.
import { readFileSync } from 'node:fs';
import { parse as parseYaml } from 'yaml';
import { parseConfiguration, type WebhookConfiguration } from '../../../webhook/config.ts';
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
  let settings: unknown;
  try {
    settings = parseYaml(readText(path));
    const inside =
      textAt(settings, 'kind') === 'ConfigMap' ? textAt(field(settings, 'data'), 'configuration.yaml') : undefined;
    if (inside !== undefined) settings = parseYaml(inside);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
  const read = parseConfiguration(settings);
  if (!read.ok) throw new UsageError(`${path}:\n  ${read.error.map(formatProblem).join('\n  ')}`);
  return read.value;
}
