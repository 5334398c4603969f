// Escapes from the interposer: for each one a tenant's program, and how it ends (docs/operate/escapes.md).
import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, linkSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { BUILD, type SimulatedNode } from '../../../support/native/node.ts';

export const CLIENT = join(BUILD, 'tests/client');

export type Place = { readonly node: SimulatedNode; readonly folder: string };
export type Escape = {
  readonly what: string;
  /** The interposer refuses it, or the agent stops it, with that reason (docs/operate/enforcement.md). */
  readonly end: 'refused' | 'bypass' | 'far-over-limit';
  /** Run as `sh -c SCRIPT CLIENT WAY`: the tenant's program with its way to the driver. */
  readonly script?: string;
  readonly program?: (place: Place) => string;
  readonly way?: (place: Place) => string;
};

const driverOf = ({ node }: Place) => join(node.lib, 'libcuda.so.1');

/** As in a pod's container: the preload list is a file, which no variable disables, and the loader's cache has the
 * driver. */
const AS_IN_A_POD = `exec unshare --mount /bin/sh -c '
  mkdir "$2.etc" && echo "$LD_PRELOAD" >"$2.etc/ld.so.preload" &&
  /sbin/ldconfig -X -C "$2.etc/ld.so.cache" "$LD_LIBRARY_PATH" &&
  mount -t overlay none -o "lowerdir=$2.etc:/etc" /etc && unset LD_PRELOAD LD_LIBRARY_PATH && STEP "$0" "$1"' "$0" "$1" "$FOLDER"`;
const inPod = (step: string) => AS_IN_A_POD.replace('STEP', step);

/** A setuid copy of the client, for which the loader ignores LD_PRELOAD. */
function setuid(place: Place): string {
  const path = join(place.folder, 'setuid-client');
  copyFileSync(CLIENT, path);
  chmodSync(path, 0o4755);
  return path;
}

/** A copy with a file capability, for which the loader ignores LD_PRELOAD, too. */
function capable(place: Place): string {
  const path = join(place.folder, 'capable-client');
  copyFileSync(CLIENT, path);
  chmodSync(path, 0o755);
  execFileSync(join(BUILD, 'tests/set_capability'), [path]);
  return path;
}

/** A program that contains its driver, beside the driver's library: it finds the node's socket by its own path. */
export function ownDriver({ node }: Place, built: string): string {
  const path = join(node.lib, 'own-client');
  copyFileSync(built, path);
  chmodSync(path, 0o755);
  return path;
}

const LOADER = process.arch === 'arm64' ? '/lib/ld-linux-aarch64.so.1' : '/lib64/ld-linux-x86-64.so.2';
const [LIST, NO_LIST] = ['/etc/ld.so.preload', '/etc/ld.so.nothing'];

/** A copy of the machine's loader that reads a preload list that does not exist. */
function ownLoader({ folder }: Place): void {
  const loader = readFileSync(LOADER, 'latin1');
  if (!loader.includes(LIST)) throw new Error(`${LOADER} does not name ${LIST}`);
  const path = join(folder, 'list.client-loader');
  writeFileSync(path, loader.replaceAll(LIST, NO_LIST), 'latin1');
  chmodSync(path, 0o755);
}

/** A root folder for the client, with only the objects that it loads, the driver and the node's socket. */
function ownRoot(place: Place): void {
  const root = join(place.folder, 'list.root');
  const driver = driverOf(place);
  const loaded = execFileSync('ldd', [CLIENT, driver], { encoding: 'utf8' }).matchAll(/(?:=> |^\s+)(\/\S+) \(/gm);
  for (const path of new Set([CLIENT, driver, ...[...loaded].map(([, one = '']) => one)])) {
    mkdirSync(join(root, dirname(path)), { recursive: true });
    copyFileSync(path, join(root, path));
    chmodSync(join(root, path), 0o755);
  }
  linkSync(join(place.node.folder, 'node.sock'), join(root, place.node.folder, 'node.sock'));
}

const UNPRIVILEGED = 'exec setpriv --reuid 65534 --regid 65534 --clear-groups';
const NESTED = 'unshare --mount --pid --fork --kill-child --mount-proc';
/** Variables that switch off the limits of other systems. */
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
  { what: 'it removes LD_PRELOAD', end: 'bypass', script: 'exec env -u LD_PRELOAD "$0" "$1"' },
  {
    what: 'it removes LD_PRELOAD where the list is a file',
    end: 'refused',
    script: inPod('exec env -i'),
  },
  {
    what: 'it removes LD_PRELOAD, and its first thread ends while another one runs',
    end: 'bypass',
    way: () => 'leaderless:libcuda.so.1',
    script: 'exec env -u LD_PRELOAD "$0" "$1"',
  },
  {
    what: 'its first thread ends while another one runs',
    end: 'refused',
    way: () => 'leaderless:libcuda.so.1',
  },
  {
    what: 'it sets the off switches of other systems',
    end: 'refused',
    script: `exec env ${OTHERS_SWITCHES.join(' ')} "$0" "$1"`,
  },
  {
    what: 'it starts a setuid program',
    end: 'bypass',
    program: setuid,
    way: driverOf,
    script: `${UNPRIVILEGED} "$0" "$1"`,
  },
  {
    what: 'it starts a setuid program where the list is a file',
    end: 'refused',
    program: setuid,
    script: inPod(UNPRIVILEGED),
  },
  {
    what: 'it starts a program with file capabilities',
    end: 'bypass',
    program: capable,
    way: driverOf,
    script: `${UNPRIVILEGED} "$0" "$1"`,
  },
  {
    what: 'it starts a program with file capabilities where the list is a file',
    end: 'refused',
    program: capable,
    script: inPod(UNPRIVILEGED),
  },
  {
    what: 'it is linked statically and contains its own driver',
    end: 'bypass',
    program: (place) => ownDriver(place, join(BUILD, 'tests/images/own-client')),
    script: inPod('exec'),
  },
  {
    what: 'it has its own loader, which reads no list',
    end: 'bypass',
    way(place) {
      ownLoader(place);
      return driverOf(place);
    },
    script: inPod('exec "$2.client-loader"'),
  },
  { what: 'it opens the driver with RTLD_DEEPBIND', end: 'refused', way: () => 'deepbind:libcuda.so.1' },
  {
    what: 'it opens the driver in a separate link-map namespace',
    end: 'bypass',
    way: () => `namespace:${join(BUILD, 'tests/plugin1.so')}`,
  },
  {
    what: "it reads the driver's symbol table without libc, with the interposer attached",
    end: 'far-over-limit',
    way: (place) => `walk:${driverOf(place)}`,
  },
  {
    what: 'it forges a slot in the ledger and removes LD_PRELOAD',
    end: 'far-over-limit',
    script: `exec "${join(BUILD, 'tests/forge_ledger')}" "$(dirname "\${LD_PRELOAD%% *}")/ledger" 1 env -u LD_PRELOAD "$0" "$1"`,
  },
  { what: "it opens the driver's file by its path", end: 'refused', way: driverOf },
  {
    what: 'it opens a copy of the driver under another name',
    end: 'bypass',
    way({ node }) {
      const copy = join(node.lib, 'libprivate.so');
      copyFileSync(join(node.lib, 'libcuda.so.1'), copy);
      return copy;
    },
  },
  {
    what: 'it unmounts the list in a new mount namespace',
    end: 'bypass',
    way: driverOf,
    script: inPod('umount /etc && exec'),
  },
  {
    what: 'it changes its root to a folder without the list',
    end: 'bypass',
    way(place) {
      ownRoot(place);
      return driverOf(place);
    },
    script: inPod('exec chroot "$2.root"'),
  },
  {
    what: 'it runs in nested PID and mount namespaces, as in a container within its container',
    end: 'refused',
    script: inPod(`exec ${NESTED}`),
  },
  {
    what: 'it unmounts the list and runs in nested PID and mount namespaces',
    end: 'bypass',
    way: driverOf,
    script: inPod(`umount /etc && exec ${NESTED}`),
  },
];
