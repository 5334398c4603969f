// Metrics of containers that have a GPU, by a grant of ours or from another device plugin: limits and present use per
// GPU.
import type { Snapshot, SnapshotAssigned, SnapshotContainer } from '../../agent/snapshot/snapshot.ts';
import {
  CONTAINER_LABELS,
  containerLabels,
  defineCollector,
  gauge,
  type Labels,
  type Series,
  secondsOf,
} from './collector.ts';

const ofContainer = (help: string, ...labels: readonly string[]) => gauge(help, [...CONTAINER_LABELS, ...labels]);

const METRICS = {
  cotenant_container_info: ofContainer(
    'A container with a GPU; always 1. fence is what enforces its memory limit now.',
    'pod_uid',
    'container_id',
    'runtime',
    'fence',
  ),
  cotenant_container_memory_used_bytes: ofContainer(
    'GPU memory of its processes, as the driver reports it. Excludes managed memory.',
  ),
  cotenant_container_memory_limit_bytes: ofContainer('Memory grant of the container on the GPU.'),
  cotenant_container_memory_peak_bytes: ofContainer(
    'Largest use counted against the memory grant in any sample, managed memory included.',
  ),
  cotenant_container_memory_ledger_bytes: ofContainer('Memory in the usage ledger of the container, by kind.', 'kind'),
  cotenant_container_memory_bypass_bytes: ofContainer(
    'Memory of processes that have no entry in the usage ledger: they bypass the interposer.',
  ),
  cotenant_container_sm_utilization_ratio: ofContainer(
    "Fraction of the GPU's compute that it used in the last sampling window, as the driver samples it.",
  ),
  cotenant_container_sm_limit_ratio: ofContainer(
    'Compute grant of the container on the GPU. enforced says whether the arbiter limits it to that.',
    'enforced',
  ),
  cotenant_container_sm_guaranteed_ratio: ofContainer('Fraction of the GPU it gets when all others want theirs.'),
  cotenant_container_sm_limit_effective_ratio: ofContainer(
    'Largest fraction of the GPU it can get now; 1: limited only by what others use.',
  ),
  cotenant_container_compute_policy: ofContainer(
    'Compute policy and priority in force for the container on the GPU; always 1.',
    'policy',
    'priority',
  ),
  cotenant_container_processes: ofContainer('Its processes on the GPU.'),
  cotenant_container_mps_processes: ofContainer(
    'Its processes on the GPU that are MPS clients; absent without any. judged is false where its compute limit ' +
      'cannot be checked, because the driver does not separate the use of MPS clients.',
    'judged',
  ),
  cotenant_container_last_active_timestamp_seconds: ofContainer(
    "Unix time of the last sample in which it used the GPU's compute.",
  ),
  cotenant_container_memory_over_limit: ofContainer(
    '1 while it uses more memory than its grant and tolerance. Absent while the driver does not report its memory.',
  ),
  cotenant_container_compute_over_limit: ofContainer(
    '1 while it uses more compute than its limit. Only where the arbiter enforces a limit.',
  ),
} as const;

type Put = Series<keyof typeof METRICS>['set'];

/** Each process's percentage is rounded, so the sum of several can exceed 100. */
const ratioOf = (percent: number | undefined): number | undefined =>
  percent === undefined ? undefined : Math.min(1, percent / 100);

function setMemory(entry: SnapshotContainer, labels: Labels, set: Put): void {
  const { ledger, memoryKnown } = entry;
  set('cotenant_container_memory_used_bytes', labels, memoryKnown ? entry.usedBytes : undefined);
  set('cotenant_container_memory_limit_bytes', labels, entry.limitBytes);
  set('cotenant_container_memory_ledger_bytes', { ...labels, kind: 'context' }, ledger.contextBytes);
  set('cotenant_container_memory_ledger_bytes', { ...labels, kind: 'managed' }, ledger.managedBytes);
  set('cotenant_container_memory_ledger_bytes', { ...labels, kind: 'pool' }, ledger.poolBytes);
  set('cotenant_container_memory_ledger_bytes', { ...labels, kind: 'buffer' }, ledger.bufferBytes);
  set('cotenant_container_memory_bypass_bytes', labels, memoryKnown ? entry.bypassBytes : undefined);
  // The part that is reported may already be too much.
  set('cotenant_container_memory_over_limit', labels, entry.over ? 1 : memoryKnown ? 0 : undefined);
}

function setCompute(entry: SnapshotContainer, labels: Labels, set: Put): void {
  const { compute, coresPercent, computePolicy: policy, priority } = entry;
  set('cotenant_container_sm_utilization_ratio', labels, ratioOf(entry.smPercent));
  if (coresPercent > 0) {
    const enforced = String(compute !== undefined);
    set('cotenant_container_sm_limit_ratio', { ...labels, enforced }, coresPercent / 100);
  }
  if (compute) {
    set('cotenant_container_sm_guaranteed_ratio', labels, compute.guaranteeRatio);
    set('cotenant_container_sm_limit_effective_ratio', labels, compute.limitRatio);
    set('cotenant_container_compute_over_limit', labels, entry.overShare ? 1 : 0);
  }
  set('cotenant_container_compute_policy', { ...labels, policy, priority }, 1);
}

function setGranted({ gpuIndex, ...entry }: SnapshotContainer, set: Put): void {
  // Without an index the GPU was never sampled.
  if (gpuIndex === undefined) return;
  const labels = containerLabels({ ...entry, gpuIndex });
  const isOfPod = entry.podUid !== '';
  const info = {
    pod_uid: entry.podUid,
    container_id: isOfPod ? entry.containerId : entry.grantId,
    runtime: isOfPod ? 'container' : 'process',
    fence: entry.fence,
  };
  set('cotenant_container_info', { ...labels, ...info }, 1);
  setMemory({ gpuIndex, ...entry }, labels, set);
  setCompute({ gpuIndex, ...entry }, labels, set);
  // If one of the process lists failed, the number would be too small.
  set('cotenant_container_processes', labels, entry.processesKnown ? entry.processes.length : undefined);
  const { mps } = entry;
  if (mps) set('cotenant_container_mps_processes', { ...labels, judged: String(mps.judged) }, mps.processes);
  set('cotenant_container_last_active_timestamp_seconds', labels, secondsOf(entry.lastActiveMs));
}

function setAssigned(entry: SnapshotAssigned, grantIds: ReadonlySet<string>, set: Put): void {
  const labels = containerLabels(entry);
  const { usedBytes, processes } = entry;
  const info = {
    pod_uid: entry.podUid,
    container_id: entry.containerIds.findLast((id) => !grantIds.has(id)) ?? '',
    runtime: 'container',
    fence: 'none',
  };
  set('cotenant_container_info', { ...labels, ...info }, 1);
  set('cotenant_container_memory_used_bytes', labels, usedBytes);
  set('cotenant_container_sm_utilization_ratio', labels, ratioOf(entry.smPercent));
  if (usedBytes !== undefined || processes.length > 0) set('cotenant_container_processes', labels, processes.length);
  set('cotenant_container_last_active_timestamp_seconds', labels, secondsOf(entry.lastActiveMs));
}

const assignedKey = ({
  namespace,
  pod,
  container,
  mode,
  gpuUuid,
}: Omit<Parameters<typeof containerLabels>[0], 'gpuIndex'>) =>
  JSON.stringify([namespace, pod, container, mode, gpuUuid]);

/** Of containers that are there; the totals also have those that ended. */
function setPeaks({ containers, containerTotals, assigned, assignedTotals }: Snapshot, set: Put): void {
  const granted = new Set(containers.map(({ grantId, gpuUuid }) => `${grantId} ${gpuUuid}`));
  for (const totals of containerTotals)
    if (granted.has(`${totals.grantId} ${totals.gpuUuid}`))
      set('cotenant_container_memory_peak_bytes', containerLabels(totals), totals.peakBytes);
  const present = new Set(assigned.map(assignedKey));
  for (const totals of assignedTotals)
    if (present.has(assignedKey(totals)) && totals.peakBytes > 0)
      set('cotenant_container_memory_peak_bytes', containerLabels(totals), totals.peakBytes);
}

export const container = defineCollector({
  name: 'container',
  metrics: METRICS,
  collect(snapshot, { set }) {
    const grantIds = new Set(snapshot.containers.map(({ grantId }) => grantId));
    for (const entry of snapshot.containers) setGranted(entry, set);
    for (const entry of snapshot.assigned) setAssigned(entry, grantIds, set);
    setPeaks(snapshot, set);
  },
});
