// `cotenant set`: changes the grant of a running tenant, its enforcement mode, or the compute policy of GPUs; through
// this machine's agent, or in a cluster by a pod's annotations and a Node's labels, which its agent follows.
import type { GrantAnswer } from '../../agent/admin-api.ts';
import type { NodeComputeState } from '../../agent/compute/node-policy.ts';
import { addComputeChange, type ComputeChange } from '../../api/compute-annotation.ts';
import {
  COMPUTE_ANNOTATION,
  COMPUTE_POLICY_ANNOTATION,
  ENFORCEMENT_ANNOTATION,
  REQUEST_ANNOTATION,
} from '../../api/names.ts';
import { MOST_MEMORY_BYTES, type Mode } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { MIB, parseWhole } from '../../common/quantity.ts';
import type { Cluster } from '../cluster/api-client.ts';
import { readUse } from '../cluster/collect.ts';
import { modeAnnotations, modeBy, modeSentence } from '../cluster/modes.ts';
import type { Pod } from '../cluster/objects.ts';
import { ask, errorOf, readSnapshot, stateFolder, tenantsNamed } from '../lib/agent-client.ts';
import { type Command, flag, type Parsed, text, UsageError } from '../lib/command.ts';
import { jsonText } from '../lib/text.ts';
import { COMPUTE_OPTIONS, computeChange, policyOption, wholeOption } from './compute-options.ts';
import { ENFORCEMENT_OPTIONS, enforcementOption } from './enforcement-options.ts';
import { clusterOf, OUTPUT_OPTIONS, podNamed, systemOf, WHERE_OPTIONS, wantsJson } from './target.ts';

type Wanted = {
  readonly compute: ComputeChange;
  readonly bytes: number | undefined;
  /** Null: reset. */
  readonly mode: Mode | null | undefined;
};

export const set: Command = {
  name: 'set',
  summary:
    'Changes what a tenant or pod has while it runs, what is done when it exceeds that, or how compute is divided.',
  usage: 'TENANT-OR-ID | [NAMESPACE/]POD | --gpu UUID | --all-gpus | --node NODE  OPTIONS',
  options: {
    'gpu-memory': { type: 'string', short: 'm', value: 'SIZE', help: 'memory on each of its GPUs, whole MiB' },
    ...COMPUTE_OPTIONS,
    ...ENFORCEMENT_OPTIONS,
    gpu: { type: 'string', value: 'UUID', help: 'of this machine: the policy of this GPU' },
    'all-gpus': { type: 'boolean', help: 'of this machine: the default policy of its GPUs' },
    'high-cap': {
      type: 'string',
      value: 'PERCENT',
      help: 'with --all-gpus: most that high priority takes, or default',
    },
    node: { type: 'string', value: 'NODE', help: 'of a cluster: the policy of the GPUs of this node, and its mode' },
    namespace: { type: 'string', short: 'n', value: 'NAMESPACE', help: "of the pod (default the context's)" },
    container: { type: 'string', short: 'c', value: 'NAME', help: 'of the pod: this one only' },
    ...OUTPUT_OPTIONS,
    ...WHERE_OPTIONS,
  },
  notes:
    "After shrinking memory below what is in use further allocations fail; nothing is freed. In a cluster, only users among the webhook's annotationWriters may change pods; every user that may patch a pod can set a stricter mode.",
  async run(parsed) {
    const [name, ...rest] = parsed.words;
    const ofGpus = text(parsed, 'gpu') !== undefined || flag(parsed, 'all-gpus') || text(parsed, 'node') !== undefined;
    if (rest.length > 0 || (name !== undefined) === ofGpus)
      throw new UsageError('want one tenant by name or id, or one pod, or --gpu, --all-gpus or --node');
    const [bytes, mode] = [memoryOption(parsed), enforcementOption(parsed)];
    if (name === undefined) {
      const of = await clusterOf(parsed);
      if (mode !== undefined && (!of || text(parsed, 'node') === undefined))
        throw new UsageError(
          "--enforcement: is of a tenant, a pod or a node of a cluster; this machine's is enforcement.mode of its agent's settings",
        );
      return of ? setNode(of, parsed, mode) : setGpus(parsed);
    }
    const wanted: Wanted = { compute: computeChange(parsed), bytes, mode };
    if (Object.keys(wanted.compute).length === 0 && bytes === undefined && mode === undefined)
      throw new UsageError(`want something to change, such as --gpu-memory or --${Object.keys(COMPUTE_OPTIONS)[0]}`);
    const cluster = await clusterOf(parsed);
    if (!cluster) return setTenant(parsed, name, wanted);
    if (bytes !== undefined) throw new UsageError('--gpu-memory: is changed on the node itself, not in a cluster');
    return setPod(cluster, parsed, name, wanted);
  },
};

function memoryOption(parsed: Parsed): number | undefined {
  const memory = text(parsed, 'gpu-memory');
  if (memory === undefined) return undefined;
  const bytes = parseWhole(memory, MIB, MOST_MEMORY_BYTES);
  if (!bytes.ok) throw new UsageError(`--gpu-memory ${memory} ${bytes.error.wrong}; ${bytes.error.right}`);
  if (bytes.value % MIB !== 0) throw new UsageError(`--gpu-memory ${memory}: want whole MiB`);
  return bytes.value;
}

function refused(why: string): number {
  console.error(`cotenant: ${why}`);
  return 1;
}

async function setTenant(parsed: Parsed, name: string, { compute: change, bytes, mode }: Wanted): Promise<number> {
  if (flag(parsed, 'override')) throw new UsageError('--override: is of a pod in a cluster');
  const folder = stateFolder(parsed);
  const ids = tenantsNamed(await readSnapshot(folder), name);
  const [id = name] = ids;
  if (ids.length > 1)
    throw new UsageError(`${ids.length} tenants are named ${name}; use one of the ids ${ids.join(', ')}`);
  const body = {
    ...change,
    ...(bytes !== undefined && { memoryBytes: bytes }),
    ...(mode !== undefined && { enforcement: mode }),
  };
  const answer = await ask(folder, 'PATCH', `/v1/grants/${encodeURIComponent(id)}`, body);
  if (answer.status !== 200) return refused(errorOf(answer));
  const { gpus, compute, enforcement } = answer.body as GrantAnswer;
  if (wantsJson(parsed)) {
    console.log(jsonText({ id, compute, enforcement, gpus }));
    return 0;
  }
  for (const gpu of gpus) {
    const most = gpu.coresLimitPercent === undefined ? '' : `, up to ${gpu.coresLimitPercent} %`;
    const cores = gpu.coresPercent === 0 ? '' : ` and ${gpu.coresPercent} % of the compute${most}`;
    console.log(`${name}: ${gpu.memoryBytes / MIB} MiB${cores} on ${gpu.gpuUuid}`);
  }
  const chosen = Object.entries(compute).map(([key, value]) => `${key} ${value}`);
  if (chosen.length > 0) console.log(`${name}: ${chosen.join(', ')}`);
  if (mode !== undefined) console.log(`${name}: ${modeSentence(mode, enforcement)}`);
  return 0;
}

async function setGpus(parsed: Parsed): Promise<number> {
  const [policy, cap] = [policyOption(parsed), wholeOption(parsed, 'high-cap', 1, 100)];
  const gpu = text(parsed, 'gpu');
  if (policy === undefined && cap === undefined) throw new UsageError('want --policy, or --high-cap');
  const answer = await ask(stateFolder(parsed), 'PATCH', '/v1/compute', {
    ...(gpu !== undefined && { gpuUuid: gpu }),
    ...(policy !== undefined && { policy }),
    ...(cap !== undefined && { highCapPercent: cap }),
  });
  if (answer.status !== 200) return refused(errorOf(answer));
  const state = answer.body as NodeComputeState;
  if (wantsJson(parsed)) console.log(jsonText(state));
  else for (const one of state.gpus) console.log(`${one.gpuUuid}: ${one.policy}, set by ${one.source}`);
  return 0;
}

async function setNode(cluster: Cluster, parsed: Parsed, mode: Mode | null | undefined): Promise<number> {
  const [node, policy] = [text(parsed, 'node'), policyOption(parsed)];
  if (node === undefined || (policy === undefined && mode === undefined))
    throw new UsageError('of a cluster want --node, and --policy or --enforcement');
  if (flag(parsed, 'override')) throw new UsageError('--override: is of a pod');
  const labels = {
    ...(policy !== undefined && { [COMPUTE_POLICY_ANNOTATION]: policy }),
    ...(mode !== undefined && { [ENFORCEMENT_ANNOTATION]: mode }),
  };
  const got = await cluster.patch(`/api/v1/nodes/${node}`, { metadata: { labels } });
  if (!got.ok) return refused(got.message);
  const enforcement = mode === null ? 'default' : mode;
  if (wantsJson(parsed)) console.log(jsonText({ node, policy, enforcement }));
  else {
    if (policy !== undefined) console.log(`node ${node}: policy ${policy}`);
    if (enforcement !== undefined) console.log(`node ${node}: enforcement ${enforcement}`);
  }
  return 0;
}

async function setPod(cluster: Cluster, parsed: Parsed, pod: string, { compute, mode }: Wanted): Promise<number> {
  const { namespace, name } = podNamed(pod, text(parsed, 'namespace'), cluster.namespace);
  const path = `/api/v1/namespaces/${namespace}/pods/${name}`;
  const found = await cluster.get<Pod>(path);
  if (!found.ok) return refused(found.message);
  const { annotations = {}, resourceVersion } = found.value.metadata;
  const record = parsePodRequest(annotations[REQUEST_ANNOTATION]);
  if (!record.ok) return refused(`pod ${namespace}/${name} asks for no share of a GPU`);
  const names = record.value.containers.map((container) => container.name);
  const only = text(parsed, 'container');
  if (only !== undefined && !names.includes(only))
    throw new UsageError(`-c ${only}: want one of ${names.join(', ')}, which have a share`);
  if (only !== undefined && mode !== undefined)
    throw new UsageError('--enforcement: is of the whole pod, not of one container');
  const changes =
    Object.keys(compute).length === 0
      ? undefined
      : addComputeChange(annotations[COMPUTE_ANNOTATION], only === undefined ? names : [only], compute);
  const modeChange = mode === undefined ? undefined : modeAnnotations(annotations, mode, flag(parsed, 'override'));
  if (modeChange && 'wrong' in modeChange) return refused(`pod ${namespace}/${name}: ${modeChange.wrong}`);
  const changed = { ...(changes !== undefined && { [COMPUTE_ANNOTATION]: changes }), ...modeChange?.annotations };
  // Two concurrent changes must not undo each other.
  const got = await cluster.patch(path, { metadata: { resourceVersion, annotations: changed } });
  if (!got.ok) return refused(got.message);
  const nodeMode = modeChange && (await modeOfNode(cluster, systemOf(parsed), found.value.spec.nodeName));
  const enforcement = modeChange && modeBy({ ...annotations, ...changed }, nodeMode);
  if (wantsJson(parsed)) {
    const all = { ...(changes !== undefined && { compute: JSON.parse(changes) }), ...(enforcement && { enforcement }) };
    console.log(jsonText({ pod: `${namespace}/${name}`, ...all }));
    return 0;
  }
  const title = `pod ${namespace}/${name}`;
  if (changes !== undefined) console.log(`${title}: compute ${changes}`);
  if (enforcement && mode !== undefined) console.log(`${title}: ${modeSentence(mode, enforcement)}`);
  return 0;
}

/** Undefined: the pod has no node yet, or the node's agent does not answer. */
async function modeOfNode(cluster: Cluster, system: string | undefined, node?: string): Promise<Mode | undefined> {
  if (!node) return undefined;
  const use = (await readUse(cluster, system, new Set([node]), [])).get(node);
  return use?.known ? use.mode : undefined;
}
