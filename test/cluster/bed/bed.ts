// A real Kubernetes on this machine: etcd, API server, controllers, scheduler, kubelet and containerd, in namespaces of their
// own. Owns the order of start and end; after `close` nothing of it is left. Needs root.
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { bedCgroup, clearAbandoned, clearCgroups, isAlone, makeCgroups, systemGroup } from './cgroups.ts';
import { controlPlane } from './control-plane.ts';
import { makeImage } from './images.ts';
import { kubernetesHome, kubernetesPrograms } from './kubernetes.ts';
import { endOf, lastWords, type Namespaces, onPath, openNamespaces, type Ran } from './namespaces.ts';
import { BOUND, bedNode, NODE_NAME, PAUSE_IMAGE } from './node.ts';
import { debianPackages, packagesHome } from './packages.ts';

export const BUSYBOX_IMAGE = 'local.test/busybox:1';
const TOOLS = ['unshare', 'nsenter', 'setpriv', 'ip', 'mount', 'openssl', 'make', 'g++', 'dpkg', 'apt-get'];
const NATIVE = join(import.meta.dirname, '../../../native');
const READY_MS = 120_000;

export type Ground =
  | {
      readonly ok: true;
      readonly bin: string;
      readonly packages: string;
      /** For people and logs: which Kubernetes, containerd, etcd and runc this is. */
      readonly versions: string;
    }
  | { readonly ok: false; readonly reason: string };

/** What a bed stands on; where `get` is given, fetched and built if it is not there yet. Or why there can be none here. */
export function bedGround(say: (line: string) => void, get = true): Ground {
  if (process.getuid?.() !== 0) return { ok: false, reason: 'a test cluster needs root' };
  const missing = TOOLS.filter((name) => onPath(name) === undefined);
  if (missing.length > 0) return { ok: false, reason: `a test cluster needs ${missing.join(', ')}` };
  const forbidden = whatIsForbidden();
  if (forbidden !== undefined) return { ok: false, reason: forbidden };
  if (!get && !isPrepared()) return { ok: false, reason: 'nothing is built: node test/cluster/prepare.ts says why' };
  const made = spawnSync('make', ['-C', NATIVE, '-j2', 'cluster'], { encoding: 'utf8' });
  if (made.status !== 0) return { ok: false, reason: `make -C native cluster failed: ${made.stderr.trim()}` };
  const packages = debianPackages(say);
  if (!packages.ok) return packages;
  const programs = kubernetesPrograms(say);
  if (!programs.ok) return programs;
  const { containerd, runc, 'etcd-server': etcd } = packages.versions;
  const versions = `Kubernetes ${programs.version}, containerd ${containerd}, runc ${runc}, etcd ${etcd}`;
  return { ok: true, bin: programs.bin, packages: packages.root, versions };
}

/** Root of a container is not allowed everything; what a bed does first is tried. */
function whatIsForbidden(): string | undefined {
  if (!existsSync('/sys/fs/cgroup/memory/cgroup.procs'))
    return 'a test cluster is made for control groups of version 1 so far';
  const trial = '/sys/fs/cgroup/memory/cotenant-trial';
  try {
    mkdirSync(trial, { recursive: true });
    rmdirSync(trial);
  } catch (error) {
    return `control groups cannot be made here: ${(error as NodeJS.ErrnoException).code}`;
  }
  const script =
    'mount -t tmpfs none /mnt && ip link add outer type veth peer name inner && ip link add bed0 type bridge';
  const { status, stderr } = spawnSync('unshare', ['-m', '-n', '--propagation', 'private', 'sh', '-c', script], {
    encoding: 'utf8',
  });
  return status === 0 ? undefined : `mount and network namespaces cannot be used here: ${stderr.trim().split('\n')[0]}`;
}

const isPrepared = () => existsSync(kubernetesHome()) && existsSync(packagesHome());

export type Bed = {
  readonly folder: string;
  readonly namespaces: Namespaces;
  /** Socket of containerd, and the path under which simulated devices and tests find the node's files. */
  readonly containerdSocket: string;
  kubectl(...args: readonly string[]): Ran;
  /** The same with something on its standard input. */
  kubectlWith(input: string, ...args: readonly string[]): Ran;
  /** Creates or changes objects; throws with the server's words when it refuses. */
  apply(...objects: readonly object[]): void;
  /** One object, or undefined where there is none of the name. */
  get<T>(kind: string, name: string, namespace?: string): T | undefined;
  /** Makes an image of a folder and gives it to the node. */
  addImage(name: string, root: string, entrypoint: readonly string[]): void;
  /** Ends one of the node's programs and starts it again; containers live on. Resolves when it was started. */
  restart(program: 'kubelet' | 'containerd'): Promise<void>;
  close(): Promise<void>;
};

export async function startBed(ground: Extract<Ground, { ok: true }>, say: (line: string) => void): Promise<Bed> {
  await clearAbandoned();
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-bed-'));
  const cgroup = bedCgroup(process.pid);
  await using ending = new AsyncDisposableStack();
  ending.defer(() => rmSync(folder, { recursive: true, force: true }));
  makeCgroups(cgroup);
  ending.defer(() => clearCgroups(cgroup));
  // Something must be there to be bound over, and must not stay; but another bed may have bound over it meanwhile.
  for (const path of BOUND.filter((one) => !existsSync(one))) {
    mkdirSync(path);
    ending.defer(() => {
      if (isAlone(cgroup)) rmdirSync(path);
    });
  }
  const namespaces = await openNamespaces(folder, systemGroup(cgroup));
  ending.defer(() => namespaces.close());
  const plane = controlPlane(folder, ground.bin, ground.packages);
  const node = bedNode(folder, ground.bin, ground.packages, plane.kubeconfig, cgroup);
  const path = { PATH: `${join(ground.packages, 'usr/bin')}:${join(ground.packages, 'usr/sbin')}:${process.env.PATH}` };
  const kubectlWith = (input: string, ...args: readonly string[]): Ran =>
    namespaces.run([join(ground.bin, 'kubectl'), '--kubeconfig', plane.kubeconfig, ...args], { input });
  const kubectl = (...args: readonly string[]): Ran => kubectlWith('', ...args);
  const until = async (what: string, log: string, good: () => boolean): Promise<void> => {
    const deadline = Date.now() + READY_MS;
    while (!good()) {
      if (Date.now() > deadline) throw new Error(`not within ${READY_MS / 1000} s: ${what}\n${lastWords(folder, log)}`);
      await delay(200);
    }
  };
  const ctr = (...args: readonly string[]): Ran =>
    namespaces.run([join(ground.packages, 'usr/bin/ctr'), '-a', node.socket, '-n', 'k8s.io', ...args], { env: path });
  const addImage: Bed['addImage'] = (name, root, entrypoint) => {
    const archive = join(folder, 'image.tar');
    makeImage(archive, name, root, entrypoint);
    const { code, err } = ctr('images', 'import', '--local', archive);
    rmSync(archive);
    if (code !== 0) throw new Error(`${name} could not be imported: ${err.trim()}`);
  };

  namespaces.script(node.prepare);
  const start = (name: 'kubelet' | 'containerd') => namespaces.start(name, node[name], path);
  const containerd = start('containerd');
  namespaces.start('etcd', plane.commands.etcd);
  namespaces.start('apiserver', plane.commands.apiserver);
  await until('containerd answers', 'containerd', () => ctr('version').code === 0);
  say('importing images');
  addOwnImages(folder, ground.packages, addImage);
  await until('the API server is ready', 'apiserver', () => kubectl('get', '--raw', '/readyz').code === 0);
  namespaces.start('controllers', plane.commands.controllers);
  namespaces.start('scheduler', plane.commands.scheduler);
  const running = { containerd, kubelet: start('kubelet') };
  const ready = ['get', 'node', NODE_NAME, '-o', 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'];
  await until('the node is ready', 'kubelet', () => kubectl(...ready).out === 'True');
  await until('the default service account is there', 'controllers', () => kubectl('get', 'sa', 'default').code === 0);
  say(`${ground.versions}: ready`);

  const owned = ending.move();
  return {
    folder,
    namespaces,
    containerdSocket: node.socket,
    kubectl,
    kubectlWith,
    apply(...objects) {
      const input = objects.map((object) => JSON.stringify(object)).join('\n---\n');
      const { code, err } = kubectlWith(input, 'apply', '--server-side', '-f', '-');
      if (code !== 0) throw new Error(err.trim());
    },
    get<T>(kind: string, name: string, namespace = 'default') {
      const { code, out, err } = kubectl('get', kind, name, '-n', namespace, '-o', 'json', '--ignore-not-found');
      if (code !== 0) throw new Error(err.trim());
      return out === '' ? undefined : (JSON.parse(out) as T);
    },
    addImage,
    async restart(program) {
      await endOf(running[program]);
      running[program] = start(program);
    },
    close: () => owned.disposeAsync(),
  };
}

/** What holds a pod's namespaces, and a shell with the usual small programs. */
function addOwnImages(folder: string, packages: string, addImage: Bed['addImage']): void {
  const pause = join(folder, 'image-pause');
  mkdirSync(pause);
  cpSync(join(NATIVE, 'build/cluster/pause'), join(pause, 'pause'));
  addImage(PAUSE_IMAGE, pause, ['/pause']);
  const root = join(folder, 'image-busybox');
  for (const name of ['bin', 'etc', 'tmp', 'proc', 'sys', 'dev']) mkdirSync(join(root, name), { recursive: true });
  const busybox = ['bin/busybox', 'usr/bin/busybox'].map((path) => join(packages, path));
  const program = busybox.find((path) => spawnSync(path, ['true']).status === 0);
  if (program === undefined) throw new Error('the package busybox-static holds no busybox');
  cpSync(program, join(root, 'bin/busybox'));
  const applets = execFileSync(program, ['--list'], { encoding: 'utf8' }).split('\n').filter(Boolean);
  for (const applet of applets) if (applet !== 'busybox') symlinkSync('busybox', join(root, 'bin', applet));
  writeFileSync(join(root, 'etc/passwd'), 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n');
  addImage(BUSYBOX_IMAGE, root, ['/bin/sh']);
}
