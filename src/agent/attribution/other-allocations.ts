// Devices that others gave to containers of this node: pure, the kubelet's answer in, who has which GPU out. Which GPU a
// device is, is devices.ts'; the kubelet is asked by pod-resources.ts.
import { claimedDevice, type NamedDevice, type NodeGpu, pluginDevice, type ShareMode } from './device-ids.ts';
import { type DeviceUuids, NO_SLICES } from './resource-slices.ts';

export type Assignment = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: ShareMode;
  /** Undefined: the device's name does not identify the GPU. */
  readonly gpuUuid: string | undefined;
};

/** `unknown`: devices of GPUs that are no GPU of this node, or with names that do not identify a GPU. */
export type Assigned = { readonly list: readonly Assignment[]; readonly unknown: number };
export const NOTHING_ASSIGNED: Assigned = { list: [], unknown: 0 };

export type PodResources = {
  readonly name: string;
  readonly namespace: string;
  readonly containers: readonly {
    readonly name: string;
    readonly devices: readonly { readonly resource_name: string; readonly device_ids: readonly string[] }[];
    readonly dynamic_resources: readonly {
      readonly claim_resources: readonly {
        readonly driver_name: string;
        readonly pool_name: string;
        readonly device_name: string;
        readonly share_id: string;
      }[];
    }[];
  }[];
};

/** Each container once per GPU, however many devices of it it has: two replicas of a GPU are no whole GPU. */
export function assignedOf(
  pods: readonly PodResources[],
  gpus: readonly NodeGpu[],
  isOver: (namespace: string, pod: string) => boolean,
  uuids: DeviceUuids = NO_SLICES,
): Assigned {
  let unknown = 0;
  const list = pods
    .filter(({ namespace, name }) => !isOver(namespace, name)) // kubelets before 1.34 list what has ended, too
    .flatMap(({ namespace, name: pod, containers }) =>
      containers.flatMap(({ name: container, devices, dynamic_resources }): Assignment[] => {
        const named: NamedDevice[] = [
          ...devices.flatMap(({ device_ids }) => device_ids.flatMap((id) => pluginDevice(id, gpus) ?? [])),
          ...dynamic_resources.flatMap(({ claim_resources }) =>
            claim_resources.flatMap(
              ({ driver_name: driver, pool_name: pool, device_name: device, share_id: share }) =>
                claimedDevice({ driver, pool, device, share }, gpus, uuids) ?? [],
            ),
          ),
        ];
        unknown += named.filter(({ gpuUuid }) => gpuUuid === undefined).length;
        const byGpu = new Map(named.map(({ gpuUuid, mode }) => [gpuUuid, mode]));
        return [...byGpu].map(([gpuUuid, mode]) => ({ namespace, pod, container, mode, gpuUuid }));
      }),
    );
  return { list, unknown };
}

export type Assignments = {
  of(gpus: readonly NodeGpu[]): Assigned;
  /** Containers without a grant on a GPU: one that was not there before is a reason to ask. */
  met(containerIds: ReadonlySet<string>): void;
  close(): Promise<void>;
};
