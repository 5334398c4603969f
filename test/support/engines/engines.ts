// Podman, Docker and containerd from Debian's packages, each with folders of its own; nothing is installed. Where one
// cannot be had or does not run here, the result is the reason.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { namespacesReason } from '../gate.ts';
import { eventually, START_MS, type Teardown, temporaryFolder } from '../native/node.ts';
import { debianPackages, packagesFolder, type Wanted } from '../toolchains/debian.ts';
import type { TestImage } from './image.ts';

const OF_PODMAN: readonly Wanted[] = ['podman', 'runc', 'conmon', 'golang-github-containers-common'].map((name) => ({
  name,
  from: 'own',
  as: 'needs',
}));
const OF_DOCKER: readonly Wanted[] = ['docker.io', 'containerd', 'runc'].map((name) => ({
  name,
  from: 'own',
  as: 'needs',
}));

export const IMAGE = 'cotenant-test:1';

export type TestEngine = {
  /** A folder with the engine's program, for the PATH, as it was set up for this test. */
  readonly bin: string;
  /** Flags of `run` that this machine needs. */
  readonly runFlags: readonly string[];
  /** Runs the engine's program to its end. */
  run(...args: readonly string[]): { code: number | null; out: string; err: string };
};

type Root = { readonly ok: true; readonly root: string } | { readonly ok: false; readonly reason: string };

function packages(name: string, wanted: readonly Wanted[]): Root {
  const reason = namespacesReason();
  if (reason !== undefined) return { ok: false, reason };
  return debianPackages(packagesFolder(name, wanted), wanted, (line) => console.error(line));
}
let podman: Root | undefined;
let docker: Root | undefined;
export const podmanPackages = (): Root => (podman ??= packages('podman', OF_PODMAN));
export const dockerPackages = (): Root => (docker ??= packages('docker', OF_DOCKER));

export const environmentOf = (root: string): Record<string, string> => {
  const folders = ['usr/bin', 'usr/sbin', 'sbin', 'bin'].map((name) => join(root, name));
  return {
    PATH: [...folders, process.env.PATH].join(':'),
    LD_LIBRARY_PATH: ['usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu'].map((name) => join(root, name)).join(':'),
  };
};

/** A program that starts another one in this environment. */
export function writeProgram(
  bin: string,
  name: string,
  environment: Readonly<Record<string, string>>,
  command: string,
): void {
  const lines = Object.entries(environment).map(([key, value]) => `export ${key}='${value}'`);
  writeFileSync(join(bin, name), `#!/bin/sh\n${lines.join('\n')}\n${command}\n`, { mode: 0o755 });
}

export const runner =
  (program: string): TestEngine['run'] =>
  (...args) => {
    const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8' });
    return { code: status, out: stdout, err: error?.message ?? stderr };
  };

/** Podman, which reads the CDI files of this folder. */
export function startPodman(t: Teardown, root: string, image: TestImage, cdi: string): TestEngine {
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  mkdirSync(at('bin'));
  mkdirSync(at('home/.config/containers'), { recursive: true });
  const lines = {
    containers: ['netns = "none"', 'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]'],
    engine: [
      'cgroup_manager = "cgroupfs"',
      'events_logger = "none"',
      `conmon_path = ["${join(root, 'usr/bin/conmon')}"]`,
      'runtime = "runc"',
      `tmp_dir = "${at('tmp')}"`,
    ],
    'engine.runtimes': [`runc = ["${join(root, 'usr/sbin/runc')}"]`],
  };
  writeFileSync(
    at('containers.conf'),
    Object.entries(lines)
      .map(([name, settings]) => `[${name}]\n${settings.join('\n')}\n`)
      .join(''),
  );
  writeFileSync(
    at('storage.conf'),
    `[storage]\ndriver = "vfs"\ngraphroot = "${at('storage')}"\nrunroot = "${at('run')}"\n`,
  );
  writeFileSync(at('home/.config/containers/policy.json'), '{"default":[{"type":"insecureAcceptAnything"}]}');
  const environment = {
    ...environmentOf(root),
    HOME: at('home'),
    CONTAINERS_CONF: at('containers.conf'),
    CONTAINERS_STORAGE_CONF: at('storage.conf'),
  };
  // Podman 4 reads CDI files of fixed folders only: it gets a file system view with this one there.
  mkdirSync('/run/cdi', { recursive: true });
  const inner = `mount --bind '${cdi}' /run/cdi && exec '${join(root, 'usr/bin/podman')}' "$@"`;
  writeProgram(at('bin'), 'podman', environment, `exec unshare -m sh -c '${inner.replaceAll("'", `'\\''`)}' sh "$@"`);
  const run = runner(at('bin/podman'));
  const imported = run('import', image.tar, IMAGE);
  if (imported.code !== 0) throw new Error(`podman import: ${imported.err}`);
  t.teardown(() => void run('rm', '--all', '--force', '--time', '0'));
  return { bin: at('bin'), runFlags: [], run };
}

export type DockerEngine = TestEngine & { readonly containerd: string };

/** A daemon of its own with its own containerd. Its networks are off: nothing of this machine is changed. */
export async function startDocker(t: Teardown, root: string, image: TestImage): Promise<DockerEngine> {
  const folder = temporaryFolder(t);
  const at = (name: string) => join(folder, name);
  mkdirSync(at('bin'));
  const environment = { ...environmentOf(root), DOCKER_HOST: `unix://${at('sock')}` };
  const daemon = spawn(
    join(root, 'usr/sbin/dockerd'),
    [
      ...[
        '--data-root',
        at('data'),
        '--exec-root',
        at('exec'),
        '--pidfile',
        at('pid'),
        '--host',
        `unix://${at('sock')}`,
      ],
      ...['--storage-driver', 'vfs', '--bridge', 'none', '--iptables=false', '--ip-forward=false', '--ip-masq=false'],
    ],
    {
      env: { ...process.env, ...environment },
      stdio: ['ignore', openSync(at('log'), 'w'), openSync(at('log'), 'a')],
    },
  );
  const ended = once(daemon, 'exit');
  t.teardown(async () => {
    daemon.kill('SIGTERM');
    await ended;
  });
  await eventually(
    () => {
      if (daemon.exitCode !== null) throw new Error(`dockerd ended: ${readFileSync(at('log'), 'utf8').slice(-2000)}`);
      return existsSync(at('sock')) || undefined;
    },
    'dockerd listens',
    START_MS,
  );
  writeProgram(at('bin'), 'docker', environment, `exec '${join(root, 'usr/bin/docker')}' "$@"`);
  const containerd = at('exec/containerd/containerd.sock');
  writeProgram(at('bin'), 'ctr', environment, `exec '${join(root, 'usr/bin/ctr')}' --address '${containerd}' "$@"`);
  const run = runner(at('bin/docker'));
  const imported = await eventually(
    () => {
      const tried = run('import', image.tar, IMAGE);
      return tried.code === 0 ? tried : undefined;
    },
    'docker takes the image',
    START_MS,
  );
  if (imported.code !== 0) throw new Error(`docker import: ${imported.err}`);
  t.teardown(() => {
    const ids = run('ps', '--all', '--quiet').out.split('\n').filter(Boolean);
    if (ids.length > 0) run('rm', '--force', ...ids);
  });
  return { bin: at('bin'), runFlags: ['--network', 'none'], run, containerd };
}
