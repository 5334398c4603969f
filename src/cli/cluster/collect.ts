// Reads nodes, pods, Events and the agents' snapshots through the API server for `inspect` and `why`. Forbidden calls
// become notes; pure functions elsewhere evaluate the facts.
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { CSI_DRIVER } from '../../api/csi-volume.ts';
import { COMPONENT_LABEL, NAMESPACE_ANNOTATION } from '../../api/names.ts';
import type { Result } from '../../common/result.ts';
import { given } from '../../request/rules/namespace-rules.ts';
import { Refused, UsageError } from '../lib/command.ts';
import { createStatusReader } from './agent-status.ts';
import type { Cluster, Got, Refusal } from './api-client.ts';
import type { PodFacts } from './explanation.ts';
import { type ClusterObjects, inventoryOf } from './inventory.ts';
import { type CsiDriver, type Event, hasEnded, type Node, type Pod } from './objects.ts';
import { type UnknownUse, type Use, useOf } from './use.ts';

const AT_ONCE = 16;
const ALIVE = 'status.phase!=Succeeded,status.phase!=Failed';

type Selection = {
  /** The context's namespace if the user named none; read alone if the user may not read all namespaces. */
  readonly namespace: string;
  readonly node?: string | undefined;
  /** Cotenant's namespace, if known; else it is looked up. */
  readonly system?: string | undefined;
};

export async function readCluster(cluster: Cluster, selection: Selection): Promise<ClusterObjects> {
  const { nodes, pods, notes } = await readNodesAndPods(cluster, selection);
  const granted = new Set(pods.flatMap((pod) => pod.spec.nodeName ?? []));
  const names = new Set([
    ...(nodes ?? []).map(({ metadata }) => metadata.name),
    ...(nodes === undefined ? granted : []),
  ]);
  return { nodes, pods, use: await readUse(cluster, { system: selection.system, nodes: names, notes }), notes };
}

/** `notes` may grow. */
type NodesAndPods = Pick<ClusterObjects, 'nodes' | 'pods'> & { readonly notes: string[] };

export async function readNodesAndPods(cluster: Cluster, { namespace, node }: Selection): Promise<NodesAndPods> {
  const notes: string[] = [];
  const nodes = await readNodes(cluster, node, notes);
  const fieldSelector = node === undefined ? ALIVE : `${ALIVE},spec.nodeName=${node}`;
  let pods = await cluster.list<Pod>('/api/v1/pods', { fieldSelector });
  if (!pods.ok) {
    const all = pods;
    pods = await cluster.list<Pod>(`/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`, { fieldSelector });
    if (!pods.ok) throw new Refused(`pods cannot be listed: ${pods.message}`);
    notes.push(`Only pods of namespace ${namespace} are counted: ${messageOf(all)}.`);
  }
  return { nodes, pods: pods.value, notes };
}

async function readNodes(cluster: Cluster, name: string | undefined, notes: string[]): Promise<Node[] | undefined> {
  if (name === undefined) {
    const got = await cluster.list<Node>('/api/v1/nodes');
    if (got.ok) return [...got.value];
    notes.push(`Sizes and models of GPUs are not shown: ${messageOf(got)}.`);
    return undefined;
  }
  const got = await cluster.get<Node>(`/api/v1/nodes/${encodeURIComponent(name)}`);
  if (got.ok) return [got.value];
  if (got.status === 404) throw new UsageError(`--node ${name}: there is no node of that name`);
  notes.push(`Sizes and models of GPUs are not shown: ${messageOf(got)}.`);
  return undefined;
}

/**
 * Pods of a component of Cotenant. Any user can set the labels, so only pods in the namespace of Cotenant count, which
 * the CSIDriver records, or `system` names.
 */
export async function listParts(
  cluster: Cluster,
  system: string | undefined,
  component: 'agent' | 'webhook' | 'scheduler',
  node?: string,
): Promise<Got<readonly Pod[]>> {
  let namespace = system;
  if (namespace === undefined) {
    const driver = await cluster.get<CsiDriver>(`/apis/storage.k8s.io/v1/csidrivers/${CSI_DRIVER}`);
    if (!driver.ok && driver.status !== 404) return driver;
    namespace = driver.ok ? driver.value.metadata.annotations?.[NAMESPACE_ANNOTATION] : undefined;
  }
  if (namespace === undefined) {
    const message = `no CSIDriver ${CSI_DRIVER} records where Cotenant is installed; name the namespace with --system-namespace`;
    return { ok: false, status: 404, message };
  }
  return cluster.list<Pod>(`/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`, {
    labelSelector: `${COMPONENT_LABEL}=${component}`,
    ...(node === undefined ? {} : { fieldSelector: `spec.nodeName=${node}` }),
  });
}

type UseWanted = {
  readonly system: string | undefined;
  /** Absent: all that have an agent. */
  readonly nodes?: ReadonlySet<string>;
  readonly notes: string[];
  /** Begins the notes about missing answers. */
  readonly lack?: string;
};

/** Use by node, for the requested nodes that have an agent. */
export async function readUse(cluster: Cluster, wanted: UseWanted): Promise<Map<string, Use>> {
  const { system, nodes, notes, lack = 'Use is not shown' } = wanted;
  const agents = await listParts(cluster, system, 'agent');
  if (!agents.ok) {
    notes.push(`${lack}: ${messageOf(agents)}.`);
    const short = agents.status === 403 ? 'forbidden' : 'not asked';
    const unknown: Use = { known: false, short, why: messageOf(agents) };
    return new Map([...(nodes ?? [])].map((name) => [name, unknown]));
  }
  const waiting = agents.value.filter(({ spec }) => nodes?.has(spec.nodeName ?? '') ?? true);
  const use = new Map<string, Use>();
  const read = createStatusReader(cluster);
  await forEach(waiting, async (pod) => {
    const name = pod.spec.nodeName ?? '';
    const found = usedOf(await read(pod));
    // While an agent is replaced, its node has two agent pods.
    if (!use.get(name)?.known) use.set(name, found);
  });
  const refused = [...use.values()].find((one) => !one.known && one.short === 'forbidden');
  if (refused && !refused.known) notes.push(`${lack} everywhere: ${refused.why}.`);
  return use;
}

const usedOf = (snapshot: Result<Snapshot, UnknownUse>): Use => (snapshot.ok ? useOf(snapshot.value) : snapshot.error);

/** The snapshot of each agent of the cluster; `missing`: why agents are missing, a sentence each. */
export async function readSnapshots(cluster: Cluster, system: string | undefined) {
  const agents = await listParts(cluster, system, 'agent');
  if (!agents.ok) throw new UsageError(`the agents cannot be found: ${messageOf(agents)}`);
  const snapshots: Snapshot[] = [];
  const missing: string[] = [];
  const read = createStatusReader(cluster);
  await forEach(agents.value, async (pod) => {
    const snapshot = await read(pod);
    if (snapshot.ok) snapshots.push(snapshot.value);
    else missing.push(snapshot.error.why);
  });
  return { snapshots, missing };
}

/** Runs at most `AT_ONCE` requests at a time. */
async function forEach<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  const waiting = [...items];
  const some = async () => {
    for (let item = waiting.pop(); item !== undefined; item = waiting.pop()) await work(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, some));
}

/** The facts about one pod. Every part but the pod itself may be missing; `notes` says which. */
export async function readPod(
  cluster: Cluster,
  namespace: string,
  name: string,
  system: string | undefined,
): Promise<PodFacts> {
  const notes: string[] = [];
  const home = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
  const got = await cluster.get<Pod>(`${home}/pods/${encodeURIComponent(name)}`);
  if (!got.ok && got.status !== 404) throw new Refused(`pod ${namespace}/${name} cannot be read: ${got.message}`);
  const pod = got.ok ? got.value : undefined;
  const orNote = <T>(list: Got<readonly T[]>, what: string) => {
    if (!list.ok) notes.push(`${what}: ${messageOf(list)}.`);
    return list.ok ? list.value : undefined;
  };
  const tryEvents = async (fieldSelector: string) =>
    orNote(await cluster.list<Event>(`${home}/events`, { fieldSelector }), 'Events cannot be read');
  const about = await tryEvents(`involvedObject.name=${name}`);
  const base = { namespace, name, notes, events: about ?? [] };
  if (!pod) {
    return {
      ...base,
      held: await readHeld(cluster, { namespace, name, system, notes }),
      ...given({ refusals: about && (await tryEvents('reason=FailedCreate')) }),
    };
  }
  const nodeName = pod.spec.nodeName;
  if (!nodeName) {
    const schedulers = orNote(await listParts(cluster, system, 'scheduler'), 'Schedulers are not looked at');
    const { free, note } = await readFree(cluster, namespace);
    if (note !== undefined) notes.push(note);
    return { ...base, pod, ...given({ schedulers, free }) };
  }
  const node = await cluster.get<Node>(`/api/v1/nodes/${nodeName}`);
  if (!node.ok) notes.push(`Node ${nodeName} cannot be read: ${messageOf(node)}.`);
  const found = await listParts(cluster, system, 'agent', nodeName);
  const agents = orNote(found, `The agent of node ${nodeName} is not looked at`);
  const [agent] = agents ?? [];
  const use = agent && !hasEnded(pod) ? usedOf(await createStatusReader(cluster)(agent)) : undefined;
  return { ...base, pod, ...given({ node: node.ok ? node.value : undefined, agents, use }) };
}

type HeldWanted = Pick<PodFacts, 'namespace' | 'name'> & {
  readonly system: string | undefined;
  readonly notes: string[];
};

/** What agents hold for a pod that is gone. */
async function readHeld(cluster: Cluster, { namespace, name, system, notes }: HeldWanted) {
  const lack = 'Whether an agent still holds its grant is not known';
  const all = await readUse(cluster, { system, notes, lack });
  return [...all].flatMap(([node, use]) =>
    (use.known ? use.ofGonePods : [])
      .filter((one) => one.namespace === namespace && one.pod === name)
      .map((one) => ({ ...one, node })),
  );
}

/** What each node has free; sums over some of the pods would be wrong. */
async function readFree(cluster: Cluster, namespace: string) {
  const { nodes, pods, notes } = await readNodesAndPods(cluster, { namespace });
  const [note] = notes;
  if (!nodes || note !== undefined) return { note: `Free shares are not shown. ${note}` };
  return { free: inventoryOf({ nodes, pods, use: new Map(), notes: [] }).nodes };
}

/** Without the full stop that some of the server's sentences have. */
const messageOf = ({ message }: Refusal): string => message.replace(/\.$/, '');
