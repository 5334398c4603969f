// How the API server is reached, and with which credentials. Pods read their service account's files at each call. The
// client library takes 80 MiB, nearly all of it models and calls that nothing here uses: it is loaded for kubeconfigs
// only that have more than what is read here.
import { existsSync, readFileSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import { field, listAt, textAt } from '../common/json.ts';

/** What a call writes its headers and its connection to. */
export type CallContext = {
  setHeaderParam(name: string, value: string): void;
  setDispatcher(dispatcher: never): void;
};

type TlsOptions = { readonly ca?: Buffer; readonly rejectUnauthorized?: boolean };
type DispatcherArguments = [cluster: never, options: TlsOptions];

/** The part of the client library's KubeConfig that calls use. */
export type ApiConfig = {
  getCurrentCluster(): { readonly server: string } | null;
  applySecurityAuthentication(context: CallContext): Promise<void>;
  createDispatcherOptions(...args: DispatcherArguments): { readonly type: string; readonly connect?: unknown };
};

const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';

/** By the file; by default by what KUBECONFIG names, as any pod does, or by the file at home. */
export async function loadApiConfig(file?: string): Promise<ApiConfig> {
  const named = file ?? process.env.KUBECONFIG;
  if (!named && existsSync(`${SERVICE_ACCOUNT}/token`)) return inCluster(process.env);
  const plain = named && existsSync(named) ? fromPlainKubeconfig(readFileSync(named, 'utf8')) : undefined;
  if (plain) return plain;
  const { KubeConfig } = await import('@kubernetes/client-node');
  const config = new KubeConfig();
  // Also where KUBECONFIG names several files.
  if (file !== undefined) config.loadFromFile(file);
  else config.loadFromDefault();
  return config;
}

/** As a pod does, whatever other configuration there is. */
export function inCluster(env: NodeJS.ProcessEnv, folder = SERVICE_ACCOUNT): ApiConfig {
  const { KUBERNETES_SERVICE_HOST: host = '', KUBERNETES_SERVICE_PORT: port = '' } = env;
  if (host === '') throw new Error('KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster');
  return plainConfig(`https://${isIPv6(host) ? `[${host}]` : host}:${port}`, () => ({
    token: readFileSync(`${folder}/token`, 'utf8').trim(),
    tls: { ca: readFileSync(`${folder}/ca.crt`) },
  }));
}

type Credentials = { readonly token?: string; readonly tls: TlsOptions };
/** connections.ts adds what makes the dispatchers. */
type WithDispatchers = { createDispatcher?(...args: unknown[]): never };

function plainConfig(server: string, credentials: () => Credentials): ApiConfig {
  return {
    getCurrentCluster: () => ({ server }),
    async applySecurityAuthentication(this: WithDispatchers, context) {
      const { token, tls } = credentials();
      if (token !== undefined) context.setHeaderParam('Authorization', `Bearer ${token}`);
      const dispatcher = this.createDispatcher?.(undefined, tls);
      if (dispatcher) context.setDispatcher(dispatcher);
    },
    createDispatcherOptions: (_cluster, tls) =>
      Object.keys(tls).length === 0 ? { type: 'none' } : { type: 'agent', connect: tls },
  };
}

const CLUSTER_KEYS = ['server', 'insecure-skip-tls-verify'];

/** Undefined where it is not JSON, or has more than an address and a token. */
export function fromPlainKubeconfig(text: string): ApiConfig | undefined {
  let config: unknown;
  try {
    config = JSON.parse(text);
  } catch {
    return undefined;
  }
  const named = (list: string, name: unknown) => listAt(config, list).find((one) => field(one, 'name') === name);
  const context = field(named('contexts', field(config, 'current-context')), 'context');
  const cluster = field(named('clusters', field(context, 'cluster')), 'cluster');
  const user = field(named('users', field(context, 'user')), 'user');
  const server = textAt(cluster, 'server');
  if (server === undefined || !hasOnly(cluster, CLUSTER_KEYS) || !hasOnly(user, ['token'])) return undefined;
  const token = textAt(user, 'token');
  const skips = field(cluster, 'insecure-skip-tls-verify') === true;
  const isSecure = server.startsWith('https:');
  // The client library refuses it.
  if (!isSecure && !skips) return undefined;
  const tls = isSecure && skips ? { rejectUnauthorized: false } : {};
  return plainConfig(server, () => ({ tls, ...(token !== undefined && { token }) }));
}

const hasOnly = (value: unknown, keys: readonly string[]): boolean =>
  Object.entries(value ?? {}).every(([key, one]) => one === undefined || one === null || keys.includes(key));
