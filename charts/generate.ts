// Writes what the chart must know of the source, which helm cannot read: `node charts/generate.ts`; with --check
// reports a file that is out of date. That is each dialect's names of resources, and of annotations and labels that ask
// for a GPU, for the API server's match conditions, and the Deployments that show that its system is alive; and what
// values.schema.json says of the programs' settings.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';
import { type Json, programDefinitions } from './values-schema.ts';

const CHART = join(import.meta.dirname, 'cotenant');

type Row = readonly [name: string, all: readonly string[]];

/** One dialect in the layout of this repository's formatter: on one line, if that has at most 120 columns with its comma. */
function row([name, all]: Row, index: number, rows: readonly Row[]): string {
  const names = all.map((one) => JSON.stringify(one));
  const line = `    "${name}": [${names.join(', ')}]`;
  const comma = index < rows.length - 1 ? 1 : 0;
  return line.length + comma <= 120 ? line : `    "${name}": [\n      ${names.join(',\n      ')}\n    ]`;
}

const part = (name: string, rows: readonly Row[]): string => `  "${name}": {\n${rows.map(row).join(',\n')}\n  }`;

export function dialectsFile(): string {
  const resources = FOREIGN_DIALECTS.map(({ name, resources: all }) => [name, all] as const);
  const keys = FOREIGN_DIALECTS.map(({ name, podKeys = [] }) => [name, podKeys] as const);
  const deployments = FOREIGN_DIALECTS.map(({ name, signs }) => [name, signs?.deployments ?? []] as const);
  return `{\n${part('resources', resources)},\n${part('podKeys', keys)},\n${part('deployments', deployments)}\n}\n`;
}

/** The file as it is, with the definitions of the programs' settings as they are now. */
function valuesSchemaFile(before: string): string {
  const schema = JSON.parse(before) as { readonly definitions: Json };
  const definitions = { ...schema.definitions, ...programDefinitions() };
  return `${JSON.stringify({ ...schema, definitions }, null, 2)}\n`;
}

if (import.meta.main) {
  const files = { 'dialects.json': dialectsFile, 'values.schema.json': valuesSchemaFile };
  for (const [name, contentAfter] of Object.entries(files)) {
    const path = join(CHART, name);
    const before = readFileSync(path, 'utf8');
    const content = contentAfter(before);
    if (!process.argv.includes('--check')) writeFileSync(path, content);
    else if (before !== content) {
      console.error(`charts/cotenant/${name} is out of date; run: npm run generate`);
      process.exitCode = 1;
    }
  }
}
