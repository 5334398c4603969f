// Ways out of the interposer, each as a tenant's program and what becomes of it (docs/escapes.md).
import { chmodSync, copyFileSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, type SimulatedNode } from '../../support/node.ts';

export const CLIENT = join(BUILD, 'tests/client');

export type Ground = { readonly node: SimulatedNode; readonly folder: string };
export type Escape = {
  readonly what: string;
  /** The interposer refuses it, or the agent stops it, with that reason (docs/enforcement.md). */
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

const AS_NOBODY = 'exec setpriv --reuid 65534 --regid 65534 --clear-groups';
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
];
