// A minimal DRA driver for the test cluster's node: registers with the kubelet and prepares a claim by returning the
// CDI devices of the scheduler's choice. Implements k8s.io/kubelet/pkg/apis/dra/v1 (Kubernetes 1.36); the test defines
// the devices and their CDI specs.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { Server, ServerCredentials, type ServiceDefinition, type sendUnaryData } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import type { Bed } from '../bed/bed.ts';

const PROTOCOLS = ['dra.proto', '../../../src/agent/kubelet/csi/registration.proto'];
const definitions = loadSync(
  PROTOCOLS.map((path) => join(import.meta.dirname, path)),
  { keepCase: true, defaults: true },
);
const serviceNamed = (name: string) => definitions[name] as unknown as ServiceDefinition;
const KUBELET_ROOT = '/var/lib/kubelet';
const CLAIMS = '/apis/resource.k8s.io/v1';

type Named = { readonly namespace: string; readonly uid: string; readonly name: string };
type Asked = { readonly request: { readonly claims: readonly Named[] } };
type Allocated = {
  readonly status?: {
    readonly allocation?: {
      readonly devices?: {
        readonly results?: readonly {
          readonly request: string;
          readonly driver: string;
          readonly pool: string;
          readonly device: string;
          readonly shareID?: string;
        }[];
      };
    };
  };
};

export type DraDriver = {
  /** Resolves when the kubelet has registered it. Rejects with the kubelet's message if it does not. */
  readonly registered: Promise<void>;
  /** `namespace/name` of the claims that are prepared now. */
  readonly prepared: ReadonlySet<string>;
  close(): void;
};

/** `cdiOf`: the CDI device for a device of this driver. */
export async function startDraDriver(bed: Bed, name: string, cdiOf: (device: string) => string): Promise<DraDriver> {
  const { promise: registered, resolve, reject } = Promise.withResolvers<void>();
  const prepared = new Set<string>();
  const prepare = async ({ namespace, name: claim }: Named): Promise<object> => {
    const found = await bed.api.get<Allocated>(`${CLAIMS}/namespaces/${namespace}/resourceclaims/${claim}`);
    const results = found?.status?.allocation?.devices?.results ?? [];
    prepared.add(`${namespace}/${claim}`);
    return {
      devices: results
        .filter(({ driver }) => driver === name)
        .map(({ request, pool, device, shareID }) => ({
          request_names: [request],
          pool_name: pool,
          device_name: device,
          cdi_device_ids: [cdiOf(device)],
          ...(shareID !== undefined && { share_id: shareID }),
        })),
    };
  };
  /** One result for each claim, by its uid. */
  const forEach = (work: (claim: Named) => object | Promise<object>) => (call: Asked, reply: sendUnaryData<object>) => {
    const answers = call.request.claims.map(async (claim) => {
      try {
        return [claim.uid, await work(claim)];
      } catch (error) {
        return [claim.uid, { error: String(error) }];
      }
    });
    void Promise.all(answers).then((claims) => reply(null, { claims: Object.fromEntries(claims) }));
  };

  const server = new Server();
  server.addService(serviceNamed('k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin'), {
    NodePrepareResources: forEach(prepare),
    NodeUnprepareResources: forEach(({ namespace, name: claim }) => {
      prepared.delete(`${namespace}/${claim}`);
      return {};
    }),
  });
  const plugin = join('plugins', name);
  server.addService(serviceNamed('pluginregistration.Registration'), {
    GetInfo: (_: unknown, reply: sendUnaryData<object>) =>
      reply(null, {
        type: 'DRAPlugin',
        name,
        endpoint: join(KUBELET_ROOT, plugin, 'dra.sock'),
        supported_versions: ['v1.DRAPlugin'],
      }),
    NotifyRegistrationStatus: (
      { request }: { request: { plugin_registered: boolean; error: string } },
      reply: sendUnaryData<object>,
    ) => {
      if (request.plugin_registered) resolve();
      else reject(new Error(`the kubelet does not register ${name}: ${request.error}`));
      reply(null, {});
    },
  });
  // The kubelet's folder as this process sees it: unix sockets are found by their files, from any namespace.
  const root = join(bed.folder, 'host', KUBELET_ROOT.replaceAll('/', '_'));
  const listen = (path: string) => {
    const { promise, resolve: done, reject: fail } = Promise.withResolvers<void>();
    server.bindAsync(`unix:${path}`, ServerCredentials.createInsecure(), (error) => (error ? fail(error) : done()));
    return promise;
  };
  mkdirSync(join(root, plugin), { recursive: true });
  await listen(join(root, plugin, 'dra.sock'));
  // The kubelet calls as soon as it finds this socket.
  await listen(join(root, 'plugins_registry', `${name}-reg.sock`));
  return { registered, prepared, close: () => server.forceShutdown() };
}
