// nerdctl, which is not in Debian 12, built from its Go module, on a containerd of Debian's packages.
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { buildGo, type Programs } from '../toolchains/go-programs.ts';
import { cacheFolder } from '../toolchains/venv.ts';
import { dockerPackages, environmentOf, IMAGE, runner, type TestEngine, writeProgram } from './engines.ts';
import type { TestImage } from './image.ts';

const PATH = 'github.com/containerd/nerdctl/v2';
const VERSION = '2.2.1';

/** The module's source without one file of its own tests, which needs a module that is in the repository only. */
function source(into: string): string {
  const found = execFileSync('go', ['mod', 'download', '-json', `${PATH}@v${VERSION}`], { encoding: 'utf8' });
  cpSync((JSON.parse(found) as { Dir: string }).Dir, into, { recursive: true });
  execFileSync('chmod', ['-R', 'u+w', into]);
  rmSync(join(into, 'cmd/nerdctl/helpers/testing_linux.go'));
  mkdirSync(join(into, 'mod/tigron'), { recursive: true });
  writeFileSync(join(into, 'mod/tigron/go.mod'), 'module github.com/containerd/nerdctl/mod/tigron\n\ngo 1.24.0\n');
  return into;
}

/** nerdctl and the root of the packages with containerd; or why they are not here. */
export function nerdctl(): { ok: true; program: string; root: string } | { ok: false; reason: string } {
  const packages = dockerPackages();
  if (!packages.ok) return packages;
  const folder = mkdtempSync(join(tmpdir(), 'ct-nerdctl-'));
  const built: Programs = buildGo(
    {
      home: join(cacheFolder(), `nerdctl-${VERSION}-${process.arch}`),
      folder: () => source(join(folder, 'source')),
      path: PATH,
      version: VERSION,
      packages: ['./cmd/nerdctl'],
      flags: [`-X ${PATH}/pkg/version.Version=v${VERSION}`],
    },
    (line) => console.error(line),
  );
  rmSync(folder, { recursive: true, force: true });
  return built.ok ? { ok: true, program: join(built.bin, 'nerdctl'), root: packages.root } : built;
}

/** nerdctl, which reads the CDI files of this folder, on a containerd of its own. No network is made. */
export async function startNerdctl(
  t: Teardown,
  { program, root }: { readonly program: string; readonly root: string },
  image: TestImage,
  cdi: string,
): Promise<TestEngine> {
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  mkdirSync(at('bin'));
  const environment = environmentOf(root);
  const config = [
    'version = 2',
    `root = "${at('root')}"`,
    `state = "${at('state')}"`,
    'disabled_plugins = ["io.containerd.grpc.v1.cri"]',
    '[grpc]',
    `address = "${at('sock')}"`,
  ];
  writeFileSync(at('config.toml'), `${config.join('\n')}\n`);
  const daemon = spawn(join(root, 'usr/bin/containerd'), ['--config', at('config.toml')], {
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'ignore', openSync(at('log'), 'w')],
  });
  const ended = once(daemon, 'exit');
  t.teardown(async () => {
    daemon.kill('SIGTERM');
    await ended;
  });
  await eventually(
    () => {
      if (daemon.exitCode !== null)
        throw new Error(`containerd ended: ${readFileSync(at('log'), 'utf8').slice(-2000)}`);
      return existsSync(at('sock')) || undefined;
    },
    'containerd listens',
    START_MS,
  );
  const flags = [
    ...['--address', at('sock'), '--snapshotter', 'native', '--cgroup-manager', 'cgroupfs', '--cdi-spec-dirs', cdi],
    ...['--data-root', at('data'), '--cni-path', at('cni'), '--cni-netconfpath', at('networks')],
  ];
  writeProgram(at('bin'), 'nerdctl', environment, `exec '${program}' ${flags.join(' ')} "$@"`);
  writeProgram(at('bin'), 'ctr', environment, `exec '${join(root, 'usr/bin/ctr')}' --address '${at('sock')}' "$@"`);
  const run = runner(at('bin/nerdctl'));
  const imported = run('import', image.tar, IMAGE);
  if (imported.code !== 0) throw new Error(`nerdctl import: ${imported.err}`);
  t.teardown(() => {
    const ids = run('ps', '--all', '--quiet').out.split('\n').filter(Boolean);
    if (ids.length > 0) run('rm', '--force', ...ids);
  });
  return { bin: at('bin'), runFlags: ['--network', 'none'], run };
}
