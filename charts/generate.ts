// Writes what the chart's templates must know of the source, which helm cannot read: `node charts/generate.ts`; with
// --check reports a file that is out of date. Today that is each dialect's names of resources, and of annotations and
// labels that ask for a GPU, for the API server's match conditions, and the Deployments that show that its system is alive.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';

const FILE = join(import.meta.dirname, 'cotenant/dialects.json');

/** One dialect in the layout of this repository's formatter: on one line, if that has at most 120 columns with its comma. */
function row([name, all]: readonly [name: string, all: readonly string[]]): string {
  const names = all.map((one) => JSON.stringify(one));
  const line = `    "${name}": [${names.join(', ')}]`;
  return line.length < 120 ? line : `    "${name}": [\n      ${names.join(',\n      ')}\n    ]`;
}

const part = (name: string, rows: readonly (readonly [string, readonly string[]])[]): string =>
  `  "${name}": {\n${rows.map(row).join(',\n')}\n  }`;

export function dialectsFile(): string {
  const resources = FOREIGN_DIALECTS.map(({ name, resources: all }) => [name, all] as const);
  const keys = FOREIGN_DIALECTS.map(({ name, podKeys = [] }) => [name, podKeys] as const);
  const deployments = FOREIGN_DIALECTS.map(({ name, signs }) => [name, signs?.deployments ?? []] as const);
  return `{\n${part('resources', resources)},\n${part('podKeys', keys)},\n${part('deployments', deployments)}\n}\n`;
}

if (import.meta.main) {
  if (!process.argv.includes('--check')) writeFileSync(FILE, dialectsFile());
  else if (readFileSync(FILE, 'utf8') !== dialectsFile()) {
    console.error('charts/cotenant/dialects.json is out of date; run: npm run generate');
    process.exitCode = 1;
  }
}
