// Writes what the chart's templates must know of the source, which helm cannot read: `node charts/generate.ts`; with
// --check reports a file that is out of date. Today that is each dialect's resource names, for the API server's match
// conditions.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { FOREIGN_DIALECTS } from '../src/request/dialects/index.ts';

const FILE = join(import.meta.dirname, 'cotenant/dialects.json');

/** One dialect in the layout of this repository's formatter: on one line, if that has at most 120 columns with its comma. */
function row({ name, resources }: (typeof FOREIGN_DIALECTS)[number]): string {
  const names = resources.map((resource) => JSON.stringify(resource));
  const line = `  "${name}": [${names.join(', ')}]`;
  return line.length < 120 ? line : `  "${name}": [\n    ${names.join(',\n    ')}\n  ]`;
}

export const dialectsFile = (): string => `{\n${FOREIGN_DIALECTS.map(row).join(',\n')}\n}\n`;

if (import.meta.main) {
  if (!process.argv.includes('--check')) writeFileSync(FILE, dialectsFile());
  else if (readFileSync(FILE, 'utf8') !== dialectsFile()) {
    console.error('charts/cotenant/dialects.json is out of date; run: npm run generate');
    process.exitCode = 1;
  }
}
