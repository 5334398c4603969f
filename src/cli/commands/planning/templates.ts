// `cotenant templates`: the sizes that pods may name, by namespace, from the webhook's settings.

import { rulesOf } from '../../../../webhook/config.ts';
import type { Template } from '../../../request/rules/namespace-rules.ts';
import { type Command, text, UsageError } from '../../lib/command.ts';
import { OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { readConfiguration } from '../../lib/webhook-configuration.ts';
import { namespaceOption } from '../../options/target.ts';

const HEAD = ['TEMPLATE', 'GPUS', 'MEMORY', 'CORES'] as const;

export const templates: Command = {
  name: 'templates',
  summary: 'Lists the templates that pods of a namespace may name, with their sizes.',
  usage: '--config FILE [-n NAMESPACE] [-o table|json|yaml]',
  options: {
    ...OUTPUT_OPTIONS,
    config: {
      short: 'c',
      value: 'FILE',
      help: "the webhook's settings, or the chart's values or ConfigMap; - is standard input",
    },
    namespace: namespaceOption('whose templates to list (default: those of the cluster)'),
  },
  async run(parsed) {
    const file = text(parsed, 'config');
    if (file === undefined) throw new UsageError('want --config FILE, such as the ConfigMap of the webhook');
    const known = rulesOf(readConfiguration(file), text(parsed, 'namespace')).templates;
    await print(parsed, Object.fromEntries(known), () => templateLines(known));
    return 0;
  },
};

export function templateLines(known: ReadonlyMap<string, Template>): readonly string[] {
  if (known.size === 0) return ['no templates are configured'];
  const rows = [...known].map(([name, { gpu = '1', gpuMemory = 'all', gpuCores = '-' }]) => [
    name,
    gpu,
    gpuMemory,
    gpuCores,
  ]);
  const all = [[...HEAD], ...rows];
  const widths = HEAD.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  return all.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join('  ')
      .trimEnd(),
  );
}
