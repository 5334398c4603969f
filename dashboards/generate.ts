// Writes boards and rules to dashboards/output and to the chart, which cannot read files outside of its folder:
// `node dashboards/generate.ts`; with --check reports files that are out of date.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { stringify } from 'yaml';
import { alertmanagerConfig } from './alerts/alertmanager.ts';
import { alertRules } from './alerts/rules.ts';
import { BOARDS } from './boards.ts';
import { recordingRules } from './recording.ts';

const ROOT = join(import.meta.dirname, '..');
const FOLDERS: readonly string[] = ['dashboards/output', 'charts/cotenant/files'];
const note = (source: string) =>
  `# Written by dashboards/generate.ts from dashboards/${source}; changes here are lost.\n`;

/** Every generated file, by its path from the root of the repository. */
export function generatedFiles(): ReadonlyMap<string, string> {
  const contents = [
    ...[...BOARDS].map(([name, board]) => [`${name}.json`, `${JSON.stringify(board, null, 2)}\n`] as const),
    ['alerts.yaml', note('alerts/rules.ts') + stringify(alertRules(), { lineWidth: 0 })],
    ['alertmanager-config.yaml', note('alerts/alertmanager.ts') + stringify(alertmanagerConfig(), { lineWidth: 0 })],
    ['recording.yaml', note('recording.ts') + stringify(recordingRules(), { lineWidth: 0 })],
  ] as const;
  return new Map(FOLDERS.flatMap((folder) => contents.map(([name, text]) => [`${folder}/${name}`, text] as const)));
}

const contentOf = (path: string) => (existsSync(path) ? readFileSync(path, 'utf8') : undefined);
const namesIn = (folder: string) => (existsSync(folder) ? readdirSync(folder) : []);

/** Files that differ from what they should be, and files in the same folders that nothing generates. */
export function staleFiles(root: string): readonly string[] {
  const files = generatedFiles();
  const wrong = [...files].filter(([path, text]) => contentOf(join(root, path)) !== text).map(([path]) => path);
  const extra = FOLDERS.flatMap((folder) => namesIn(join(root, folder)).map((name) => `${folder}/${name}`));
  return [...wrong, ...extra.filter((path) => !files.has(path))];
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
