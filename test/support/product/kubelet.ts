// Calls the CSI driver as a kubelet does, for tests without a kubelet.
import { join } from 'node:path';
import { Client, credentials, type ServiceDefinition, type ServiceError } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

const SOURCES = join(import.meta.dirname, '../../../src/agent/kubelet/csi');
const definitions = loadSync(
  ['csi.proto', 'registration.proto'].map((name) => join(SOURCES, name)),
  { keepCase: true, defaults: true },
);

export type Answered = { readonly code: number; readonly details: string; readonly value?: unknown };

export const csiSocket = (root: string) => join(root, 'plugins/cotenant.io/csi.sock');
export const registrationSocket = (root: string) => join(root, 'plugins_registry/cotenant.io-reg.sock');

/** One call, such as `csi.v1.Node/NodeGetInfo`. An error status is a result, too. */
export function call(socket: string, method: string, request: object = {}): Promise<Answered> {
  const [service = '', name = ''] = method.split('/');
  const definition = (definitions[service] as unknown as ServiceDefinition)[name];
  if (!definition) throw new Error(`no ${method}`);
  // As Go clients do for unix sockets.
  const client = new Client(`unix:${socket}`, credentials.createInsecure(), { 'grpc.default_authority': 'localhost' });
  return new Promise<Answered>((resolve) => {
    client.makeUnaryRequest(
      definition.path,
      definition.requestSerialize,
      definition.responseDeserialize,
      request,
      { deadline: Date.now() + 10_000 },
      (error: ServiceError | null, value?: unknown) => {
        client.close();
        resolve(error ? { code: error.code, details: error.details } : { code: 0, details: '', value });
      },
    );
  });
}

export const placeOf = (root: string, uid: string, volume = 'cotenant') =>
  join(root, 'pods', uid, 'volumes/kubernetes.io~csi', volume, 'mount');

/** NodePublishVolume as the kubelet calls it for a pod. */
export function publish(
  root: string,
  uid: string,
  pod: string,
  context: Record<string, string> = {},
): Promise<Answered> {
  return call(csiSocket(root), 'csi.v1.Node/NodePublishVolume', {
    volume_id: 'csi-0',
    target_path: placeOf(root, uid),
    volume_context: {
      'csi.storage.k8s.io/ephemeral': 'true',
      'csi.storage.k8s.io/pod.uid': uid,
      'csi.storage.k8s.io/pod.namespace': 'team',
      'csi.storage.k8s.io/pod.name': pod,
      ...context,
    },
  });
}

export function unpublish(root: string, target: string): Promise<Answered> {
  return call(csiSocket(root), 'csi.v1.Node/NodeUnpublishVolume', { volume_id: 'csi-0', target_path: target });
}
