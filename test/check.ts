// `npm run check`: types, format and lint of TypeScript and C/C++, and whether generated files are up to date.
// Owns the list of checks; each one runs even when an earlier one failed, so that one run shows everything.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

const root = join(import.meta.dirname, '..');
const CHECKS: { name: string; command: string[] }[] = [
  { name: 'types', command: ['tsc'] },
  { name: 'format and lint (TypeScript, JSON)', command: ['biome', 'check', '--error-on-warnings', '.'] },
  { name: 'order of folders in imports', command: ['node', 'test/imports/check.ts'] },
  { name: 'generated tables and page of entry points', command: ['node', 'native/abi/generate.ts', '--check'] },
  { name: 'generated board and rules', command: ['node', 'dashboards/generate.ts', '--check'] },
  { name: 'generated parts of the chart', command: ['node', 'charts/generate.ts', '--check'] },
  { name: 'format and lint (C, C++)', command: ['node', 'native/lint.ts'] },
  { name: 'circles between C files and folders', command: ['node', 'native/circles.ts'] },
];

const failed: string[] = [];
for (const { name, command } of CHECKS) {
  const [file = '', ...args] = command;
  const result = spawnSync(file, args, { cwd: root, stdio: 'inherit' });
  const ok = result.status === 0;
  console.log(`${ok ? 'ok' : 'FAILED'}: ${name}`);
  if (!ok) failed.push(name);
}
console.log(failed.length === 0 ? 'all checks passed' : `failed: ${failed.join('; ')}`);
process.exit(failed.length === 0 ? 0 : 1);
