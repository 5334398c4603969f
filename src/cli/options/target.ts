// Decides whether a command asks this machine's agent or a cluster, and defines the options for that choice.
import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { SOCKET_NAME } from '../../agent/config.ts';
import { type Cluster, connect } from '../cluster/api-client.ts';
import { defaultKubeconfig } from '../cluster/kubeconfig.ts';
import { STATE_OPTION, stateFolder } from '../lib/agent-client.ts';
import { given, type Option, type Options, type Parsed, text, texts, UsageError } from '../lib/command.ts';

export const KUBECONFIG_OPTIONS: Options = {
  kubeconfig: {
    value: 'FILE',
    help: "of the cluster (default KUBECONFIG, ~/.kube/config, or a pod's service account)",
  },
  context: { value: 'NAME', help: 'in the kubeconfig (default its current one)' },
  cluster: { value: 'NAME', help: "of the kubeconfig, in place of the context's" },
  as: { value: 'USER', help: 'user to act as, as kubectl does' },
  'as-group': { value: 'GROUP', multiple: true, help: 'with --as: a group of that user; may be given several times' },
  'request-timeout': { value: 'TIME', help: 'for each request, such as 30s or 1m; 0: none (default 15s)' },
};

export const WHERE_OPTIONS: Options = {
  ...STATE_OPTION,
  'ask-cluster': { help: 'ask the cluster, also where an agent runs on this machine' },
  ...KUBECONFIG_OPTIONS,
  'system-namespace': { value: 'NAMESPACE', help: 'where Cotenant is installed (default: as in its CSIDriver)' },
};

export const allNamespacesOption = (help: string): Option => ({ short: 'A', help });

export const namespaceOption = (help: string): Option => ({ short: 'n', value: 'NAMESPACE', help });

/** Options that select a cluster: with one of them the command does not ask this machine's agent. */
const CLUSTER_ONLY = [
  'ask-cluster',
  ...Object.keys(KUBECONFIG_OPTIONS),
  'namespace',
  'all-namespaces',
  'node',
  'system-namespace',
];

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

const isPlugin = (): boolean => basename(process.argv[1] ?? '') === 'kubectl-cotenant';

function optionsOfCluster(parsed: Parsed, both: readonly string[] = []): readonly string[] {
  const options = CLUSTER_ONLY.filter((name) => !both.includes(name)).filter(
    (name) => parsed.values[name] !== undefined && parsed.values[name] !== false,
  );
  if (options.length > 0 && text(parsed, 'state') !== undefined)
    throw new UsageError(`--state names an agent of this machine, --${options[0]} a cluster: want one of them`);
  return options;
}

/** The cluster that an option or kubectl chooses; undefined: this machine, whatever else is configured. */
export async function chosenCluster(parsed: Parsed): Promise<Cluster | undefined> {
  const isChosen = optionsOfCluster(parsed).length > 0 || (isPlugin() && text(parsed, 'state') === undefined);
  return isChosen ? namedCluster(parsed) : undefined;
}

/** The cluster to ask; undefined: the agent of this machine. `both`: options that apply to either. */
export async function clusterOf(parsed: Parsed, both: readonly string[] = []): Promise<Cluster | undefined> {
  const options = optionsOfCluster(parsed, both);
  const socket = join(stateFolder(parsed), SOCKET_NAME);
  const where = chooseWhere(options, {
    plugin: isPlugin(),
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

export function namedCluster(parsed: Parsed): Promise<Cluster> {
  const namespace = text(parsed, 'namespace');
  if (namespace !== undefined && !NAME.test(namespace))
    throw new UsageError(`${given('namespace', namespace)}: want the name of a namespace`);
  const [user, groups] = [text(parsed, 'as'), texts(parsed, 'as-group')];
  if (user === undefined && groups.length > 0) throw new UsageError('--as-group: needs --as USER');
  return connect(text(parsed, 'kubeconfig'), text(parsed, 'context'), {
    cluster: text(parsed, 'cluster'),
    ...(user !== undefined && { as: { user, groups } }),
    timeoutMs: requestTimeout(text(parsed, 'request-timeout')),
  });
}

const UNITS_MS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

/** As kubectl reads it: a number alone is seconds, `1m30s` is both, 0 waits for ever. */
export function requestTimeout(time: string | undefined): number | undefined {
  if (time === undefined) return undefined;
  const isWhole = /^(\d{1,9}|(\d{1,9}(\.\d{1,9})?(ms|s|m|h)){1,4})$/.test(time);
  if (!isWhole) throw new UsageError(`${given('request-timeout', time)}: want a time such as 30s, 1m30s or 0`);
  const parts = [...time.matchAll(/([\d.]+)(ms|s|m|h)?/g)];
  return parts.reduce((sum, [, count, unit = 's']) => sum + Number(count) * (UNITS_MS[unit] ?? 0), 0);
}

/** Names of Kubernetes' objects (RFC 1123). */
const NAME = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;

/** `POD` or `NAMESPACE/POD`, or `pod/POD` as kubectl has it; `given`: by -n; `usual`: where neither names a namespace. */
export function podNamed<U extends string | undefined>(
  argument: string,
  given: string | undefined,
  usual: U,
): { readonly namespace: string | U; readonly name: string } {
  const [first = '', second, ...more] = argument.replace(/^(po|pods?)\//, '').split('/');
  const [namespace, name] = second === undefined ? [given ?? usual, first] : [first, second];
  if (more.length > 0 || !NAME.test(name) || (namespace !== undefined && !NAME.test(namespace)))
    throw new UsageError(`${argument}: want POD or NAMESPACE/POD`);
  if (given !== undefined && given !== namespace)
    throw new UsageError(`-n ${given} and ${argument} name two namespaces: want one`);
  return { namespace: namespace as string | U, name };
}

export const systemOf = (parsed: Parsed): string | undefined => text(parsed, 'system-namespace');
