// Reads the CDI specifications in the folders of the container runtimes, and writes the agent's own.
import { existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { err, type Result } from '../../../common/result.ts';
import { replaceFile } from '../../../common/state-file.ts';
import { type CdiSpec, type Found, readSpec } from './spec.ts';

const require = createRequire(import.meta.url);

/** The agent's file for pods, in the last folder. CDI readers read only files that end in .json or .yaml. */
export const OWN_FILE = 'cotenant.io-gpu.json';
/** That of containers without a pod. */
export const SLICE_FILE = 'cotenant.io-slice.json';
const OWN_FILES: readonly string[] = [OWN_FILE, SLICE_FILE];
/** A specification of eight GPUs has some 50 KB. */
const MOST_BYTES = 4 * 2 ** 20;

/** Replaces the agent's file of that name, or removes it. Throws if the folder cannot be written. */
export function writeSpecification(folder: string, name: string, spec: CdiSpec | undefined): void {
  const path = join(folder, name);
  if (!spec) {
    rmSync(path, { force: true });
    return;
  }
  const text = `${JSON.stringify(spec, null, 1)}\n`;
  if (existsSync(path) && readFileSync(path, 'utf8') === text) return;
  // Podman and Docker's client read it as any user.
  replaceFile(path, text, { mode: 0o644, sync: false, temporary: join(folder, `.${name}.new`) });
}

const isSpecification = (name: string) => name.endsWith('.json') || name.endsWith('.yaml');

/** Empty without such a folder. Throws where the folder cannot be read: its content is unknown then. */
function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder).filter(isSpecification).toSorted();
  } catch (error) {
    if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') return [];
    throw error;
  }
}

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? String(error);
/** Reading a pipe blocks, and a device may have no end. */
const statOf = (path: string) => {
  const found = statSync(path);
  return { size: found.size, isFile: found.isFile() };
};

/** Identifies a file and its content: another text after each change. */
export function signature(path: string): string {
  try {
    const { ino, size, mtimeMs, ctimeMs } = statSync(path);
    return `${path} ${ino} ${size} ${mtimeMs} ${ctimeMs}\n`;
  } catch (error) {
    return `${path} ${codeOf(error)}\n`; // a link that leads nowhere, or in a circle
  }
}
export const signatureOf = (folders: readonly string[]): string =>
  sourcesIn(folders)
    .map(({ path }) => signature(path))
    .join('');

/** All specifications except the agent's own. */
const sourcesIn = (folders: readonly string[]) =>
  folders.flatMap((folder, index) =>
    namesIn(folder).flatMap((name) => (OWN_FILES.includes(name) ? [] : [{ path: join(folder, name), folder: index }])),
  );

type Unreadable = { readonly path: string; readonly wrong: string };

export function specificationsIn(folders: readonly string[]): {
  found: readonly Found[];
  unreadable: readonly Unreadable[];
} {
  const found: Found[] = [];
  const unreadable: Unreadable[] = [];
  for (const { path, folder } of sourcesIn(folders)) {
    const spec = readFile(path);
    if (spec.ok) found.push({ path, folder, spec: spec.value });
    else unreadable.push({ path, wrong: spec.error });
  }
  return { found, unreadable };
}

function readFile(path: string): Result<CdiSpec> {
  try {
    const { size, isFile } = statOf(path);
    if (!isFile) return err('it is no file');
    if (size > MOST_BYTES) return err(`it has more than ${MOST_BYTES} bytes`);
    const text = readFileSync(path, 'utf8');
    return readSpec(path.endsWith('.json') ? JSON.parse(text) : parseYaml(text));
  } catch (error) {
    return err((error as Error).message.split('\n')[0] ?? '');
  }
}

/** As CDI's readers do, by YAML 1.1: 0660 is octal there. The parser is loaded only for such a file. */
function parseYaml(text: string): unknown {
  const { parse } = require('yaml') as typeof import('yaml');
  return parse(text, { version: '1.1' });
}
