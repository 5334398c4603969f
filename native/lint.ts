// Format and lint of C and C++: clang-format and clang-tidy over every source that git knows, with the flags that the
// Makefile compiles it with. `node native/lint.ts [--fix]`; --fix rewrites what the tools can.
// The tools are wheels of fixed versions from the Python registry, as other versions format and report differently.
// A clean file is not checked again until it, a header of it, the flags or the settings change.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { cacheFolder, pythonEnvironment } from '../test/support/toolchains/venv.ts';

const TOOLS = ['clang-format==23.1.5', 'clang-tidy==23.1.4'];
const FOLDERS = ['native', 'test'];
const root = join(import.meta.dirname, '..');

type Finding = { readonly file: string; readonly text: string };

function stop(why: string): never {
  console.error(`C and C++ are NOT checked: ${why}`);
  process.exit(2);
}

function output(file: string, args: readonly string[]): string {
  const result = spawnSync(file, args, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 });
  if (result.status !== 0) stop(`${file} ${args.join(' ')}: ${result.error?.message ?? result.stderr.trim()}`);
  return result.stdout;
}

/** C and C++ files that git knows or would add, generated ones left out. */
function sources(): string[] {
  const known = output('git', ['ls-files', '--cached', '--others', '--exclude-standard', ...FOLDERS]).split('\n');
  return [...new Set(known)]
    .filter((file) => /\.(c|cc|h)$/.test(file) && !file.includes('/generated/') && existsSync(join(root, file)))
    .toSorted();
}

/** Source -> compiler flags about the language, taken from the Makefile so that the two cannot differ. */
function compileFlags(): Map<string, string[]> {
  const flags = new Map<string, string[]>();
  const plan = output('make', [
    '-C',
    'native',
    '--no-print-directory',
    '-Bn',
    'fuzz',
    'tests',
    'bench',
    'cluster',
    'build/launcher',
  ]);
  for (const line of plan.split('\n').filter((text) => /^(gcc|g\+\+) /.test(text))) {
    const words = line.split(/\s+/);
    const kept = words.flatMap((word, index) => {
      if (/^-(std=|D|I|W(?!error|l,)|fno-rtti)/.test(word)) return [word];
      return word === '-isystem' ? [word, words[index + 1] ?? ''] : [];
    });
    for (const word of words.filter((text) => /\.(c|cc)$/.test(text))) {
      flags.set(relative(root, join(root, 'native', word)), kept);
    }
  }
  return flags;
}

/** Runs a program; both output streams in one text. */
function run(file: string, args: readonly string[], cwd: string): Promise<{ ok: boolean; text: string }> {
  return new Promise((resolve) => {
    const child = spawn(file, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    const parts: Buffer[] = [];
    child.stdout.on('data', (part: Buffer) => parts.push(part));
    child.stderr.on('data', (part: Buffer) => parts.push(part));
    child.on('error', (error) => resolve({ ok: false, text: error.message }));
    child.on('close', (code) => resolve({ ok: code === 0, text: Buffer.concat(parts).toString() }));
  });
}

/** Hash of all that the result of a source depends on: its text, its headers, its flags, the settings above it. */
async function state(file: string, flags: readonly string[]): Promise<string> {
  const { ok, text } = await run('gcc', ['-MM', ...flags, join(root, file)], join(root, 'native'));
  if (!ok) stop(`${file} does not preprocess: ${text}`);
  const parts = text
    .replace(/^.*?:/s, '')
    .split(/[\s\\]+/)
    .filter((path) => path !== '');
  const hash = createHash('sha256').update([...TOOLS, ...flags, file].join('\n'));
  for (const part of parts) hash.update(readFileSync(join(part.startsWith('/') ? '/' : join(root, 'native'), part)));
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    const settings = join(root, folder, '.clang-tidy');
    if (existsSync(settings)) hash.update(readFileSync(settings));
    if (folder === '.') return hash.digest('hex');
  }
}

async function tidy(program: string, file: string, flags: readonly string[], fix: boolean): Promise<Finding[]> {
  const clean = join(cacheFolder(), 'lint', await state(file, flags));
  if (existsSync(clean)) return [];
  const args = ['--quiet', ...(fix ? ['--fix'] : []), join(root, file), '--', ...flags];
  const { ok, text } = await run(program, args, join(root, 'native'));
  if (!ok) return [{ file, text: text.replace(/^\d+ warnings? .*\n/gm, '') }];
  mkdirSync(dirname(clean), { recursive: true });
  writeFileSync(clean, '');
  return [];
}

/** Runs `work` on all items, `width` at a time. */
async function inParallel<T, R>(items: readonly T[], width: number, work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  const rest = items.entries();
  const worker = async () => {
    for (const [index, item] of rest) results[index] = await work(item);
  };
  await Promise.all(Array.from({ length: width }, worker));
  return results;
}

const fix = process.argv.includes('--fix');
const environment = pythonEnvironment(TOOLS);
if (!environment.ok) stop(`${TOOLS.join(' and ')} could not be installed: ${environment.reason}`);
const tool = (name: string) => join(environment.folder, 'bin', name);
const files = sources();
const flags = compileFlags();
const compiled = files.filter((file) => !file.endsWith('.h'));
const unknown = compiled.filter((file) => !flags.has(file));
if (files.length === 0) stop('git lists no sources');
if (unknown.length > 0) stop(`the Makefile does not compile ${unknown.join(', ')}`);

const mode = fix ? ['-i'] : ['--dry-run', '-Werror'];
const format = await run(tool('clang-format'), [...mode, ...files], root);
const width = fix ? 1 : availableParallelism(); // two processes must not fix one header at once
const findings = await inParallel(compiled, width, (file) =>
  tidy(tool('clang-tidy'), file, flags.get(file) ?? [], fix),
);
if (!format.ok) console.error(format.text.trim());
for (const { text } of findings.flat()) console.error(text.trim());
const failed = findings.flat().map((finding) => finding.file);
if (!format.ok) console.error('not formatted: node native/lint.ts --fix');
if (failed.length > 0) console.error(`findings in ${failed.join(', ')}`);
if (format.ok && failed.length === 0)
  console.log(`${files.length} files formatted, ${compiled.length} without findings`);
process.exit(format.ok && failed.length === 0 ? 0 : 1);
