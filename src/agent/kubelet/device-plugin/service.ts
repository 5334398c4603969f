// The gRPC service of the device plugin: reports the number of slots to the kubelet. Slots are only counted, so an
// allocation adds nothing to a container. plugin.ts has sockets and registration.
import { join } from 'node:path';
import {
  type handleServerStreamingCall,
  type handleUnaryCall,
  Metadata,
  type ServerWritableStream,
  type ServiceDefinition,
  status,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

/** Number of tenants that the node's healthy GPUs can take, and that its unhealthy GPUs could take if they were
 * healthy. */
export type Slots = {
  readonly healthy: number;
  readonly unhealthy: number;
  /** NUMA nodes that are near any of the GPUs; absent: unknown. */
  readonly numaNodes?: readonly number[] | undefined;
};

type Topology = { readonly nodes: readonly { readonly ID: number }[] };
export type Device = {
  readonly ID: string;
  readonly health: 'Healthy' | 'Unhealthy';
  readonly topology?: Topology;
};

/** Slot ids do not identify GPUs: the kubelet's choice among them has no meaning. So each may be near any of them. */
export function devicesOf({ healthy, unhealthy, numaNodes }: Slots): readonly Device[] {
  const topology = numaNodes && { nodes: numaNodes.map((ID) => ({ ID })) };
  return Array.from({ length: healthy + unhealthy }, (_, index) => ({
    ID: `s-${String(index).padStart(3, '0')}`,
    health: index < healthy ? 'Healthy' : 'Unhealthy',
    ...(topology && { topology }),
  }));
}

type Empty = Record<string, never>;
type DeviceList = { readonly devices: readonly Device[] };
type AllocateRequest = { readonly container_requests: readonly unknown[] };
type AllocateResponse = { readonly container_responses: readonly Empty[] };
export type Watcher = ServerWritableStream<Empty, DeviceList>;

const definitions = loadSync(join(import.meta.dirname, 'deviceplugin.proto'), { keepCase: true, defaults: true });
const serviceNamed = (name: string) => definitions[`v1beta1.${name}`] as unknown as ServiceDefinition;
export const DEVICE_PLUGIN = serviceNamed('DevicePlugin');
export const REGISTRATION = serviceNamed('Registration');

/** `onWatcher` gets each ListAndWatch stream. */
export function createService(onWatcher: (watcher: Watcher) => void): UntypedServiceImplementation {
  const options: handleUnaryCall<Empty, Empty> = (_call, answer) => answer(null, {});
  const watch: handleServerStreamingCall<Empty, DeviceList> = (stream) => onWatcher(stream);
  // One answer for each container, in the order of the request.
  const allocate: handleUnaryCall<AllocateRequest, AllocateResponse> = ({ request }, answer) =>
    answer(null, { container_responses: request.container_requests.map(() => ({})) });
  const notOffered: handleUnaryCall<Empty, Empty> = (_call, answer) =>
    answer({ code: status.UNIMPLEMENTED, details: 'not offered in the options', metadata: new Metadata() });
  return {
    GetDevicePluginOptions: options,
    ListAndWatch: watch,
    Allocate: allocate,
    GetPreferredAllocation: notOffered,
    PreStartContainer: notOffered,
  };
}
