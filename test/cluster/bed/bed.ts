// A real Kubernetes on this machine: etcd, API server, controller manager, scheduler, kubelet and containerd in their
// own namespaces. Starts and ends them in order; `close` leaves nothing behind. Needs root.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Api, bedApi } from './api.ts';
import { bedCgroup, clearAbandoned, clearCgroups, isAlone, makeCgroups, systemGroup } from './cgroups.ts';
import { controlPlane } from './control-plane.ts';
import { eventually } from './eventually.ts';
import { type ImageSettings, importerInto, type Layer } from './images.ts';
import { kubernetesHome, kubernetesPrograms } from './kubernetes.ts';
import { busyboxLayer, pauseLayer } from './layers.ts';
import { type Namespaces, onPath, openNamespaces, type Ran } from './namespaces.ts';
import { BOUND, bedNode, NODE_NAME, PAUSE_IMAGE } from './node.ts';
import { debianPackages, packagesHome } from './packages.ts';
import { bedParts, type Parts } from './parts.ts';

export const BUSYBOX_IMAGE = 'local.test/busybox:1';
const TOOLS = ['unshare', 'nsenter', 'setpriv', 'ip', 'mount', 'openssl', 'make', 'g++', 'dpkg', 'apt-get'];
const NATIVE = join(import.meta.dirname, '../../../native');

export type BedTools =
  | {
      readonly ok: true;
      readonly bin: string;
      readonly packages: string;
      /** Versions of Kubernetes, containerd, etcd and runc, for logs. */
      readonly versions: string;
    }
  | { readonly ok: false; readonly reason: string };

/** The programs that a test cluster needs, fetched and built if `get` is set; or the reason why there can be none
 * here. */
export function bedTools(say: (line: string) => void, get = true): BedTools {
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

/** Root in a container may lack privileges, so the first steps of a test cluster are tried. */
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

export type Bed = Parts & {
  readonly folder: string;
  /** The cgroup, of the same name in every hierarchy, below which all containers run. */
  readonly cgroup: string;
  readonly namespaces: Namespaces;
  /** The socket of containerd, in the folder where simulated devices and tests find the node's files. */
  readonly containerdSocket: string;
  /** Audit log of the API server, for requests of the service accounts in our namespace. */
  readonly auditLog: string;
  readonly api: Api;
  /** containerd's own client. */
  ctr(...args: readonly string[]): Ran;
  /** A kubectl process with open standard input; ends with the cluster at the latest. */
  talk(...args: readonly string[]): ReturnType<Namespaces['talk']>;
  kubectl(...args: readonly string[]): Ran;
  /** The same with text on its standard input. */
  kubectlWith(input: string, ...args: readonly string[]): Ran;
  /** Creates or changes objects; throws with the server's message when it refuses. */
  apply(...objects: readonly object[]): void;
  /** One object, or undefined if none has the name. */
  get<T>(kind: string, name: string, namespace?: string): T | undefined;
  /** A layer with a shell and the usual small programs, as the base of other images. */
  readonly busybox: Layer;
  /** Imports an image on the node. */
  addImage(name: string, layers: readonly Layer[], settings: ImageSettings): void;
  close(): Promise<void>;
};

/** `apiserver`: flags besides the usual ones; `nodes`: names of nodes that join later and get a kubeconfig. */
export async function startBed(
  tools: Extract<BedTools, { ok: true }>,
  say: (line: string) => void,
  apiserver: readonly string[] = [],
  nodes: readonly string[] = [],
): Promise<Bed> {
  await clearAbandoned();
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-bed-'));
  const cgroup = bedCgroup(process.pid);
  await using ending = new AsyncDisposableStack();
  ending.defer(() => rmSync(folder, { recursive: true, force: true }));
  makeCgroups(cgroup);
  ending.defer(() => clearCgroups(cgroup));
  // A mount point must exist and is removed afterwards, unless another test cluster has mounted over it meanwhile.
  for (const path of BOUND.filter((one) => !existsSync(one))) {
    mkdirSync(path);
    ending.defer(() => {
      if (isAlone(cgroup)) rmdirSync(path);
    });
  }
  const namespaces = await openNamespaces(folder, systemGroup(cgroup));
  ending.defer(() => namespaces.close());
  const plane = controlPlane(folder, NODE_NAME, { bin: tools.bin, packages: tools.packages, apiserver, nodes });
  const node = bedNode(folder, tools.bin, tools.packages, plane.kubeletKubeconfig, cgroup);
  const path = { PATH: `${join(tools.packages, 'usr/bin')}:${join(tools.packages, 'usr/sbin')}:${process.env.PATH}` };
  const admin = ['--kubeconfig', plane.kubeconfig];
  const kubectlWith = (input: string, ...args: readonly string[]): Ran =>
    namespaces.run([join(tools.bin, 'kubectl'), ...admin, ...args], { input });
  const kubectl = (...args: readonly string[]): Ran => kubectlWith('', ...args);
  const ctr = (...args: readonly string[]): Ran =>
    namespaces.run([join(tools.packages, 'usr/bin/ctr'), '-a', node.socket, '-n', 'k8s.io', ...args], { env: path });
  const addImage = importerInto(namespaces, folder, tools.packages, node.socket);
  const parts = bedParts(folder, namespaces, kubectl, node.socket);

  namespaces.script(node.prepare);
  namespaces.start('containerd', node.containerd, path);
  namespaces.start('etcd', plane.commands.etcd);
  namespaces.start('apiserver', plane.commands.apiserver);
  await parts.untilReady('containerd');
  say('importing images');
  const busybox = busyboxLayer(tools.packages);
  addImage(PAUSE_IMAGE, [pauseLayer(folder)], { entrypoint: ['/pause'] });
  addImage(BUSYBOX_IMAGE, [busybox], { entrypoint: ['/bin/sh'] });
  await parts.untilReady('apiserver');
  namespaces.start('controllers', plane.commands.controllers);
  namespaces.start('scheduler', plane.commands.scheduler);
  namespaces.start('kubelet', node.kubelet, path);
  const socket = join(folder, 'api.sock');
  namespaces.start('proxy', [join(tools.bin, 'kubectl'), ...admin, 'proxy', '--unix-socket', socket]);
  await parts.untilReady('kubelet');
  const api = bedApi(socket);
  const account = '/api/v1/namespaces/default/serviceaccounts/default';
  await eventually(() => existsSync(socket) || undefined, 'the API server can be asked from outside');
  await eventually(() => api.get<object>(account), 'the default service account is there');
  say(`${tools.versions}: ready`);

  const owned = ending.move();
  return {
    ...parts,
    folder,
    cgroup,
    namespaces,
    containerdSocket: node.socket,
    auditLog: plane.auditLog,
    api,
    ctr,
    talk: (...args) => namespaces.talk([join(tools.bin, 'kubectl'), ...admin, ...args]),
    kubectl,
    kubectlWith,
    apply(...objects) {
      const input = objects.map((object) => JSON.stringify(object)).join('\n');
      const { code, err } = kubectlWith(input, 'apply', '--server-side', '-f', '-');
      if (code !== 0) throw new Error(err.trim());
    },
    get<T>(kind: string, name: string, namespace = 'default') {
      const { code, out, err } = kubectl('get', kind, name, '-n', namespace, '-o', 'json', '--ignore-not-found');
      if (code !== 0) throw new Error(err.trim());
      return out === '' ? undefined : (JSON.parse(out) as T);
    },
    busybox,
    addImage,
    close: () => owned.disposeAsync(),
  };
}
