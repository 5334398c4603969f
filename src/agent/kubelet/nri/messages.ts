// Encodes and decodes NRI messages of runtime and plugin. Decoding never throws: it returns undefined for invalid
// bytes.
import { join } from 'node:path';
import protobuf from 'protobufjs';

export type RuntimePod = {
  readonly id: string;
  readonly name: string;
  readonly uid: string;
  readonly namespace: string;
};

export type RuntimeContainer = {
  readonly id: string;
  readonly pod_sandbox_id: string;
  readonly name: string;
  readonly state: number;
  readonly annotations: Readonly<Record<string, string>>;
  /** `NAME=value`, including the image's variables. */
  readonly env: readonly string[];
  readonly mounts: readonly { readonly destination: string; readonly source: string }[];
  /** Of one that is there: the nodes that it was made with, also those of its CDI devices. */
  readonly linux: { readonly devices: readonly { readonly path: string }[] } | null;
};

type OfOne = { readonly pod: RuntimePod | null; readonly container: RuntimeContainer | null };

/** What each kind of message reads as. */
export type Kinds = {
  TtrpcRequest: { readonly service: string; readonly method: string; readonly payload: Buffer };
  TtrpcResponse: { readonly status: { readonly code: number; readonly message: string } | null };
  SynchronizeRequest: {
    readonly pods: readonly RuntimePod[];
    readonly containers: readonly RuntimeContainer[];
    readonly more: boolean;
  };
  ContainerRequest: OfOne;
  StateChangeEvent: OfOne & { readonly event: number };
};

const PACKAGE = 'nri.pkg.api.v1alpha1';
const root = new protobuf.Root().loadSync(join(import.meta.dirname, 'nri.proto'), { keepCase: true });

export function decode<K extends keyof Kinds>(kind: K, bytes: Buffer): Kinds[K] | undefined {
  const type = root.lookupType(`${PACKAGE}.${kind}`);
  try {
    return type.toObject(type.decode(bytes), { defaults: true, arrays: true, objects: true }) as Kinds[K];
  } catch {
    return undefined;
  }
}

const encode = (kind: string, value: object): Buffer => {
  const type = root.lookupType(`${PACKAGE}.${kind}`);
  return Buffer.from(type.encode(type.fromObject(value)).finish());
};

export const RUNTIME_SERVICE = `${PACKAGE}.Runtime`;

export const call = (service: string, method: string, payload: Buffer): Buffer =>
  encode('TtrpcRequest', { service, method, payload });
export const answer = (payload: Buffer): Buffer => encode('TtrpcResponse', { payload });
export const refuse = (code: number, message: string): Buffer => encode('TtrpcResponse', { status: { code, message } });

export const registration = (name: string, index: string): Buffer =>
  encode('RegisterPluginRequest', { plugin_name: name, plugin_idx: index });
export const subscription = (events: readonly number[]): Buffer =>
  encode('ConfigureResponse', { events: events.reduce((mask, event) => mask | (1 << (event - 1)), 0) });
export const synchronized = (more: boolean): Buffer => encode('SynchronizeResponse', { more });
/** CDI device names and annotations for the container that is created; without devices it is created unchanged. */
export const adjustment = (devices: readonly string[], annotations: Readonly<Record<string, string>>): Buffer =>
  encode(
    'CreateContainerResponse',
    devices.length === 0 ? {} : { adjust: { CDI_devices: devices.map((name) => ({ name })), annotations } },
  );
export const nothing = (): Buffer => Buffer.alloc(0);
