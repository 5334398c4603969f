// Writes boards and rules to dashboards/output and to the chart, which cannot read files outside of its folder:
// `node dashboards/generate.ts`; with --check reports files that are out of date.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { stringify } from 'yaml';
import { alertRules } from './alerts/rules.ts';
import { boards } from './boards.ts';
import { recordingRules } from './recording.ts';

const ROOT = join(import.meta.dirname, '..');
const FOLDERS: readonly string[] = ['dashboards/output', 'charts/cotenant/files'];
const WIDTH = 120;
const note = (source: string) =>
  `# Written by dashboards/generate.ts from dashboards/${source}; changes here are lost.\n`;

/** Every generated file, by its path from the root of the repository. */
export function generatedFiles(): ReadonlyMap<string, string> {
  const contents = [
    // There and back, because the builders leave functions in what they build.
    ...[...boards()].map(
      ([name, board]) => [`${name}.json`, `${toJson(JSON.parse(JSON.stringify(board)))}\n`] as const,
    ),
    ['alerts.yaml', note('alerts/rules.ts') + stringify(alertRules(), { lineWidth: 0 })],
    ['recording.yaml', note('recording.ts') + stringify(recordingRules(), { lineWidth: 0 })],
  ] as const;
  return new Map(FOLDERS.flatMap((folder) => contents.map(([name, text]) => [`${folder}/${name}`, text] as const)));
}

/** Files that differ from what they should be, and files in the same folders that nothing generates. */
export function staleFiles(root: string): readonly string[] {
  const files = generatedFiles();
  const wrong = [...files].filter(([path, text]) => readOrNothing(join(root, path)) !== text).map(([path]) => path);
  const extra = FOLDERS.flatMap((folder) => listOrNothing(join(root, folder)).map((name) => `${folder}/${name}`));
  return [...wrong, ...extra.filter((path) => !files.has(path))];
}

/** JSON in the layout of this repository's formatter: objects open, lists of plain values on one line where they fit. */
function toJson(value: unknown, indent = '', column = 0): string {
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    const items = value.map((item) => toJson(item, inner, inner.length));
    const flat = `[${items.join(', ')}]`;
    const plain = value.every((item) => typeof item !== 'object' || item === null);
    // One more for the comma behind it.
    if (items.length === 0 || (plain && column + flat.length + 1 <= WIDTH)) return flat;
    return `[\n${items.map((item) => inner + item).join(',\n')}\n${indent}]`;
  }
  if (typeof value === 'object' && value !== null) {
    const lines = Object.entries(value).map(([key, entry]) => {
      const start = `${inner}${JSON.stringify(key)}: `;
      return start + toJson(entry, inner, start.length);
    });
    return lines.length === 0 ? '{}' : `{\n${lines.join(',\n')}\n${indent}}`;
  }
  return JSON.stringify(value);
}

function readOrNothing(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

function listOrNothing(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function main(args: readonly string[]): number {
  if (args.includes('--check')) {
    const stale = staleFiles(ROOT);
    for (const path of stale) console.error(`${path} is not what dashboards/generate.ts writes; run it`);
    return stale.length === 0 ? 0 : 1;
  }
  for (const [path, text] of generatedFiles()) {
    mkdirSync(dirname(join(ROOT, path)), { recursive: true });
    writeFileSync(join(ROOT, path), text);
    console.log(`wrote ${relative(process.cwd(), join(ROOT, path))}`);
  }
  return 0;
}

if (import.meta.main) process.exitCode = main(process.argv.slice(2));
