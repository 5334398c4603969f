// The disk of a node that runs in the guest: containerd with its images, runc or crun, the network plugins, the kubelet, the
// simulated GPUs' programs, and what starts them. The images are imported on the host, where that is fast.
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, readFileSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { stringify } from 'yaml';
import { onPath } from '../../cluster/bed/namespaces.ts';
import { PAUSE_IMAGE } from '../../cluster/bed/node.ts';
import { interposerFiles } from '../../support/native/node.ts';
import { createArchive } from '../initramfs.ts';
import { HOME } from '../inside/report.ts';
import type { GuestTools } from '../tools.ts';
import { modulesOf } from './modules.ts';
import { CONTROL_PORT, GUEST_NETWORK, GUEST_NODE } from './network.ts';
import { CRUN_FILES, CRUN_PROGRAM, SYSTEMD_PROGRAM, systemdUnits } from './variants.ts';

const ROOT = join(import.meta.dirname, '../../..');
const BUILD = join(ROOT, 'native/build');
const SIZE = '6G';
/** Of the simulated node, in the guest. */
export const GPU_FOLDER = '/var/lib/simulated-gpu';
/** Of this machine: the kubelet and runc need more than busybox's. */
const PROGRAMS = ['mount', 'umount', 'setsid'];
const NATIVE = ['cotenant-simulator', 'cotenant-sampler', 'simulated', 'cotenant.node', ...interposerFiles()];
const SOURCES = [
  'package.json',
  'src',
  'native/build.ts',
  'test/support/product',
  'test/cluster/bed/gpus.ts',
  'test/cluster/bed/gpu-folder.ts',
  'test/cluster/bed/runtime.ts',
  'test/guest/inside',
];
/** What these sources import. */
const PACKAGES = ['valibot'];
/** In its package. */
const SYSTEMD_FROM = 'lib/systemd/systemd';
const MODULES = ['virtio_pci', 'virtio_blk', 'virtio_net', 'overlay', 'bridge', 'veth'];

export type NodePrograms = {
  /** Kubernetes' own. */
  readonly bin: string;
  /** The unpacked packages of the test cluster. */
  readonly packages: string;
  /** Those of crun, where it takes runc's place. */
  readonly crun?: string;
  /** Those of systemd, where it is the first process and makes the cgroups. */
  readonly systemd?: string;
};

/** Shared objects that programs need, including the loader; none of those that are linked statically. */
function librariesOf(programs: readonly string[], environment: object = {}): readonly string[] {
  const { stdout } = spawnSync('ldd', [...programs], { encoding: 'utf8', env: { ...process.env, ...environment } });
  return [...new Set([...stdout.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path = '']) => path))];
}

function copy(from: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true });
  cpSync(realpathSync(from), to, { recursive: true, dereference: true, preserveTimestamps: true });
}

/** Fills the folder of the disk with all but images. */
export function fillDisk(
  root: string,
  { busybox }: Extract<GuestTools, { ok: true }>,
  { bin, packages, crun, systemd }: NodePrograms,
  kubeconfig: string,
): void {
  const at = (...parts: string[]) => join(root, ...parts);
  for (const name of ['proc', 'sys', 'dev', 'tmp', 'run', 'root', 'etc/cdi', 'var/log', 'var/lib', 'usr/sbin'])
    mkdirSync(at(name), { recursive: true });
  symlinkSync('/run', at('var/run'));
  symlinkSync('usr/bin', at('bin'));
  symlinkSync('usr/sbin', at('sbin'));
  copy(busybox, at('usr/bin/busybox'));
  const applets = execFileSync(busybox, ['--list'], { encoding: 'utf8' }).split('\n').filter(Boolean);
  for (const name of applets.filter((one) => one !== 'busybox' && !PROGRAMS.includes(one)))
    symlinkSync('busybox', at('usr/bin', name));
  const own = PROGRAMS.map((name) => execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim());
  for (const [index, path] of own.entries()) copy(path, at('usr/bin', PROGRAMS[index] ?? ''));
  copy(process.execPath, at('usr/bin/node'));
  copy(join(bin, 'kubelet'), at('usr/bin/kubelet'));
  const ofPackages = ['usr/bin/containerd', 'usr/bin/containerd-shim-runc-v2', 'usr/bin/ctr', 'usr/sbin/runc'];
  for (const path of [...ofPackages, 'usr/lib/cni']) copy(join(packages, path), at(path));
  const native = NATIVE.map((name) => join(BUILD, name));
  for (const path of native) copy(path, at(HOME, 'native/build', path.slice(BUILD.length)));
  for (const path of SOURCES) copy(join(ROOT, path), at(HOME, path));
  for (const name of PACKAGES) copy(join(ROOT, 'node_modules', name), at(HOME, 'node_modules', name));
  const programs = [...own, process.execPath, ...ofPackages.map((path) => join(packages, path)), ...native.slice(0, 2)];
  for (const path of librariesOf(programs)) copy(path, at(path));

  const write = (path: string, text: string) => {
    mkdirSync(dirname(at(path)), { recursive: true });
    writeFileSync(at(path), text);
  };
  const writeProgram = (path: string, text: string) => {
    write(path, text);
    chmodSync(at(path), 0o755);
  };
  write('etc/passwd', 'root:x:0:0:root:/root:/bin/sh\n');
  write('etc/group', 'root:x:0:\n');
  write('etc/hosts', `127.0.0.1 localhost\n${GUEST_NETWORK.node} ${GUEST_NODE}\n`);
  write('etc/resolv.conf', '');
  write('etc/os-release', 'ID=guest\nPRETTY_NAME="Emulated node"\n');
  write('etc/machine-id', `${'c07e'.repeat(8)}\n`);
  const program = crun === undefined ? '/usr/sbin/runc' : '/usr/sbin/crun';
  if (crun !== undefined) {
    for (const [path, to] of Object.entries(CRUN_FILES)) copy(join(crun, path), at(to));
    writeProgram('usr/sbin/crun', CRUN_PROGRAM);
  }
  if (systemd !== undefined) {
    copy(join(systemd, SYSTEMD_FROM), at(SYSTEMD_PROGRAM));
    const folders = [
      'lib',
      'usr/lib',
      'usr/lib/x86_64-linux-gnu/systemd',
      'lib/x86_64-linux-gnu',
      'usr/lib/x86_64-linux-gnu',
    ];
    const search = { LD_LIBRARY_PATH: folders.map((folder) => join(systemd, folder)).join(':') };
    for (const path of librariesOf([join(systemd, SYSTEMD_FROM)], search))
      copy(path, at(path.startsWith(systemd) ? path.slice(systemd.length) : path));
    for (const [name, unit] of Object.entries(systemdUnits(CONTROL))) write(`etc/systemd/system/${name}`, unit);
  }
  write('etc/containerd/config.toml', containerdSettings(program, systemd !== undefined));
  const runtime = ['node', join(HOME, 'test/cluster/bed/runtime.ts'), program, GPU_FOLDER];
  writeProgram('usr/bin/simulated-runc', `#!/bin/sh\nexec ${runtime.join(' ')} "$@"\n`);
  write('etc/cni/net.d/10-bed.conflist', JSON.stringify(POD_NETWORK));
  const driver = systemd === undefined ? {} : { cgroupDriver: 'systemd' };
  write('etc/kubernetes/kubelet.yaml', stringify({ ...KUBELET, ...driver }));
  const config = JSON.parse(readFileSync(kubeconfig, 'utf8')) as { clusters: { cluster: { server: string } }[] };
  for (const { cluster } of config.clusters) cluster.server = `https://${GUEST_NETWORK.api}`;
  write('etc/kubernetes/kubeconfig', JSON.stringify(config));
  writeProgram('init', initOf(systemd === undefined ? CONTROL_ALONE : `exec ${SYSTEMD_PROGRAM}\n`));
}

/** Packs the folder as an ext4 file system in a file. */
export function packDisk(root: string, file: string): void {
  execFileSync('mke2fs', ['-q', '-F', '-t', 'ext4', '-O', '^has_journal', '-m', '0', '-d', root, file, SIZE]);
}

/** Loads the modules and goes on with the disk's /init. */
export function diskInitrd({ root, busybox }: Extract<GuestTools, { ok: true }>): Buffer {
  const archive = createArchive();
  archive.put(busybox, '/bin/busybox');
  const modules = modulesOf(root, MODULES);
  for (const [index, path] of modules.entries()) archive.put(path, `/modules/${index}.ko`);
  for (const name of ['dev', 'root']) archive.folder(`/${name}`);
  archive.write(
    '/init',
    `#!/bin/busybox sh
busybox() { /bin/busybox "$@"; }
busybox mount -t devtmpfs dev /dev
for index in ${modules.map((_, index) => index).join(' ')}; do busybox insmod /modules/$index.ko || echo "module $index"; done
until busybox test -b /dev/vda; do busybox sleep 0.1; done
busybox mount -t ext4 /dev/vda /root
busybox umount /dev
exec /bin/busybox switch_root /root /init
`,
  );
  return archive.end();
}

/** The network's addresses belong to the bridge, of which the machine's device and all pods are ports. */
const initOf = (last: string) => `#!/bin/sh
export PATH=/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=0666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
hostname ${GUEST_NODE}
echo 1 > /proc/sys/net/ipv4/ip_forward
ip link set lo up
ip link add bed0 type bridge
ip link set eth0 master bed0
ip link set eth0 up
ip link set bed0 up
ip addr add ${GUEST_NETWORK.node}/24 dev bed0
ip route add default via ${GUEST_NETWORK.host}
${last}`;

const CONTROL = `/usr/bin/node ${HOME}/test/guest/inside/control.ts ${CONTROL_PORT}`;
const CONTROL_ALONE = `${CONTROL} &
# The first process gets what other processes leave behind.
while true; do wait; sleep 1; done
`;

const containerdSettings = (program: string, bySystemd: boolean) => `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = ${JSON.stringify(PAUSE_IMAGE)}
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/usr/lib/cni']
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '${program}'
    SystemdCgroup = ${bySystemd}
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.simulated]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.simulated.options]
    BinaryName = '/usr/bin/simulated-runc'
    SystemdCgroup = ${bySystemd}
[plugins.'io.containerd.nri.v1.nri']
  # 2 s by default: the machine is emulated.
  plugin_request_timeout = '60s'
`;

const POD_NETWORK = {
  cniVersion: '0.4.0',
  name: 'bed',
  plugins: [
    {
      type: 'bridge',
      bridge: 'bed0',
      hairpinMode: true,
      ipam: {
        type: 'host-local',
        // Addresses are given out from the first one again after a restart of the machine.
        dataDir: '/run/cni',
        ranges: [[{ subnet: GUEST_NETWORK.subnet, rangeStart: GUEST_NETWORK.firstPod, gateway: GUEST_NETWORK.host }]],
        routes: [{ dst: '0.0.0.0/0' }],
      },
    },
    { type: 'loopback' },
  ],
};

/** All else at its defaults: cgroups with the driver cgroupfs, one for each class of quality, and version 2 required. */
const KUBELET = {
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  // As in the test cluster: whom the API server is, the kubelet does not check.
  authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
  authorization: { mode: 'AlwaysAllow' },
  containerRuntimeEndpoint: 'unix:///run/containerd/containerd.sock',
  resolvConf: '',
};

/** Why there can be no such node here; undefined if there can. */
export function nodeReason(): string | undefined {
  const missing = ['mke2fs', 'curl', ...PROGRAMS].filter((name) => onPath(name) === undefined);
  return missing.length === 0 ? undefined : `an emulated node needs ${missing.join(', ')}`;
}
