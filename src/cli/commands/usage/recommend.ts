// `cotenant recommend`: the smallest share in which each container would have fit, from a Prometheus or from the peaks
// that agents keep.

import type { StopCount } from '../../../agent/counters/stop-counts.ts';
import { isPodGrantId } from '../../../agent/grants/grant.ts';
import type { Snapshot } from '../../../agent/snapshot/snapshot.ts';
import { type ContainerSeries, type Headroom, recommend as sizesOf } from '../../../policy/rightsizing.ts';
import type { Cluster } from '../../cluster/api-client.ts';
import { readSnapshots } from '../../cluster/collect.ts';
import { readSnapshot, stateFolder } from '../../lib/agent-client.ts';
import { type Command, flag, type Parsed, percent, text, UsageError } from '../../lib/command.ts';
import { formOf, OUTPUT_OPTIONS, print } from '../../lib/output.ts';
import {
  allNamespacesOption,
  clusterOf,
  namespaceOption,
  podNamed,
  systemOf,
  WHERE_OPTIONS,
} from '../../options/target.ts';
import { recommendationJson, recommendationLines } from '../../output/recommendation.ts';
import {
  durationOf,
  PROMETHEUS_OPTIONS,
  type Prometheus,
  periodOf,
  prometheusOf,
  query,
} from '../../prometheus/client.ts';
import { containersOf, queries, type Selection } from '../../prometheus/container-series.ts';

const DEFAULT_WINDOW = '5m';

export const recommend: Command = {
  name: 'recommend',
  summary: 'Recommends the smallest share in which each container would have fit, with lines to paste.',
  usage: '[POD | NAMESPACE/POD] [--prometheus URL] [--range TIME] [-o table|json|yaml]',
  options: {
    ...OUTPUT_OPTIONS,
    namespace: namespaceOption('only containers of this one'),
    'all-namespaces': allNamespacesOption('containers of all namespaces. The default'),
    'memory-headroom': { value: 'PERCENT', help: 'to add to the peak of memory (default 0)' },
    'cores-headroom': { value: 'PERCENT', help: 'to add to the peak of compute (default 0)' },
    window: {
      value: 'TIME',
      help: `over which compute is a mean, 1m to 1h (default ${DEFAULT_WINDOW}; of an agent, 1m)`,
    },
    ...PROMETHEUS_OPTIONS,
    ...WHERE_OPTIONS,
  },
  notes:
    "Without a Prometheus it goes by the peaks that this machine's agent, or those of a cluster, have kept since they began.",
  takesOperands: true,
  async run(parsed) {
    const selection = selectionOf(parsed);
    const headroom = headroomOf(parsed);
    formOf(parsed);
    const prometheus = prometheusOf(parsed, Date.now());
    const other = Object.keys(WHERE_OPTIONS).find((name) => parsed.values[name] !== undefined);
    if (prometheus && other !== undefined) {
      const named = other === 'state' ? 'an agent of this machine' : 'a cluster';
      throw new UsageError(`--${other} names ${named}, --prometheus a Prometheus: want one of them`);
    }
    const { containers, source } = prometheus
      ? await fromPrometheus(prometheus, selection, windowOf(parsed))
      : await fromAgents(parsed, selection);
    const sizes = containers.map((container) => sizesOf(container, headroom));
    await print(parsed, recommendationJson(sizes), () =>
      recommendationLines(sizes, source, process.stdout.columns || undefined),
    );
    return sizes.length === 0 ? 1 : 0;
  },
};

type Seen = { readonly containers: readonly ContainerSeries[]; readonly source: string };
type Wanted = Omit<Selection, 'job'>;

function selectionOf(parsed: Parsed): Wanted {
  const [argument, ...rest] = parsed.operands;
  if (rest.length > 0) throw new UsageError(`want one pod, got ${parsed.operands.join(' ')}`);
  const given = flag(parsed, 'all-namespaces') ? undefined : text(parsed, 'namespace');
  if (argument === undefined) return { namespace: given };
  const { namespace, name } = podNamed(argument, given, undefined);
  return { namespace, pod: name };
}

const headroomOf = (parsed: Parsed): Headroom => ({
  memoryPercent: percent(parsed, 'memory-headroom', { least: 0, most: 999 }) ?? 0,
  coresPercent: percent(parsed, 'cores-headroom', { least: 0, most: 999 }) ?? 0,
});

function windowOf(parsed: Parsed): number {
  const value = text(parsed, 'window') ?? DEFAULT_WINDOW;
  const seconds = durationOf(value);
  if (seconds === undefined || seconds < 60 || seconds > 3600) throw new UsageError(`--window ${value}: want 1m to 1h`);
  return seconds;
}

async function fromAgents(parsed: Parsed, wanted: Wanted): Promise<Seen> {
  if (text(parsed, 'window') !== undefined)
    throw new UsageError('--window is about a Prometheus: name one with --prometheus URL');
  const cluster = await clusterOf(parsed, ['namespace', 'all-namespaces']);
  return cluster
    ? fromCluster(cluster, systemOf(parsed), wanted)
    : fromAgent(await readSnapshot(stateFolder(parsed)), wanted);
}

async function fromCluster(cluster: Cluster, system: string | undefined, wanted: Wanted): Promise<Seen> {
  const { snapshots, missing } = await readSnapshots(cluster, system);
  if (snapshots.length === 0 && missing.length > 0) throw new UsageError(missing.join('; '));
  return {
    containers: fromSnapshots(snapshots, wanted),
    source: [
      `agents of ${snapshots.length} node${snapshots.length === 1 ? '' : 's'}, each since it began`,
      ...missing,
    ].join('; '),
  };
}

async function fromPrometheus(prometheus: Prometheus, wanted: Wanted, windowSeconds: number): Promise<Seen> {
  const { job, rangeSeconds, url } = prometheus;
  const asked = [...queries({ job, ...wanted }, { rangeSeconds, windowSeconds })];
  const answers = await Promise.all(
    asked.map(async ([name, expression]) => [name, await query(prometheus, expression)] as const),
  );
  const [from, until] = periodOf(prometheus);
  return { containers: containersOf(new Map(answers)), source: `${url}, ${from} to ${until}` };
}

const fromAgent = (snapshot: Snapshot, wanted: Wanted): Seen => ({
  containers: fromSnapshots([snapshot], wanted),
  source: "this machine's agent, since it began",
});

/**
 * The runs of containers on each of their GPUs, with their present grant. `life` identifies the container across its
 * GPUs, `plainOn` is the node of processes without a pod: the same name on two nodes means two tenants.
 */
function livesOf(snapshot: Snapshot, node: number) {
  const now = new Map(snapshot.containers.map((one) => [`${one.grantId} ${one.gpuUuid}`, one]));
  return [
    ...snapshot.containerTotals.map((totals) => ({
      ...totals,
      life: totals.grantId,
      plainOn: isPodGrantId(totals.grantId) ? undefined : node,
      granted: now.get(`${totals.grantId} ${totals.gpuUuid}`),
    })),
    // Without a peak there is no recommendation.
    ...snapshot.assignedTotals
      .filter(({ peakBytes }) => peakBytes > 0)
      .map((totals) => ({
        ...totals,
        life: `${node}`,
        plainOn: undefined,
        smPeakRatio: undefined,
        denied: 0,
        granted: undefined,
      })),
  ];
}

/**
 * The agent keeps an ended container's peaks for a few minutes, without its grant. Containers with the same names count
 * as one, as in Prometheus.
 */
export function fromSnapshots(snapshots: readonly Snapshot[], { namespace, pod }: Wanted): readonly ContainerSeries[] {
  const seen = snapshots
    .flatMap(livesOf)
    .filter(
      (one) => (namespace === undefined || one.namespace === namespace) && (pod === undefined || one.pod === pod),
    );
  const stops = Map.groupBy(
    snapshots.flatMap((snapshot, node) => snapshot.kills.filter(isStopForMemory).map((kill) => ({ ...kill, node }))),
    nameKey,
  );
  const containers = [...Map.groupBy(seen, (one) => JSON.stringify([nameKey(one), one.plainOn]))];
  return containers
    .flatMap(([, all]): ContainerSeries[] => {
      const [first] = all;
      if (first === undefined) return [];
      const { plainOn } = first;
      const own = (stops.get(nameKey(first)) ?? []).filter(({ node }) => plainOn === undefined || node === plainOn);
      return [
        {
          namespace: first.namespace,
          pod: first.pod,
          container: first.container,
          plain: plainOn !== undefined,
          gpuCount: Math.max(...[...Map.groupBy(all, ({ life }) => life).values()].map((gpus) => gpus.length)),
          stops: own.reduce((sum, { count }) => sum + count, 0),
          gpus: [...Map.groupBy(all, ({ gpuUuid }) => gpuUuid)].map(([gpuUuid, lives]) => {
            const granted = lives.flatMap((one) => one.granted ?? [])[0];
            const smPeaks = lives.flatMap(({ smPeakRatio }) => smPeakRatio ?? []);
            return {
              gpuUuid,
              grantedBytes: granted?.limitBytes,
              grantedCoresPercent: granted && granted.coresPercent > 0 ? granted.coresPercent : undefined,
              coresHeld: granted?.compute !== undefined,
              memory: { peak: Math.max(...lives.map(({ peakBytes }) => peakBytes)) },
              compute: smPeaks.length === 0 ? undefined : { peak: Math.max(...smPeaks) },
              denied: lives.reduce((sum, { denied }) => sum + denied, 0),
            };
          }),
        },
      ];
    })
    .toSorted(byName);
}

const byName = (a: ContainerSeries, b: ContainerSeries): number =>
  [a.namespace, a.pod, a.container].join('/') < [b.namespace, b.pod, b.container].join('/') ? -1 : 1;

const nameKey = (of: { readonly namespace: string; readonly pod: string; readonly container: string }): string =>
  JSON.stringify([of.namespace, of.pod, of.container]);

/** A stop whose signal was sent, as far as is known. */
const isStopForMemory = ({ reason, result }: StopCount): boolean =>
  reason !== 'over-share' && (result === 'released' || result === 'interrupted');
