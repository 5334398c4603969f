// Settings of the agent in Kubernetes: the node's name, and where the kubelet and the container runtime are.
import * as v from 'valibot';
import { nonEmpty, oneOf } from '../../common/schema.ts';

export const FOLDERS_WANTED = 'absolute folders with commas, or nothing';

/** Of a list with commas. */
export const foldersOf = (list: string): readonly string[] => (list === '' ? [] : list.split(','));
export const isFolders = (list: string): boolean => foldersOf(list).every((folder) => /^\/./.test(folder));

export const KubernetesSettings = v.object({
  /** Names containers by a watch of this node's pods, and writes Events for what was done to them. */
  enabled: v.optional(v.boolean(), false),
  nodeName: v.optional(v.string("the node's name"), ''),
  kubeletRoot: v.optional(nonEmpty('the folder of the kubelet'), '/var/lib/kubelet'),
  /** Where the kubelet lists the devices that it allocated; empty: it is not asked. */
  podResources: v.optional(v.string('a socket, or nothing'), '/var/lib/kubelet/pod-resources/kubelet.sock'),
  /** Serves pods: their volumes, slots and amounts of this node. */
  pods: v.optional(v.boolean(), false),
  /** What publishes how many tenants the node takes: the Node's status, or a device plugin. */
  slots: v.optional(oneOf(['status', 'device-plugin']), 'status'),
  /** NRI socket of the container runtime; empty: devices reach containers by another way. */
  nriSocket: v.optional(v.string('a socket, or nothing'), '/var/run/nri/nri.sock'),
  /** Kind of the CDI devices that containers are given, each named by a GPU's UUID. */
  cdiKind: v.optional(nonEmpty('vendor/class'), 'nvidia.com/gpu'),
  /** The runtime's CDI folders, with commas; empty: GPUs bring all parts of the driver. The last one is written to. */
  cdiFolders: v.optional(v.pipe(v.string(FOLDERS_WANTED), v.check(isFolders, FOLDERS_WANTED)), '/etc/cdi,/var/run/cdi'),
});
export type KubernetesSettings = Readonly<v.InferOutput<typeof KubernetesSettings>>;
