// `cotenant set`: changes what a tenant has while it runs, or how the compute of cards is divided; by this machine's agent, or in
// a cluster by a pod's annotation and a Node's label, which its agent follows.
import type { GrantAnswer } from '../agent/admin.ts';
import type { NodeComputeState } from '../agent/compute/node.ts';
import { addChange, type ComputeChange } from '../request/compute-change.ts';
import { COMPUTE_ANNOTATION, COMPUTE_POLICY_ANNOTATION, REQUEST_ANNOTATION } from '../request/names.ts';
import { MIB, parseWhole } from '../request/quantity.ts';
import { parseRecord } from '../request/record.ts';
import { MOST_MEMORY_BYTES } from '../request/request.ts';
import { ask, errorOf, readView, stateFolder, tenantsNamed } from './agent-client.ts';
import type { Cluster, Got } from './cluster/api.ts';
import type { Pod } from './cluster/objects.ts';
import { jsonText } from './cluster/words.ts';
import { type Command, flag, type Parsed, text, UsageError } from './command.ts';
import { COMPUTE_OPTIONS, computeChange, policyOption, wholeOption } from './compute-options.ts';
import { clusterOf, OUTPUT_OPTIONS, podNamed, WHERE_OPTIONS, wantsJson } from './where.ts';

export const set: Command = {
  name: 'set',
  summary: 'Changes what a tenant or pod has while it runs, or how the compute of cards is divided.',
  usage: 'TENANT-OR-ID | [NAMESPACE/]POD | --card UUID | --all-cards | --node NODE  OPTIONS',
  options: {
    'gpu-memory': { type: 'string', short: 'm', value: 'SIZE', help: 'memory on each of its cards, whole MiB' },
    ...COMPUTE_OPTIONS,
    card: { type: 'string', value: 'UUID', help: 'of this machine: the policy of this card' },
    'all-cards': { type: 'boolean', help: 'of this machine: the policy of its cards, where nobody says another one' },
    'high-cap': {
      type: 'string',
      value: 'PERCENT',
      help: 'with --all-cards: most that high priority takes, or default',
    },
    node: { type: 'string', value: 'NODE', help: 'of a cluster: the policy of the cards of this node' },
    namespace: { type: 'string', short: 'n', value: 'NAMESPACE', help: "of the pod (default the context's)" },
    container: { type: 'string', short: 'c', value: 'NAME', help: 'of the pod: this one only' },
    ...OUTPUT_OPTIONS,
    ...WHERE_OPTIONS,
  },
  notes:
    "Shrinking memory below what is in use refuses further requests; nothing is taken away. In a cluster, only users among the webhook's annotationWriters may change pods.",
  async run(parsed) {
    const [name, ...rest] = parsed.words;
    const ofCards =
      text(parsed, 'card') !== undefined || flag(parsed, 'all-cards') || text(parsed, 'node') !== undefined;
    if (rest.length > 0 || (name !== undefined) === ofCards)
      throw new UsageError('want one tenant by name or id, or one pod, or --card, --all-cards or --node');
    const change = name === undefined ? undefined : computeChange(parsed);
    const bytes = memoryOption(parsed);
    if (change && Object.keys(change).length === 0 && bytes === undefined)
      throw new UsageError(`want something to change, such as --gpu-memory or --${Object.keys(COMPUTE_OPTIONS)[0]}`);
    const cluster = await clusterOf(parsed);
    if (name === undefined || !change) return cluster ? setNode(cluster, parsed) : setCards(parsed);
    if (!cluster) return setTenant(parsed, name, change, bytes);
    if (bytes !== undefined) throw new UsageError('--gpu-memory: is changed on the node itself, not in a cluster');
    return setPod(cluster, parsed, name, change);
  },
};

function memoryOption(parsed: Parsed): number | undefined {
  const memory = text(parsed, 'gpu-memory');
  if (memory === undefined) return undefined;
  const bytes = parseWhole(memory, MIB, MOST_MEMORY_BYTES);
  if (!bytes.ok) throw new UsageError(`--gpu-memory ${memory} ${bytes.wrong}; ${bytes.right}`);
  if (bytes.value % MIB !== 0) throw new UsageError(`--gpu-memory ${memory}: want whole MiB`);
  return bytes.value;
}

function refused(why: string): number {
  console.error(`cotenant: ${why}`);
  return 1;
}

async function setTenant(parsed: Parsed, name: string, change: ComputeChange, bytes?: number): Promise<number> {
  const folder = stateFolder(parsed);
  const ids = tenantsNamed(await readView(folder), name);
  const [id = name] = ids;
  if (ids.length > 1) throw new UsageError(`${ids.length} tenants are called ${name}; say which: ${ids.join(', ')}`);
  const body = { ...change, ...(bytes !== undefined && { memoryBytes: bytes }) };
  const answer = await ask(folder, 'PATCH', `/v1/grants/${encodeURIComponent(id)}`, body);
  if (answer.status !== 200) return refused(errorOf(answer));
  const { cards, compute } = answer.body as GrantAnswer;
  if (wantsJson(parsed)) {
    console.log(jsonText({ id, compute, cards }));
    return 0;
  }
  for (const card of cards) {
    const most = card.coresLimitPercent === undefined ? '' : `, up to ${card.coresLimitPercent} %`;
    const cores = card.coresPercent === 0 ? '' : ` and ${card.coresPercent} % of the compute${most}`;
    console.log(`${name}: ${card.memoryBytes / MIB} MiB${cores} on ${card.gpuUuid}`);
  }
  const chosen = Object.entries(compute).map(([key, value]) => `${key} ${value}`);
  if (chosen.length > 0) console.log(`${name}: ${chosen.join(', ')}`);
  return 0;
}

async function setCards(parsed: Parsed): Promise<number> {
  const [policy, cap] = [policyOption(parsed), wholeOption(parsed, 'high-cap', 1, 100)];
  const card = text(parsed, 'card');
  if (policy === undefined && cap === undefined) throw new UsageError('want --policy, or --high-cap');
  const answer = await ask(stateFolder(parsed), 'PATCH', '/v1/compute', {
    ...(card !== undefined && { gpuUuid: card }),
    ...(policy !== undefined && { policy }),
    ...(cap !== undefined && { highCapPercent: cap }),
  });
  if (answer.status !== 200) return refused(errorOf(answer));
  const state = answer.body as NodeComputeState;
  if (wantsJson(parsed)) console.log(jsonText(state));
  else for (const one of state.cards) console.log(`${one.gpuUuid}: ${one.policy}, said by ${one.source}`);
  return 0;
}

async function setNode(cluster: Cluster, parsed: Parsed): Promise<number> {
  const [node, policy] = [text(parsed, 'node'), policyOption(parsed)];
  if (node === undefined || policy === undefined) throw new UsageError('of a cluster want --node and --policy');
  const body = { metadata: { labels: { [COMPUTE_POLICY_ANNOTATION]: policy } } };
  return told(await cluster.patch(`/api/v1/nodes/${node}`, body), parsed, { node, policy });
}

async function setPod(cluster: Cluster, parsed: Parsed, word: string, change: ComputeChange): Promise<number> {
  const { namespace, name } = podNamed(word, text(parsed, 'namespace'), cluster.namespace);
  const path = `/api/v1/namespaces/${namespace}/pods/${name}`;
  const found = await cluster.get<Pod>(path);
  if (!found.ok) return refused(found.message);
  const { annotations = {}, resourceVersion } = found.value.metadata;
  const record = parseRecord(annotations[REQUEST_ANNOTATION]);
  if (!record.ok) return refused(`pod ${namespace}/${name} asks for no share of a GPU`);
  const names = record.value.containers.map((container) => container.name);
  const only = text(parsed, 'container');
  if (only !== undefined && !names.includes(only))
    throw new UsageError(`-c ${only}: want one of ${names.join(', ')}, which have a share`);
  const annotation = addChange(annotations[COMPUTE_ANNOTATION], only === undefined ? names : [only], change);
  // Two that change it at once must not undo each other.
  const body = { metadata: { resourceVersion, annotations: { [COMPUTE_ANNOTATION]: annotation } } };
  return told(await cluster.patch(path, body), parsed, {
    pod: `${namespace}/${name}`,
    compute: JSON.parse(annotation),
  });
}

function told(got: Got<unknown>, parsed: Parsed, what: Readonly<Record<string, unknown>>): number {
  if (!got.ok) return refused(got.message);
  const words = Object.entries(what).map(
    ([key, value]) => `${key} ${typeof value === 'object' ? JSON.stringify(value) : value}`,
  );
  console.log(wantsJson(parsed) ? jsonText(what) : words.join(': '));
  return 0;
}
