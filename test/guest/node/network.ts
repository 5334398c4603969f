// Addresses of the emulated node, in the network that QEMU makes for it, and of what it reaches outside. QEMU's process
// is in the test cluster's network namespace: what the guest connects to is connected to from there.
import { NETWORK } from '../../cluster/bed/control-plane.ts';

export const GUEST_NODE = 'guest-1';

export const GUEST_NETWORK = {
  subnet: '10.231.8.0/24',
  /** QEMU itself, as the router. */
  host: '10.231.8.2',
  dns: '10.231.8.3',
  node: '10.231.8.15',
  /** The first pod's, which is the agent's: pods have addresses in the order in which they start. */
  firstPod: '10.231.8.100',
  /** The Service `kubernetes`, which is local to the test cluster's namespace. */
  api: NETWORK.api,
};

export const CONTROL_PORT = 7000;
const KUBELET_PORT = 10250;
const METRICS_PORT = 9837;

/** Ports of the guest that the cluster's namespace reaches at the guest's own addresses. */
const FORWARDED = [
  [GUEST_NETWORK.node, CONTROL_PORT],
  [GUEST_NETWORK.node, KUBELET_PORT],
  [GUEST_NETWORK.firstPod, METRICS_PORT],
] as const;

/**
 * Script for the cluster's namespace, before the guest starts. What connects to a local address has that address itself
 * unless its route says otherwise; QEMU takes loopback addresses for its router's, and would forward the guest packets
 * from its own address.
 */
export const NETWORK_SCRIPT = [GUEST_NETWORK.node, GUEST_NETWORK.firstPod]
  .map((address) => `ip route add local ${address}/32 dev lo src 127.0.0.1 table local`)
  .join('\n');

/** Arguments of QEMU. */
export const networkDevices = (): readonly string[] => {
  const { subnet, host, dns, node } = GUEST_NETWORK;
  const forwards = FORWARDED.map(([address, port]) => `hostfwd=tcp:${address}:${port}-${address}:${port}`);
  const user = [`user,id=net0,ipv6=off,net=${subnet},host=${host},dns=${dns},dhcpstart=${node}`, ...forwards].join(',');
  return ['-netdev', user, '-device', 'virtio-net-pci,netdev=net0,romfile='];
};
