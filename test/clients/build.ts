// Builds programs in other languages with this machine's tools, into the cache and keyed by source and compiler. Never
// throws: if a program cannot be built here, the result is a reason, and the tests that need it are skipped with it.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from '../support/toolchains/venv.ts';

export type Built = { readonly ok: true; readonly folder: string } | { readonly ok: false; readonly reason: string };

export type Recipe = {
  /** Folder below programs/. */
  readonly source: string;
  /** Prints the version of the compiler. */
  readonly version: readonly string[];
  /** Run in order in a copy of the sources; OUT is the folder for the results. */
  readonly steps: (out: string) => readonly { readonly command: readonly string[]; readonly env?: NodeJS.ProcessEnv }[];
};

export function built({ source, version, steps }: Recipe): Built {
  const [tool = '', ...argv] = version;
  const result = spawnSync(tool, argv, { encoding: 'utf8' });
  if (result.status !== 0) return { ok: false, reason: `${tool} is not installed` };
  const from = join(import.meta.dirname, 'programs', source);
  const folder = join(
    cacheFolder(),
    `client-${source.replaceAll('/', '-')}-${keyOf(from, result.stdout + result.stderr)}`,
  );
  if (existsSync(folder)) return { ok: true, folder };
  mkdirSync(cacheFolder(), { recursive: true });
  const fresh = mkdtempSync(`${folder}.`);
  const [work, out] = [join(fresh, 'work'), join(fresh, 'out')];
  cpSync(from, work, { recursive: true });
  mkdirSync(out);
  try {
    for (const { command, env } of steps(out)) {
      const [file = '', ...args] = command;
      const { status, stderr, error } = spawnSync(file, args, {
        cwd: work,
        env: { ...process.env, ...env },
        encoding: 'utf8',
      });
      if (status !== 0) {
        return {
          ok: false,
          reason: `${command.slice(0, 2).join(' ')}: ${(stderr ?? String(error)).trim().slice(-400)}`,
        };
      }
    }
    try {
      renameSync(out, folder);
    } catch (error) {
      if (!existsSync(folder)) throw error; // another process was faster; its copy is as good
    }
    return { ok: true, folder };
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
}

function keyOf(folder: string, version: string): string {
  const hash = createHash('sha256').update(version);
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  for (const path of files.map((entry) => join(entry.parentPath, entry.name)).sort()) {
    hash.update(path.slice(folder.length)).update(readFileSync(path));
  }
  return hash.digest('hex').slice(0, 12);
}
