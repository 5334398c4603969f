// Decides whether a command asks this machine's agent or a cluster, and defines the options for that choice.
import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { SOCKET_NAME } from '../../agent/config.ts';
import { type Cluster, connect, defaultKubeconfig } from '../cluster/api-client.ts';
import { STATE_OPTION, stateFolder } from '../lib/agent-client.ts';
import { choice, flag, type Option, type Options, type Parsed, text, UsageError } from '../lib/command.ts';

export const KUBECONFIG_OPTIONS: Options = {
  kubeconfig: {
    value: 'FILE',
    help: "of the cluster (default KUBECONFIG, ~/.kube/config, or a pod's service account)",
  },
  context: { value: 'NAME', help: 'in the kubeconfig (default its current one)' },
};

export const WHERE_OPTIONS: Options = {
  ...STATE_OPTION,
  cluster: { help: 'ask the cluster, also where an agent runs on this machine' },
  ...KUBECONFIG_OPTIONS,
  'system-namespace': { value: 'NAMESPACE', help: 'where Cotenant is installed (default: as in its CSIDriver)' },
};

export const namespaceOption = (help: string): Option => ({ short: 'n', value: 'NAMESPACE', help });

/** Options that select a cluster: with one of them the command does not ask this machine's agent. */
const CLUSTER_ONLY = ['cluster', 'kubeconfig', 'context', 'namespace', 'node', 'system-namespace'];

type Surroundings = {
  /** Started as a plugin of kubectl. */
  readonly plugin: boolean;
  /** With --state. */
  readonly stateNamed: boolean;
  /** An agent's socket exists, or COTENANT_STATE names its folder. */
  readonly agentHere: boolean;
  readonly clusterConfigured: boolean;
};

/** Pure. `options`: those on the command line that apply only to a cluster. */
export function chooseWhere(options: readonly string[], around: Surroundings): 'local' | 'cluster' | 'nowhere' {
  if (options.length > 0) return 'cluster';
  if (around.stateNamed) return 'local';
  if (around.plugin) return 'cluster';
  if (around.agentHere) return 'local';
  return around.clusterConfigured ? 'cluster' : 'nowhere';
}

/** The cluster to ask; undefined: the agent of this machine. `both`: options that apply to either. */
export async function clusterOf(parsed: Parsed, both: readonly string[] = []): Promise<Cluster | undefined> {
  const options = CLUSTER_ONLY.filter((name) => !both.includes(name)).filter(
    (name) => parsed.values[name] !== undefined && parsed.values[name] !== false,
  );
  const socket = join(stateFolder(parsed), SOCKET_NAME);
  if (options.length > 0 && text(parsed, 'state') !== undefined) {
    throw new UsageError(`--state names an agent of this machine, --${options[0]} a cluster: want one of them`);
  }
  const where = chooseWhere(options, {
    plugin: basename(process.argv[1] ?? '') === 'kubectl-cotenant',
    stateNamed: text(parsed, 'state') !== undefined,
    agentHere: process.env.COTENANT_STATE !== undefined || existsSync(socket),
    clusterConfigured: defaultKubeconfig() !== undefined,
  });
  if (where === 'local') return undefined;
  if (where === 'nowhere') {
    throw new UsageError(
      `no agent answers at ${socket}, and no cluster is configured; start an agent with "cotenant agent", name its folder with --state, or a cluster with --kubeconfig`,
    );
  }
  return namedCluster(parsed);
}

export const namedCluster = (parsed: Parsed): Promise<Cluster> =>
  connect(text(parsed, 'kubeconfig'), text(parsed, 'context'));

/** Names of Kubernetes' objects (RFC 1123). */
const NAME = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;

/** `POD` or `NAMESPACE/POD`; `given`: by -n; `usual`: where neither names a namespace. */
export function podNamed<U extends string | undefined>(
  argument: string,
  given: string | undefined,
  usual: U,
): { readonly namespace: string | U; readonly name: string } {
  const [first = '', second, ...more] = argument.split('/');
  const [namespace, name] = second === undefined ? [given ?? usual, first] : [first, second];
  if (more.length > 0 || !NAME.test(name) || (namespace !== undefined && !NAME.test(namespace)))
    throw new UsageError(`${argument}: want POD or NAMESPACE/POD`);
  if (given !== undefined && given !== namespace)
    throw new UsageError(`-n ${given} and ${argument} name two namespaces: want one`);
  return { namespace: namespace as string | U, name };
}

export const systemOf = (parsed: Parsed): string | undefined => text(parsed, 'system-namespace');

export const OUTPUT_OPTIONS: Options = {
  output: { short: 'o', value: 'FORM', help: 'table (default) or json' },
  json: { help: 'the same as -o json' },
};

/** Of one of these forms, `table` unless another is asked for. */
export function formOf<const T extends string>(parsed: Parsed, forms: readonly T[]): T | 'table' | 'json' {
  const form = choice(parsed, 'output', forms);
  if (!flag(parsed, 'json')) return form ?? 'table';
  if (form !== undefined && form !== 'json') throw new UsageError(`-o ${form} and --json: want one of them`);
  return 'json';
}

export const wantsJson = (parsed: Parsed): boolean => formOf(parsed, ['table', 'json']) === 'json';
