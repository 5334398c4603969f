// GPUs that other device plugins allocated to containers of this node, from the kubelet's PodResources answer. Pure.
// device-ids.ts finds the GPU of a device; pod-resources.ts reads the answer.
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

/** `unknown`: number of devices whose name identifies no GPU of this node. */
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

/** Each container once per GPU, also with several devices of that GPU: two replicas are not a whole GPU. */
export function assignedOf(
  pods: readonly PodResources[],
  gpus: readonly NodeGpu[],
  isOver: (namespace: string, pod: string) => boolean,
  uuids: DeviceUuids = NO_SLICES,
): Assigned {
  let unknown = 0;
  const list = pods
    .filter(({ namespace, name }) => !isOver(namespace, name)) // kubelets before 1.34 also list ended pods
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
  /** Called with containers that use a GPU without a grant; asks the kubelet again if one is new. */
  met(containerIds: ReadonlySet<string>): void;
  close(): Promise<void>;
};
