// `cotenant set`: changes the grant of a running tenant, its enforcement mode, or the compute policy of GPUs; through
// this machine's agent, or in a cluster by a pod's annotations and a Node's labels, which its agent follows.
import { setTimeout as delay } from 'node:timers/promises';
import type { GrantAnswer } from '../../../agent/admin-api.ts';
import type { NodeComputeState } from '../../../agent/compute/node-policy.ts';
import { addComputeChange, type ComputeChange } from '../../../api/compute-annotation.ts';
import { parsePodGrant } from '../../../api/grant-annotation.ts';
import { addMemorySize, grantWithSizes, parseMemorySizes } from '../../../api/memory-annotation.ts';
import {
  COMPUTE_ANNOTATION,
  COMPUTE_POLICY_ANNOTATION,
  ENFORCEMENT_ANNOTATION,
  GRANT_ANNOTATION,
  MEMORY_ANNOTATION,
  MEMORY_RESIZED,
  REQUEST_ANNOTATION,
} from '../../../api/names.ts';
import type { Mode } from '../../../api/request.ts';
import { parsePodRequest } from '../../../api/request-annotation.ts';
import { MIB } from '../../../common/quantity.ts';
import { type Cluster, granted } from '../../cluster/api-client.ts';
import { readUse } from '../../cluster/collect.ts';
import { modeAnnotations, modeBy, modeSentence } from '../../cluster/modes.ts';
import type { Pod } from '../../cluster/objects.ts';
import { demand, stateFolder } from '../../lib/agent-client.ts';
import { type Command, flag, type Parsed, Refused, text, UsageError } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { coresOfEach, memoryOfEach } from '../../lib/split-amounts.ts';
import {
  COMPUTE_OPTIONS,
  computeChange,
  ENFORCEMENT_OPTIONS,
  enforcementOption,
  memoryOption,
  percentOption,
  policyOption,
} from '../../options/set.ts';
import { clusterOf, namespaceOption, podNamed, systemOf, WHERE_OPTIONS } from '../../options/target.ts';

/** The scheduler decides twice a second. */
const DECIDED_WITHIN_MS = 5000;
const POLL_MS = 250;

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
    'gpu-memory': {
      short: 'm',
      value: 'SIZE',
      help: 'memory in total over its GPUs, as run has it; whole MiB on each',
    },
    ...COMPUTE_OPTIONS,
    ...ENFORCEMENT_OPTIONS,
    gpu: { value: 'UUID', help: 'of this machine: the policy of this GPU' },
    'all-gpus': { help: 'of this machine: the default policy of its GPUs' },
    'high-cap': {
      value: 'PERCENT',
      help: 'with --all-gpus: most that high priority takes, or default',
    },
    node: { value: 'NODE', help: 'of a cluster: the policy of the GPUs of this node, and its mode' },
    namespace: namespaceOption("of the pod (default the context's)"),
    container: { short: 'c', value: 'NAME', help: 'of the pod: this one only' },
    ...OUTPUT_OPTIONS,
    ...WHERE_OPTIONS,
  },
  notes:
    "After shrinking memory below what is in use further allocations fail; nothing is freed. In a cluster the scheduler grants memory where the pod's GPUs have it left, and only users among the webhook's annotationWriters may change pods; every user that may patch a pod can set a stricter mode.",
  takesOperands: true,
  async run(parsed) {
    formOf(parsed);
    const [name, ...rest] = parsed.operands;
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
    return setPod(cluster, parsed, name, wanted);
  },
};

async function show(parsed: Parsed, result: unknown, lines: readonly string[]): Promise<number> {
  await print(parsed, result, () => lines);
  return 0;
}

const computeOfEach = (change: ComputeChange, gpus: number): ComputeChange =>
  change.coresPercent === undefined ? change : { ...change, coresPercent: coresOfEach(change.coresPercent, gpus) };

async function setTenant(parsed: Parsed, name: string, { compute: change, bytes, mode }: Wanted): Promise<number> {
  if (flag(parsed, 'override')) throw new UsageError('--override: is of a pod in a cluster');
  const folder = stateFolder(parsed);
  const path = `/v1/grants/${encodeURIComponent(name)}`;
  const { length } = (await demand<GrantAnswer>(folder, 'GET', path)).gpus;
  const body = {
    ...computeOfEach(change, length),
    memoryBytes: bytes && memoryOfEach(text(parsed, 'gpu-memory') ?? '', bytes, length),
    enforcement: mode,
  };
  const { id, gpus, compute, enforcement } = await demand<GrantAnswer>(folder, 'PATCH', path, body);
  const amounts = gpus.map((gpu) => {
    const most = gpu.coresLimitPercent === undefined ? '' : `, up to ${gpu.coresLimitPercent} %`;
    const cores = gpu.coresPercent === 0 ? '' : ` and ${gpu.coresPercent} % of the compute${most}`;
    return `${gpu.memoryBytes / MIB} MiB${cores} on ${gpu.gpuUuid}`;
  });
  const chosen = Object.entries(compute).map(([key, value]) => `${key} ${value}`);
  const lines = [
    ...amounts,
    ...(chosen.length > 0 ? [chosen.join(', ')] : []),
    ...(mode === undefined ? [] : [modeSentence(mode, enforcement)]),
  ];
  return show(
    parsed,
    { id, compute, enforcement, gpus },
    lines.map((line) => `${name}: ${line}`),
  );
}

async function setGpus(parsed: Parsed): Promise<number> {
  const [policy, highCapPercent] = [policyOption(parsed), percentOption(parsed, 'high-cap')];
  if (policy === undefined && highCapPercent === undefined) throw new UsageError('want --policy, or --high-cap');
  const body = { gpuUuid: text(parsed, 'gpu'), policy, highCapPercent };
  const state = await demand<NodeComputeState>(stateFolder(parsed), 'PATCH', '/v1/compute', body);
  return show(
    parsed,
    state,
    state.gpus.map((one) => `${one.gpuUuid}: ${one.policy}, set by ${one.source}`),
  );
}

async function setNode(cluster: Cluster, parsed: Parsed, mode: Mode | null | undefined): Promise<number> {
  const [node, policy] = [text(parsed, 'node'), policyOption(parsed)];
  if (node === undefined || (policy === undefined && mode === undefined))
    throw new UsageError('of a cluster want --node, and --policy or --enforcement');
  if (flag(parsed, 'override')) throw new UsageError('--override: is of a pod');
  // A merge patch leaves alone what is not in it.
  const labels = { [COMPUTE_POLICY_ANNOTATION]: policy, [ENFORCEMENT_ANNOTATION]: mode };
  granted(await cluster.patch(`/api/v1/nodes/${node}`, { metadata: { labels } }));
  const enforcement = mode === null ? 'default' : mode;
  return show(parsed, { node, policy, enforcement }, [
    ...(policy === undefined ? [] : [`node ${node}: policy ${policy}`]),
    ...(enforcement === undefined ? [] : [`node ${node}: enforcement ${enforcement}`]),
  ]);
}

async function setPod(
  cluster: Cluster,
  parsed: Parsed,
  pod: string,
  { compute, bytes, mode }: Wanted,
): Promise<number> {
  const { namespace, name } = podNamed(pod, text(parsed, 'namespace'), cluster.namespace);
  const path = `/api/v1/namespaces/${namespace}/pods/${name}`;
  const title = `pod ${namespace}/${name}`;
  const { metadata, spec } = granted(await cluster.get<Pod>(path));
  const { annotations = {}, resourceVersion } = metadata;
  const record = parsePodRequest(annotations[REQUEST_ANNOTATION]);
  if (!record.ok) throw new Refused(`${title} asks for no share of a GPU`);
  const gpusOf = new Map(record.value.containers.map((container) => [container.name, container.gpus.length]));
  const names = [...gpusOf.keys()];
  const only = text(parsed, 'container');
  if (only !== undefined && !names.includes(only))
    throw new UsageError(`-c ${only}: want one of ${names.join(', ')}, which have a share`);
  if (only !== undefined && mode !== undefined)
    throw new UsageError('--enforcement: is of the whole pod, not of one container');
  const containers = only === undefined ? names : [only];
  const changes =
    Object.keys(compute).length === 0
      ? undefined
      : containers.reduce<string | undefined>(
          (before, one) => addComputeChange(before, [one], computeOfEach(compute, gpusOf.get(one) ?? 1)),
          annotations[COMPUTE_ANNOTATION],
        );
  if (bytes !== undefined && !spec.nodeName)
    throw new Refused(`${title} has no node yet: its memory can be changed once it has GPUs`);
  const given = text(parsed, 'gpu-memory') ?? '';
  const sizes =
    bytes === undefined
      ? undefined
      : containers.reduce<string | undefined>(
          (before, one) => addMemorySize(before, [one], memoryOfEach(given, bytes, gpusOf.get(one) ?? 1)),
          annotations[MEMORY_ANNOTATION],
        );
  const modeChange = mode === undefined ? undefined : modeAnnotations(annotations, mode, flag(parsed, 'override'));
  if (modeChange?.ok === false) throw new Refused(`${title}: ${modeChange.error}`);
  const changed = {
    ...(changes !== undefined && { [COMPUTE_ANNOTATION]: changes }),
    ...(sizes !== undefined && { [MEMORY_ANNOTATION]: sizes }),
    ...modeChange?.value,
  };
  // Two concurrent changes must not undo each other.
  granted(await cluster.patch(path, { metadata: { resourceVersion, annotations: changed } }));
  const nodeMode = modeChange && (await modeOfNode(cluster, systemOf(parsed), spec.nodeName));
  const enforcement = modeChange && modeBy({ ...annotations, ...changed }, nodeMode);
  if (sizes !== undefined) await waitForSizes(cluster, path, sizes, annotations[MEMORY_ANNOTATION]);
  return show(
    parsed,
    {
      pod: `${namespace}/${name}`,
      compute: changes === undefined ? undefined : JSON.parse(changes),
      memory: sizes === undefined ? undefined : JSON.parse(sizes),
      enforcement,
    },
    [
      ...(sizes === undefined ? [] : [`${title}: memory ${sizes}`]),
      ...(changes === undefined ? [] : [`${title}: compute ${changes}`]),
      ...(enforcement && mode !== undefined ? [`${title}: ${modeSentence(mode, enforcement)}`] : []),
    ],
  );
}

/**
 * Waits until the scheduler has granted the amounts of the annotation. If it does not within some seconds, the annotation
 * gets its text from before, so that a change that was refused does not happen later, and the reason is thrown.
 */
async function waitForSizes(cluster: Cluster, path: string, text: string, before: string | undefined): Promise<void> {
  const sizes = parseMemorySizes(text);
  const end = Date.now() + DECIDED_WITHIN_MS;
  for (;;) {
    const { metadata, status } = granted(await cluster.get<Pod>(path));
    const grant = parsePodGrant(metadata.annotations?.[GRANT_ANNOTATION] ?? '');
    const then = sizes.ok && grant.ok ? grantWithSizes(grant.value, sizes.value) : undefined;
    if (then?.ok && grant.ok && then.value === grant.value) return;
    if (Date.now() >= end) {
      const { resourceVersion } = metadata;
      const annotations = { [MEMORY_ANNOTATION]: before ?? null };
      // A pod that has changed in between is looked at once more.
      const undone = await cluster.patch(path, { metadata: { resourceVersion, annotations } });
      if (!undone.ok && undone.status !== 409) throw new Refused(undone.message);
      const condition = status?.conditions?.find(({ type }) => type === MEMORY_RESIZED);
      const because = condition?.status === 'False' ? condition.message : undefined;
      if (undone.ok) throw new Refused(because ?? `the scheduler granted nothing within ${DECIDED_WITHIN_MS / 1000} s`);
    }
    await delay(POLL_MS);
  }
}

/** Undefined: the pod has no node yet, or the node's agent does not answer. */
async function modeOfNode(cluster: Cluster, system: string | undefined, node?: string): Promise<Mode | undefined> {
  if (!node) return undefined;
  const use = (await readUse(cluster, { system, nodes: new Set([node]), notes: [] })).get(node);
  return use?.known ? use.mode : undefined;
}
