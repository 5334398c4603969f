// Reads the snapshots of agents through the API server's proxy, with a token of the service account that the agent's pod
// names. The API server decides who may have such a token, and it opens nothing but the data of the status pages.
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { STATUS_AUDIENCE, STATUS_READER_ANNOTATION, STATUS_TOKEN_HEADER } from '../../api/names.ts';
import { attempt, err, ok, type Result } from '../../common/result.ts';
import type { Cluster, Got } from './api-client.ts';
import { hasEnded, type Pod } from './objects.ts';
import type { UnknownUse } from './use.ts';

const PAGE_PORT = 9837;
/** The shortest that the API server issues. */
const TOKEN_SECONDS = 600;

type StatusReader = (agent: Pod) => Promise<Result<Snapshot, UnknownUse>>;

/** For one run of a command: it asks for one token for all agents. */
export function createStatusReader(cluster: Cluster): StatusReader {
  const tokens = new Map<string, Promise<Got<string>>>();
  const tokenOf = (account: string): Promise<Got<string>> => {
    const token = tokens.get(account) ?? requestToken(cluster, account);
    tokens.set(account, token);
    return token;
  };
  return async (pod) => {
    const { namespace = '', name, annotations = {} } = pod.metadata;
    const unknown = (short: UnknownUse['short'], why: string) => err({ known: false, short, why } as const);
    const shortOf = (status: number) => (status === 401 || status === 403 ? 'forbidden' : 'no answer');
    if (hasEnded(pod) || pod.status?.phase === 'Pending')
      return unknown('no agent', `its agent ${namespace}/${name} is ${pod.status?.phase}`);
    const reader = annotations[STATUS_READER_ANNOTATION];
    const account = `/api/v1/namespaces/${namespace}/serviceaccounts/${encodeURIComponent(reader ?? '')}`;
    const token = reader === undefined ? ok('') : await tokenOf(account);
    if (!token.ok) return unknown(shortOf(token.status), `no token for the status of agents: ${token.message}`);
    const headers: Record<string, string> = reader === undefined ? {} : { [STATUS_TOKEN_HEADER]: token.value };
    const got = await cluster.text(`/api/v1/namespaces/${namespace}/pods/${addressOf(pod)}/proxy/status.json`, headers);
    if (!got.ok) return unknown(shortOf(got.status), `its agent ${namespace}/${name} does not answer: ${got.message}`);
    const snapshot = attempt(() => JSON.parse(got.value) as Snapshot | null);
    if (!snapshot.ok || !Array.isArray(snapshot.value?.containerTotals))
      return unknown('no answer', `its agent ${namespace}/${name} has no sample yet`);
    return ok(snapshot.value);
  };
}

async function requestToken(cluster: Cluster, account: string): Promise<Got<string>> {
  const spec = { audiences: [STATUS_AUDIENCE], expirationSeconds: TOKEN_SECONDS };
  const body = { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec };
  const made = await cluster.post<{ status?: { token?: string } }>(`${account}/token`, body);
  return made.ok ? { ok: true, value: made.value.status?.token ?? '' } : made;
}

/** As the API server's proxy names the port of a pod. */
function addressOf({ metadata: { name }, spec }: Pod): string {
  const ports = spec.containers.flatMap(({ ports = [], readinessProbe }) =>
    ports.map((one) => ({ ...one, isSecure: readinessProbe?.httpGet?.scheme === 'HTTPS' })),
  );
  const found = ports.find((one) => one.name === 'metrics');
  return `${found?.isSecure ? 'https:' : ''}${name}:${found?.containerPort ?? PAGE_PORT}`;
}
