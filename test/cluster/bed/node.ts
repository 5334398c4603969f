// The node of a test cluster: containerd, CNI and kubelet, and the mounts and addresses that keep them off the machine.
// The kubelet uses fixed paths and machine-wide settings; others are bind-mounted over them.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { NETWORK } from './control-plane.ts';
import { kubernetesMinor } from './kubernetes.ts';

export const NODE_NAME = 'node-1';
export const PAUSE_IMAGE = 'local.test/pause:1';
/** Paths that no setting changes, and the agent's own on its node; each is bind-mounted from a folder of the
 * cluster. */
export const BOUND = [
  '/var/lib/kubelet',
  '/var/log/pods',
  '/var/log/containers',
  '/run/netns',
  '/var/lib/cni',
  '/var/lib/cotenant',
  '/run/nri',
  '/etc/cdi',
  '/run/cdi',
];
/** Folder of the cluster that stands for such a path of the node. */
export const hostFolder = (folder: string, path: string): string => join(folder, 'host', path.replaceAll('/', '_'));
/** Kernel settings that the kubelet would write machine-wide unless they have this value already. */
const SETTINGS = { 'vm/overcommit_memory': 1, 'kernel/panic': 10, 'kernel/panic_on_oops': 1 };

export type BedNode = {
  readonly socket: string;
  /** Script for the namespaces, before anything is started. */
  readonly prepare: string;
  readonly containerd: readonly string[];
  readonly kubelet: readonly string[];
};

export function bedNode(folder: string, bin: string, packages: string, kubeconfig: string, cgroup: string): BedNode {
  const at = (...parts: string[]) => join(folder, ...parts);
  const inPackages = (path: string) => join(packages, path);
  for (const name of ['cni', 'volume-plugins', 'manifests', 'host', 'settings'])
    mkdirSync(at(name), { recursive: true });
  writeFileSync(at('resolv.conf'), '');
  const socket = at('containerd.sock');

  const binds = [...BOUND.map((path) => [hostFolder(folder, path), path] as const)];
  for (const [own] of binds) mkdirSync(own, { recursive: true });
  const files = Object.entries(SETTINGS).map(([name, value]) => {
    const own = at('settings', name.replaceAll('/', '_'));
    writeFileSync(own, `${value}\n`);
    return [own, `/proc/sys/${name}`] as const;
  });
  const prepare = [
    'ip link set lo up',
    `ip addr add ${NETWORK.api}/32 dev lo`,
    'echo 1 > /proc/sys/net/ipv4/ip_forward', // of this network namespace
    'ip link add outer type veth peer name inner',
    'ip link set inner up',
    `ip addr add ${NETWORK.node}/24 dev outer`,
    'ip link set outer up',
    `ip route add default via ${NETWORK.gateway} dev outer`,
    'mount --make-rshared /', // of this mount namespace; volumes need propagation
    ...[...binds, ...files, [at('resolv.conf'), '/etc/resolv.conf']].map(
      ([own, path]) => `mount --bind ${own} ${path}`,
    ),
  ].join('\n');

  const runtime = [process.execPath, join(import.meta.dirname, 'runtime.ts'), inPackages('usr/sbin/runc'), at('gpu')];
  writeFileSync(at('simulated-runc'), `#!/bin/sh\nexec ${runtime.join(' ')} "$@"\n`, { mode: 0o755 });
  writeFileSync(at('containerd.toml'), containerdSettings(folder, socket, packages));
  const network = {
    cniVersion: '0.4.0',
    name: 'bed',
    plugins: [
      {
        type: 'bridge',
        bridge: 'bed0',
        isGateway: true,
        hairpinMode: true,
        ipam: {
          type: 'host-local',
          dataDir: at('addresses'),
          ranges: [[{ subnet: NETWORK.pods }]],
          routes: [{ dst: '0.0.0.0/0' }],
        },
      },
      { type: 'loopback' },
    ],
  };
  writeFileSync(at('cni/10-bed.conflist'), JSON.stringify(network));
  const kubelet = {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    address: NETWORK.node,
    authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
    authorization: { mode: 'AlwaysAllow' },
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${cgroup}`,
    containerRuntimeEndpoint: `unix://${socket}`,
    // These machines have no other; the setting is of Kubernetes 1.31.
    ...(kubernetesMinor() >= 31 && { failCgroupV1: false }),
    failSwapOn: false,
    // The disk is the machine's, not the node's: a full one would taint the node, and delete images that exist nowhere else.
    imageGCHighThresholdPercent: 100,
    evictionHard: { 'nodefs.available': '0%', 'nodefs.inodesFree': '0%', 'imagefs.available': '0%' },
    healthzPort: 0,
    resolvConf: '',
    volumePluginDir: at('volume-plugins'),
    staticPodPath: at('manifests'),
  };
  writeFileSync(at('kubelet.yaml'), stringify(kubelet));
  return {
    socket,
    prepare,
    containerd: [inPackages('usr/bin/containerd'), '-c', at('containerd.toml')],
    kubelet: [
      join(bin, 'kubelet'),
      ...['--kubeconfig', kubeconfig, '--config', at('kubelet.yaml')],
      ...['--hostname-override', NODE_NAME, '--node-ip', NETWORK.node],
    ],
  };
}

function containerdSettings(folder: string, socket: string, packages: string): string {
  const at = (name: string) => JSON.stringify(join(folder, name));
  return `version = 3
root = ${at('containerd/root')}
state = ${at('containerd/state')}
[grpc]
  address = ${JSON.stringify(socket)}
[plugins.'io.containerd.internal.v1.opt']
  path = ${at('containerd/opt')}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = ${JSON.stringify(PAUSE_IMAGE)}
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [${JSON.stringify(join(packages, 'usr/lib/cni'))}]
    conf_dir = ${at('cni')}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = ${JSON.stringify(join(packages, 'usr/sbin/runc'))}
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.simulated]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.simulated.options]
      BinaryName = ${at('simulated-runc')}
      SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '/run/nri/nri.sock'
  # 2 s by default, after which a container starts without its GPUs (docs/operate/node.md): the machine of the tests may be busier than nodes.
  plugin_request_timeout = '20s'
  plugin_path = ${at('nri/plugins')}
  plugin_config_path = ${at('nri/conf.d')}
`;
}
