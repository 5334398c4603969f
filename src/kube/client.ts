// Clients of the API server with a timeout for each call (the library alone waits five minutes), over shared
// connections. A write without an answer may still be carried out; its caller must find out.
import { type Configuration, createConfiguration, type KubeConfig, ServerConfiguration } from '@kubernetes/client-node';
import { withKeptConnections } from './connections.ts';

/** Of one call, its body included. */
export const ANSWER_MS = 5000;

export function createApiClient<T>(
  config: KubeConfig,
  Client: new (configuration: Configuration) => T,
  withinMs = ANSWER_MS,
): T {
  const cluster = config.getCurrentCluster();
  if (!cluster) throw new Error('the kubeconfig names no cluster');
  return new Client(
    createConfiguration({
      baseServer: new ServerConfiguration(cluster.server, {}),
      authMethods: { default: withKeptConnections(config) },
      promiseMiddleware: [
        {
          async pre(request) {
            request.setHeaderParam('User-Agent', 'cotenant');
            request.setSignal(endsAfter(withinMs));
            return request;
          },
          post: async (response) => response,
        },
      ],
    }),
  );
}

function endsAfter(ms: number): AbortSignal {
  const late = new AbortController();
  setTimeout(() => late.abort(new Error(`no answer within ${ms / 1000} s`)), ms).unref();
  return late.signal;
}
