// Python packages in a virtual environment in the cache, keyed by its contents. Never throws: if they cannot be
// installed, the result is a reason.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { homedir } from 'node:os';
import { basename, join } from 'node:path';

export const cacheFolder = (): string =>
  process.env.COTENANT_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'cotenant');

export type PythonEnvironment =
  | { readonly ok: true; readonly folder: string }
  | { readonly ok: false; readonly reason: string };

/** Installs `packages` (pinned: `name==version`) once for this Python; later calls cost one start of Python. */
export function pythonEnvironment(packages: readonly string[]): PythonEnvironment {
  const version = spawnSync('python3', ['-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], {
    encoding: 'utf8',
  });
  if (version.status !== 0) return { ok: false, reason: 'python3 is not installed' };
  const key = createHash('sha256')
    .update(`${version.stdout}${packages.join('\n')}`)
    .digest('hex')
    .slice(0, 16);
  const folder = join(cacheFolder(), `python-${key}`);
  if (existsSync(folder)) return { ok: true, folder };
  rmSync(folder, { force: true }); // a link whose target is gone
  console.error(`installing ${packages.join(', ')} into ${folder}`);
  const fresh = `${folder}.${process.pid}`;
  mkdirSync(cacheFolder(), { recursive: true });
  const made = spawnSync('python3', ['-m', 'venv', '--copies', fresh], { encoding: 'utf8' });
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check'];
  const installed =
    made.status === 0 ? spawnSync(join(fresh, 'bin/python'), [...pip, ...packages], { encoding: 'utf8' }) : made;
  if (installed.status !== 0) {
    rmSync(fresh, { recursive: true, force: true });
    return {
      ok: false,
      reason: `${installed.stdout ?? ''}${installed.stderr ?? ''}`.trim().split('\n').at(-1) ?? '',
    };
  }
  // A link rather than a rename: programs in bin/ name their interpreter by its full path.
  try {
    symlinkSync(basename(fresh), folder);
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true });
    // Another process was faster; its copy is as good.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') return { ok: false, reason: String(error) };
  }
  return { ok: true, folder };
}
