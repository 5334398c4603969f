// `cotenant get`: policies of GPUs, compute shares of containers and their enforcement mode, from the agent of this
// machine, or from Nodes, pods and agents of a cluster.
import type { NodeComputeState } from '../../../agent/compute/node-policy.ts';
import type { Snapshot } from '../../../agent/snapshot/snapshot.ts';
import { applyComputeChange, parseComputeChanges } from '../../../api/compute-annotation.ts';
import { COMPUTE_ANNOTATION, COMPUTE_POLICY_ANNOTATION, REQUEST_ANNOTATION } from '../../../api/names.ts';
import { parsePodRequest } from '../../../api/request-annotation.ts';
import { type Cluster, granted } from '../../cluster/api-client.ts';
import { readUse } from '../../cluster/collect.ts';
import { modeOf, type ShownMode } from '../../cluster/modes.ts';
import type { Pod } from '../../cluster/objects.ts';
import type { Use } from '../../cluster/use.ts';
import { demand, readSnapshot, stateFolder } from '../../lib/agent-client.ts';
import { type Command, flag, type Parsed, text } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import { oneLine } from '../../lib/text.ts';
import { allNamespacesOption, clusterOf, namespaceOption, systemOf, WHERE_OPTIONS } from '../../options/target.ts';
import { columns } from '../../output/columns.ts';
import { policyOf, tenantName } from '../../output/node-table.ts';

type GpuRow = { readonly where: string; readonly gpu: string; readonly policy: string; readonly source: string };
type ShareRow = {
  readonly name: string;
  readonly where: string;
  /** Null: that of the GPU, which a cluster does not show. */
  readonly policy: string | null;
  readonly priority: string;
  readonly weight: number | null;
  readonly coresPercent: number;
  readonly coresLimitPercent: number | null;
  /** Parts of the GPU; null: not enforced, or not known. */
  readonly guaranteedRatio: number | null;
  readonly mostRatio: number | null;
  /** The enforcement mode and its source. */
  readonly enforcement: ShownMode;
};
type Compute = {
  readonly gpus: readonly GpuRow[];
  readonly shares: readonly ShareRow[];
  /** What could not be read, a sentence each. */
  readonly notes: readonly string[];
};

export const get: Command = {
  name: 'get',
  summary: 'Shows how compute is divided: policies of GPUs, shares of containers, and their enforcement mode.',
  usage: '[-o table|json|yaml] [-n NAMESPACE | -A]',
  options: {
    ...OUTPUT_OPTIONS,
    namespace: namespaceOption("of the pods (default the context's)"),
    'all-namespaces': allNamespacesOption('the pods of all namespaces'),
    ...WHERE_OPTIONS,
  },
  notes: 'Without an agent on this machine, or with an option of a cluster, it asks the cluster; it only ever reads.',
  async run(parsed) {
    formOf(parsed);
    const cluster = await clusterOf(parsed);
    const found = cluster
      ? await ofCluster(cluster, podsOf(parsed, cluster), systemOf(parsed))
      : await ofMachine(stateFolder(parsed));
    await print(parsed, found, () => lines(found));
    return 0;
  },
};

const ofMachine = async (folder: string): Promise<Compute> =>
  machineCompute(await readSnapshot(folder), await demand<NodeComputeState>(folder, 'GET', '/v1/compute'));

function machineCompute(snapshot: Pick<Snapshot, 'containers'>, state: NodeComputeState): Compute {
  return {
    gpus: state.gpus.map(({ index, gpuUuid, policy, source }) => ({
      where: String(index),
      gpu: gpuUuid,
      policy,
      source,
    })),
    shares: snapshot.containers.map((one) => ({
      name: tenantName(one),
      where: String(one.gpuIndex ?? '-'),
      policy: policyOf(one, state.gpus.find(({ gpuUuid }) => gpuUuid === one.gpuUuid)?.policy ?? 'native'),
      priority: one.priority,
      weight: one.computeWeight || null,
      coresPercent: one.coresPercent,
      coresLimitPercent: one.coresLimitPercent ?? null,
      guaranteedRatio: one.compute?.guaranteeRatio ?? null,
      mostRatio: one.compute?.limitRatio ?? null,
      enforcement: one.enforcement,
    })),
    notes: [],
  };
}

const podsOf = (parsed: Parsed, { namespace }: Cluster): string =>
  flag(parsed, 'all-namespaces') ? '/api/v1/pods' : `/api/v1/namespaces/${text(parsed, 'namespace') ?? namespace}/pods`;

async function ofCluster(cluster: Cluster, path: string, system: string | undefined): Promise<Compute> {
  const pods = granted(await cluster.list<Pod>(path));
  const nodes = await cluster.list<Pod>('/api/v1/nodes');
  const labeled = nodes.ok ? nodes.value : [];
  const notes: string[] = [];
  const use = await usesOf(cluster, system, pods, notes);
  return {
    gpus: labeled.flatMap(({ metadata: { name, labels } }) => {
      const policy = labels?.[COMPUTE_POLICY_ANNOTATION];
      return policy === undefined ? [] : [{ where: name, gpu: 'all', policy, source: 'label' }];
    }),
    shares: pods.flatMap((pod) => podShares(pod, use.get(pod.spec.nodeName ?? ''))),
    notes,
  };
}

/** Reports of the agents of these pods' nodes. */
async function usesOf(
  cluster: Cluster,
  system: string | undefined,
  pods: readonly Pod[],
  notes: string[],
): Promise<ReadonlyMap<string, Use>> {
  const sharing = pods.filter((pod) => pod.metadata.annotations?.[REQUEST_ANNOTATION] !== undefined);
  const names = new Set(sharing.flatMap((pod) => pod.spec.nodeName ?? []));
  if (names.size === 0) return new Map();
  const uses = await readUse(cluster, { system, nodes: names, notes, lack: 'Modes of nodes are not known' });
  for (const name of names) {
    const use = uses.get(name);
    if (use === undefined) notes.push(`The mode of node ${name} is not known: no agent runs there.`);
    else if (!use.known && !['forbidden', 'not asked'].includes(use.short))
      notes.push(`The mode of node ${name} is not known: ${use.why}.`);
  }
  return uses;
}

/** The compute settings of a pod's containers, with operators' changes; `use`: of its node. */
export function podShares({ metadata, spec }: Pick<Pod, 'metadata' | 'spec'>, use?: Use): readonly ShareRow[] {
  const { annotations = {} } = metadata;
  const record = parsePodRequest(annotations[REQUEST_ANNOTATION]);
  if (!record.ok) return [];
  const { computePolicy, priority, computeWeight, containers } = record.value;
  const changes = parseComputeChanges(annotations[COMPUTE_ANNOTATION] ?? '{}');
  return containers.map(({ name, gpus }) => {
    const chosen = {
      gpus: gpus.map((gpu) => ({ ...gpu, coresPercent: gpu.coresPercent ?? 0 })),
      compute: {
        priority,
        ...(computePolicy && { policy: computePolicy }),
        ...(computeWeight && { weight: computeWeight }),
      },
    };
    const now = applyComputeChange(chosen, (changes.ok && changes.value.get(name)) || {});
    const { gpus: held, compute } = now.ok ? now.value : chosen;
    return {
      name: `${metadata.namespace}/${metadata.name}/${name}`,
      where: spec.nodeName ?? '',
      policy: compute.policy ?? null,
      priority: compute.priority ?? 'normal',
      weight: compute.weight ?? (held[0]?.coresPercent || null),
      coresPercent: held[0]?.coresPercent ?? 0,
      coresLimitPercent: held[0]?.coresLimitPercent ?? null,
      guaranteedRatio: null,
      mostRatio: null,
      enforcement: modeOf(
        use,
        { namespace: metadata.namespace ?? '', pod: metadata.name, container: name },
        annotations,
      ),
    };
  });
}

const percent = (value: number | null): string => (value === null ? '-' : `${Math.round(value * 10) / 10}%`);
const part = (ratio: number | null): string => percent(ratio === null ? null : 100 * ratio);

function lines({ gpus, shares, notes }: Compute): readonly string[] {
  const ofGpus = gpus.map(({ where, gpu, policy, source }) => [where, gpu, policy, source]);
  const ofShares = shares.map((share) => [
    share.name,
    share.where,
    share.policy ?? "the GPU's",
    share.priority,
    share.weight === null ? '-' : String(share.weight),
    share.coresPercent === 0 ? '-' : percent(share.coresPercent),
    percent(share.coresLimitPercent),
    part(share.guaranteedRatio),
    part(share.mostRatio),
    share.enforcement.atMost ? `${share.enforcement.mode} at most` : share.enforcement.mode,
    share.enforcement.by,
  ]);
  return [
    ...columns([['WHERE', 'GPU', 'POLICY', 'SOURCE'], ...ofGpus]),
    '',
    ...columns([
      ['TENANT', 'WHERE', 'POLICY', 'PRIORITY', 'WEIGHT', 'CORES', 'LIMIT', 'GUARANTEED', 'MAXIMUM', 'MODE', 'SOURCE'],
      ...ofShares,
    ]),
    ...(notes.length > 0 ? ['', ...notes.map((note) => oneLine(note))] : []),
  ];
}
