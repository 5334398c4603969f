// containerd, runc, etcd, CNI plugins and busybox out of Debian's packages: downloaded and unpacked into the cache, nothing is
// installed. Owns where each comes from; a machine that is no Debian, or cannot reach its mirror, is a reason.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from '../../support/venv.ts';

/** From the suite: the release that this machine runs ("own"), or sid, whose Go programs run on older releases as they are. */
const PACKAGES: readonly { readonly name: string; readonly from: 'own' | 'sid' }[] = [
  { name: 'containerd', from: 'sid' },
  { name: 'etcd-server', from: 'sid' },
  { name: 'etcd-client', from: 'sid' },
  // Newer ones want a newer C library.
  { name: 'runc', from: 'own' },
  { name: 'containernetworking-plugins', from: 'own' },
  { name: 'busybox-static', from: 'own' },
];

const key = createHash('sha256').update(JSON.stringify(PACKAGES)).digest('hex').slice(0, 12);
/** Folder of the unpacked packages; they are there if it is. */
export const packagesHome = (): string => join(cacheFolder(), `bed-packages-${key}`);

export type Packages =
  | { readonly ok: true; readonly root: string; readonly versions: Readonly<Record<string, string>> }
  | { readonly ok: false; readonly reason: string };

export function debianPackages(say: (line: string) => void): Packages {
  const home = packagesHome();
  const listed = join(home, 'versions.json');
  if (!existsSync(home)) {
    const wrong = fetchAll(home, say);
    if (wrong !== undefined) return { ok: false, reason: wrong };
  }
  return { ok: true, root: join(home, 'root'), versions: JSON.parse(readFileSync(listed, 'utf8')) };
}

/** The mirror and keyring that this machine's own apt uses, in either of the two forms of its lists. */
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

function fetchAll(home: string, say: (line: string) => void): string | undefined {
  const from = mirror();
  if (from === undefined) return 'this is no Debian with an archive that its apt knows';
  const fresh = `${home}.${process.pid}`;
  const [lists, cache, debs, root] = ['lists', 'cache', 'debs', 'root'].map((name) => join(fresh, name));
  for (const path of [`${lists}/partial`, `${cache}/archives/partial`, debs, root]) {
    mkdirSync(path ?? '', { recursive: true });
  }
  const suites = { own: from.suite, sid: 'sid' };
  const sources = Object.values(suites).map((suite) => `deb [signed-by=${from.keyring}] ${from.uri} ${suite} main\n`);
  writeFileSync(join(fresh, 'sources.list'), sources.join(''));
  const apt = (...words: string[]) =>
    spawnSync(
      'apt-get',
      [
        '-qq',
        ...[`Dir::State::lists=${lists}`, `Dir::Cache=${cache}`, `Dir::Etc::sourcelist=${fresh}/sources.list`].flatMap(
          (option) => ['-o', option],
        ),
        ...['Dir::Etc::sourceparts=/dev/null', 'APT::Sandbox::User=root'].flatMap((option) => ['-o', option]),
        ...words,
      ],
      { cwd: debs, encoding: 'utf8' },
    );
  try {
    say(`fetching ${PACKAGES.map(({ name }) => name).join(', ')} from Debian`);
    const asked = [['update'], ['download', ...PACKAGES.map(({ name, from: suite }) => `${name}/${suites[suite]}`)]];
    for (const words of asked) {
      const { status, stderr } = apt(...words);
      if (status !== 0) return `apt-get ${words[0]} failed: ${stderr.trim().split('\n').at(-1) ?? ''}`;
    }
    const versions: Record<string, string> = {};
    for (const file of readdirSync(debs ?? '')) {
      const { status, stderr } = spawnSync('dpkg', ['-x', file, root ?? ''], { cwd: debs, encoding: 'utf8' });
      if (status !== 0) return `${file} cannot be unpacked: ${stderr.trim()}`;
      const [name = '', version = ''] = file.split('_');
      versions[name] = decodeURIComponent(version);
    }
    writeFileSync(join(fresh, 'versions.json'), `${JSON.stringify(versions, null, 2)}\n`);
    for (const path of [lists, cache, debs]) rmSync(path ?? '', { recursive: true });
    if (!existsSync(home)) renameSync(fresh, home);
    return undefined;
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
}
