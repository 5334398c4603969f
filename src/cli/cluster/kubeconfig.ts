// Finds and reads kubeconfigs as kubectl does, and makes what a request needs of one: credentials, TLS, proxy.
// Facts: client-go, tools/clientcmd/loader.go (files that are missing are skipped, the first one to name an entry wins) and
// client_config.go (no credentials over http).
import { existsSync, statSync } from 'node:fs';
import type { RequestOptions } from 'node:https';
import { homedir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { ConfigOptions, KubeConfig } from '@kubernetes/client-node';
import { describeApiError } from '../../kube/api-error.ts';
import { UsageError } from '../lib/command.ts';
import { oneLine } from '../lib/text.ts';
import { proxyFor } from './proxy.ts';

const TOKEN = '/var/run/secrets/kubernetes.io/serviceaccount/token';

/** As in the file. */
type Exec = { readonly apiVersion?: string; readonly env?: readonly object[] };

const filesOf = (list = ''): readonly string[] => list.split(delimiter).filter((file) => file !== '');

/** Of the default kubeconfig, as one text; undefined: none exists. */
export function defaultKubeconfig(): string | undefined {
  const files = filesOf(process.env.KUBECONFIG);
  if (files.length > 0) return files.join(delimiter);
  return [join(homedir(), '.kube/config'), TOKEN].find((path) => existsSync(path));
}

type Loaded = {
  readonly config: KubeConfig;
  /** Where it is from, for messages. */
  readonly from: string;
};

/** `file`: given by name. */
export async function loadKubeconfig(file: string | undefined): Promise<Loaded> {
  const from = file ?? defaultKubeconfig();
  if (from === undefined) {
    throw new UsageError('no cluster is configured: name a kubeconfig with --kubeconfig, or in KUBECONFIG');
  }
  const files = file === undefined ? filesOf(from).filter((one) => existsSync(one)) : [from];
  if (files.length === 0)
    throw new UsageError(`${from}: there is no such file; name a kubeconfig, or unset KUBECONFIG`);
  // Large, and of no use without a cluster.
  const { KubeConfig } = await import('@kubernetes/client-node');
  const config = new KubeConfig();
  if (from === TOKEN) {
    config.loadFromCluster();
    return { config, from };
  }
  // An incomplete entry does not keep others from being used.
  const options: Partial<ConfigOptions> = { onInvalidEntry: 'filter' };
  const single = (one: string): KubeConfig => {
    const read = new KubeConfig();
    try {
      const stat = statSync(one);
      // A pipe has no size.
      if (!stat.isFile() || stat.size > 0) read.loadFromFile(one, options);
    } catch (error) {
      throw new UsageError(`${one}: no kubeconfig can be read: ${oneLine((error as Error).message)}`);
    }
    return read;
  };
  for (const each of files.map(single)) {
    config.clusters = firstOf(config.clusters, each.clusters);
    config.users = firstOf(config.users, each.users);
    config.contexts = firstOf(config.contexts, each.contexts);
    if (!config.currentContext) config.setCurrentContext(each.currentContext);
  }
  return { config, from };
}

function firstOf<T extends { readonly name: string }>(present: T[] = [], more: readonly T[] = []): T[] {
  return [...present, ...more.filter(({ name }) => !present.some((one) => one.name === name))];
}

/** For requests to the current cluster, which the caller has looked at. */
export async function optionsOf(config: KubeConfig, from: string): Promise<RequestOptions> {
  const current = config.getCurrentCluster();
  const server = current?.server ?? '';
  // As of "kubectl proxy".
  if (server.startsWith('http:') && !current?.skipTLSVerify) return {};
  const proxyUrl = current?.proxyUrl ?? proxyFor(server, process.env);
  if (proxyUrl !== undefined)
    config.clusters = config.clusters.map((one) => (one === current ? { ...one, proxyUrl } : one));
  const user = config.getCurrentUser();
  config.users = config.users.map((one) => (one === user && one.exec ? { ...one, exec: withRequest(one.exec) } : one));
  const options: RequestOptions = {};
  try {
    await config.applyToHTTPSOptions(options);
  } catch (error) {
    throw new UsageError(`${from}: no credentials for ${server}: ${whyNone(error, config)}`);
  }
  return options;
}

/** The program finds the request in its environment (client-go, plugin/pkg/client/auth/exec/exec.go); without it, some
 * programs wait for it on standard input. */
function withRequest(exec: Exec): Exec {
  const { apiVersion = 'client.authentication.k8s.io/v1', env } = exec;
  const request = { apiVersion, kind: 'ExecCredential', spec: { interactive: false } };
  return { ...exec, env: [...(env ?? []), { name: 'KUBERNETES_EXEC_INFO', value: JSON.stringify(request) }] };
}

function whyNone(error: unknown, config: KubeConfig): string {
  const { exec, authProvider } = config.getCurrentUser() ?? {};
  const isOddAnswer = error instanceof TypeError || error instanceof SyntaxError;
  if (exec?.command === undefined) {
    if (isOddAnswer && authProvider) return `auth-provider ${authProvider.name} has no token; configure an exec plugin`;
    return describeApiError(error);
  }
  const { code, message = '' } = error as NodeJS.ErrnoException;
  // Programs such as aws begin with an empty line.
  const said = oneLine(message.split('\n').find((line) => line.trim() !== '') ?? '');
  const why =
    (code === 'ENOENT' && 'there is no such program; install it, or write its path') ||
    (isOddAnswer && 'its answer is no ExecCredential') ||
    said ||
    'it failed and said nothing';
  return `${exec.command}: ${why}`;
}
