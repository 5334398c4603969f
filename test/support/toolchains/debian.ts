// Debian packages without installation: downloaded by this machine's apt and unpacked into the cache folder. On a
// machine that is not Debian or cannot reach its mirror, the result is a reason.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from './venv.ts';

export type Wanted = {
  readonly name: string;
  /** The suite: the release of this machine ("own"), or sid, whose Go programs also run on older releases. */
  readonly from: 'own' | 'sid';
  /** needs: with the libraries and files that it needs and this machine lacks. meta: the package it depends on, instead
   * of it. */
  readonly as?: 'needs' | 'meta';
};

export type Packages =
  | {
      readonly ok: true;
      readonly root: string;
      /** Version by the package's name. */
      readonly versions: Readonly<Record<string, string>>;
    }
  | { readonly ok: false; readonly reason: string };

/** Folder of the unpacked packages; if it exists it is complete. */
export function packagesFolder(name: string, wanted: readonly Wanted[]): string {
  const key = createHash('sha256').update(JSON.stringify(wanted)).digest('hex').slice(0, 12);
  return join(cacheFolder(), `${name}-${key}`);
}

export function debianPackages(home: string, wanted: readonly Wanted[], say: (line: string) => void): Packages {
  if (!existsSync(home)) {
    const wrong = fetchAll(home, wanted, say);
    if (wrong !== undefined) return { ok: false, reason: wrong };
  }
  const versions = JSON.parse(readFileSync(join(home, 'versions.json'), 'utf8')) as Record<string, string>;
  return { ok: true, root: join(home, 'root'), versions };
}

/** The mirror and keyring of this machine's apt, from either format of its source lists. */
function mirror(): { uri: string; keyring: string; suite: string } | undefined {
  const folder = '/etc/apt/sources.list.d';
  const files = [
    '/etc/apt/sources.list',
    ...(existsSync(folder) ? readdirSync(folder).map((name) => join(folder, name)) : []),
  ].filter((path) => existsSync(path));
  const text = files.map((path) => readFileSync(path, 'utf8')).join('\n');
  const uri = /^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s*)?)(\S+\/debian\/?)(?:\s|$)/m.exec(text)?.[1];
  const release = existsSync('/etc/os-release') ? readFileSync('/etc/os-release', 'utf8') : '';
  const suite = /^VERSION_CODENAME=(\S+)$/m.exec(release)?.[1];
  const keyring = '/usr/share/keyrings/debian-archive-keyring.gpg';
  return uri === undefined || suite === undefined || !existsSync(keyring) ? undefined : { uri, suite, keyring };
}

class Failed extends Error {}

function fetchAll(home: string, wanted: readonly Wanted[], say: (line: string) => void): string | undefined {
  const from = mirror();
  if (from === undefined) return 'this is no Debian with an archive that its apt knows';
  const fresh = `${home}.${process.pid}`;
  const at = (name: string) => join(fresh, name);
  const [lists, cache, debs, root] = [at('lists'), at('cache'), at('cache/archives'), at('root')];
  for (const path of [`${lists}/partial`, `${debs}/partial`, root]) mkdirSync(path, { recursive: true });
  const suites = { own: from.suite, sid: 'sid' };
  // Only from the requested suite: dependencies would come from the newest one.
  const sources = [...new Set(wanted.map((one) => suites[one.from]))];
  writeFileSync(
    at('sources.list'),
    sources.map((suite) => `deb [signed-by=${from.keyring}] ${from.uri} ${suite} main\n`).join(''),
  );
  const settings = [
    `Dir::State::lists=${lists}`,
    `Dir::Cache=${cache}`,
    `Dir::Etc::sourcelist=${at('sources.list')}`,
    'Dir::Etc::sourceparts=/dev/null',
    'APT::Sandbox::User=root',
    'Debug::NoLocking=1', // nothing of the machine is changed
  ].flatMap((option) => ['-o', option]);
  const run = (program: string, ...args: string[]): string => {
    const { status, stdout, stderr } = spawnSync(program, [...settings, ...args], { cwd: debs, encoding: 'utf8' });
    if (status !== 0) throw new Failed(`${program} ${args[0]} failed: ${stderr.trim().split('\n').at(-1) ?? ''}`);
    return stdout;
  };
  /** Name of the first dependency, as in "  Depends: linux-image-6.1.0-50-cloud-amd64". */
  const standsFor = (name: string): string => {
    const real = /^\s+Depends: (\S+)$/m.exec(run('apt-cache', 'depends', name))?.[1];
    if (real === undefined) throw new Failed(`${name} stands for no other package`);
    return real;
  };
  try {
    say(`fetching ${wanted.map(({ name }) => name).join(', ')} from Debian`);
    run('apt-get', '-qq', 'update');
    for (const { name, from: suite, as } of wanted) {
      const named = `${as === 'meta' ? standsFor(name) : name}/${suites[suite]}`;
      const alone = ['download', named];
      const withNeeds = ['-y', '--no-install-recommends', '--reinstall', '--download-only', 'install', named];
      run('apt-get', '-qq', ...(as === 'needs' ? withNeeds : alone));
    }
    const versions: Record<string, string> = {};
    for (const file of readdirSync(debs).filter((name) => name.endsWith('.deb'))) {
      const { status, stderr } = spawnSync('dpkg', ['-x', file, root], { cwd: debs, encoding: 'utf8' });
      if (status !== 0) return `${file} cannot be unpacked: ${stderr.trim()}`;
      const [name = '', version = ''] = file.split('_');
      versions[name] = decodeURIComponent(version);
    }
    writeFileSync(at('versions.json'), `${JSON.stringify(versions, null, 2)}\n`);
    for (const path of [lists, cache]) rmSync(path, { recursive: true });
    if (!existsSync(home)) renameSync(fresh, home);
    return undefined;
  } catch (error) {
    if (error instanceof Failed) return error.message;
    throw error;
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
}
