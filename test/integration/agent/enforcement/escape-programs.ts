// Ways out of the interposer, each as a tenant's program and what becomes of it (docs/operate/escapes.md).
import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, linkSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { BUILD, type SimulatedNode } from '../../../support/node.ts';

export const CLIENT = join(BUILD, 'tests/client');

export type Ground = { readonly node: SimulatedNode; readonly folder: string };
export type Escape = {
  readonly what: string;
  /** The interposer refuses it, or the agent stops it, with that reason (docs/operate/enforcement.md). */
  readonly end: 'refused' | 'bypass' | 'far-over-limit';
  /** Run as `sh -c SCRIPT CLIENT WAY`: the tenant's program with its way to the driver. */
  readonly script?: string;
  readonly program?: (ground: Ground) => string;
  readonly way?: (ground: Ground) => string;
};

const driverOf = ({ node }: Ground) => join(node.lib, 'libcuda.so.1');

/** As in a pod's container: the list is a file that no variable takes away, and the loader's cache knows the driver. */
const AS_IN_A_POD = `exec unshare --mount /bin/sh -c '
  mkdir "$2.etc" && echo "$LD_PRELOAD" >"$2.etc/ld.so.preload" &&
  /sbin/ldconfig -X -C "$2.etc/ld.so.cache" "$LD_LIBRARY_PATH" &&
  mount -t overlay none -o "lowerdir=$2.etc:/etc" /etc && unset LD_PRELOAD LD_LIBRARY_PATH && STEP "$0" "$1"' "$0" "$1" "$FOLDER"`;
const inPod = (step: string) => AS_IN_A_POD.replace('STEP', step);

/** A copy that runs as root for whoever starts it: the loader then believes no variable. */
function setuid(ground: Ground): string {
  const path = join(ground.folder, 'setuid-client');
  copyFileSync(CLIENT, path);
  chmodSync(path, 0o4755);
  return path;
}

/** A copy that has a capability of its own: likewise, for whoever has it not. */
function capable(ground: Ground): string {
  const path = join(ground.folder, 'capable-client');
  copyFileSync(CLIENT, path);
  chmodSync(path, 0o755);
  execFileSync(join(BUILD, 'tests/set_capability'), [path]);
  return path;
}

/** A program with its driver inside, beside the driver's library: by its own path it finds the node. */
export function ownDriver({ node }: Ground, built: string): string {
  const path = join(node.lib, 'own-client');
  copyFileSync(built, path);
  chmodSync(path, 0o755);
  return path;
}

const LOADER = process.arch === 'arm64' ? '/lib/ld-linux-aarch64.so.1' : '/lib64/ld-linux-x86-64.so.2';
const [LIST, NO_LIST] = ['/etc/ld.so.preload', '/etc/ld.so.nothing'];

/** A copy of the machine's loader that reads another list, which is not there. */
function ownLoader({ folder }: Ground): void {
  const loader = readFileSync(LOADER, 'latin1');
  if (!loader.includes(LIST)) throw new Error(`${LOADER} does not name ${LIST}`);
  const path = join(folder, 'list.client-loader');
  writeFileSync(path, loader.replaceAll(LIST, NO_LIST), 'latin1');
  chmodSync(path, 0o755);
}

/** A folder to be the root of the client: what it loads, the driver and the node's socket, and nothing else. */
function ownRoot(ground: Ground): void {
  const root = join(ground.folder, 'list.root');
  const driver = driverOf(ground);
  const loaded = execFileSync('ldd', [CLIENT, driver], { encoding: 'utf8' }).matchAll(/(?:=> |^\s+)(\/\S+) \(/gm);
  for (const path of new Set([CLIENT, driver, ...[...loaded].map(([, one = '']) => one)])) {
    mkdirSync(join(root, dirname(path)), { recursive: true });
    copyFileSync(path, join(root, path));
    chmodSync(join(root, path), 0o755);
  }
  linkSync(join(ground.node.folder, 'node.sock'), join(root, ground.node.folder, 'node.sock'));
}

const AS_NOBODY = 'exec setpriv --reuid 65534 --regid 65534 --clear-groups';
const NESTED = 'unshare --mount --pid --fork --kill-child --mount-proc';
/** Switches of other systems, by which their libraries let a container go. */
const OTHERS_SWITCHES = [
  'CUDA_DISABLE_CONTROL=true',
  'CUDA_DEVICE_MEMORY_LIMIT=0',
  'CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/none',
  'CUDA_TASK_PRIORITY=0',
  'DISABLE_GPU_LIMITER=1',
  'ENABLE_CUDA_HOOKS=false',
  'NVSHARE_ENABLE_SINGLE_OVERSUB=1',
  'GPU_CORE_UTILIZATION_POLICY=DISABLE',
];

export const ESCAPES: readonly Escape[] = [
  { what: 'LD_PRELOAD is taken away', end: 'bypass', script: 'exec env -u LD_PRELOAD "$0" "$1"' },
  {
    what: 'LD_PRELOAD is taken away where the list is a file',
    end: 'refused',
    script: inPod('exec env -i'),
  },
  {
    what: 'LD_PRELOAD is taken away, and its first thread ends while another one goes on',
    end: 'bypass',
    way: () => 'leaderless:libcuda.so.1',
    script: 'exec env -u LD_PRELOAD "$0" "$1"',
  },
  {
    what: 'its first thread ends while another one goes on',
    end: 'refused',
    way: () => 'leaderless:libcuda.so.1',
  },
  {
    what: "other systems' switches are set",
    end: 'refused',
    script: `exec env ${OTHERS_SWITCHES.join(' ')} "$0" "$1"`,
  },
  {
    what: 'a setuid program is started',
    end: 'bypass',
    program: setuid,
    way: driverOf,
    script: `${AS_NOBODY} "$0" "$1"`,
  },
  {
    what: 'a setuid program is started where the list is a file',
    end: 'refused',
    program: setuid,
    script: inPod(AS_NOBODY),
  },
  {
    what: 'a program with file capabilities is started',
    end: 'bypass',
    program: capable,
    way: driverOf,
    script: `${AS_NOBODY} "$0" "$1"`,
  },
  {
    what: 'a program with file capabilities is started where the list is a file',
    end: 'refused',
    program: capable,
    script: inPod(AS_NOBODY),
  },
  {
    what: 'it is linked statically and has a driver of its own inside',
    end: 'bypass',
    program: (ground) => ownDriver(ground, join(BUILD, 'tests/images/own-client')),
    script: inPod('exec'),
  },
  {
    what: 'it brings a loader of its own, which reads no list',
    end: 'bypass',
    way(ground) {
      ownLoader(ground);
      return driverOf(ground);
    },
    script: inPod('exec "$2.client-loader"'),
  },
  { what: 'the driver is opened with RTLD_DEEPBIND', end: 'refused', way: () => 'deepbind:libcuda.so.1' },
  {
    what: 'the driver is opened in a namespace of its own',
    end: 'bypass',
    way: () => `namespace:${join(BUILD, 'tests/plugin1.so')}`,
  },
  {
    what: "the driver's symbol table is read without libc, once the interposer is attached",
    end: 'far-over-limit',
    way: (ground) => `walk:${driverOf(ground)}`,
  },
  {
    what: 'LD_PRELOAD is taken away, once a slot in the ledger is forged for its process',
    end: 'far-over-limit',
    script: `exec "${join(BUILD, 'tests/forge_ledger')}" "$(dirname "\${LD_PRELOAD%% *}")/ledger" 1 env -u LD_PRELOAD "$0" "$1"`,
  },
  { what: "the driver's file is opened by its path", end: 'refused', way: driverOf },
  {
    what: 'a copy of the driver is opened under another name',
    end: 'bypass',
    way({ node }) {
      const copy = join(node.lib, 'libprivate.so');
      copyFileSync(join(node.lib, 'libcuda.so.1'), copy);
      return copy;
    },
  },
  {
    what: 'the list is unmounted in a mount namespace of its own',
    end: 'bypass',
    way: driverOf,
    script: inPod('umount /etc && exec'),
  },
  {
    what: 'the root is changed to a folder without the list',
    end: 'bypass',
    way(ground) {
      ownRoot(ground);
      return driverOf(ground);
    },
    script: inPod('exec chroot "$2.root"'),
  },
  {
    what: 'it runs in PID and mount namespaces within its own, as in a container of its container',
    end: 'refused',
    script: inPod(`exec ${NESTED}`),
  },
  {
    what: 'the list is unmounted, and it runs in PID and mount namespaces within its own',
    end: 'bypass',
    way: driverOf,
    script: inPod(`umount /etc && exec ${NESTED}`),
  },
];
