// Containers that have a GPU, by a grant or by others' word: limits, the driver's truth about them, and how it was counted.

import { currentRows, type Sum, sumsOf } from '../../agent/counters/series-sums.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { remembering } from '../../common/memo.ts';
import type { Fence } from '../../policy/isolation.ts';
import { CONTAINER_LABELS, containerLabels, DEVICE_LABELS, type Family, metricSet } from '../format/family.ts';

/** Without the GPU. */
const ofContainer = (of: Omit<Parameters<typeof containerLabels>[0], 'gpuIndex' | 'gpuUuid'>) => ({
  namespace: of.namespace,
  pod: of.pod,
  container: of.container,
  mode: of.mode ?? 'shared',
});

/** Rounded percentages of several processes may sum to more than there is. */
const shareOf = (percent: number | undefined): number | undefined =>
  percent === undefined ? undefined : Math.min(1, percent / 100);

const FENCES: readonly Fence[] = ['driver', 'interposer', 'agent', 'none'];

const assignedKey = ({ gpuIndex: _, ...of }: Parameters<typeof containerLabels>[0]) =>
  JSON.stringify([of.namespace, of.pod, of.container, of.mode, of.gpuUuid]);

/** Unknown entry points by container: a grant counts them once, on however many GPUs it is. */
function unknownOf(snapshot: Snapshot, lives: boolean): readonly (readonly [ReturnType<typeof ofContainer>, number])[] {
  const grants = [...new Map(snapshot.containerTotals.map((one) => [one.grantId, one])).values()];
  const name = (one: (typeof grants)[number]) => JSON.stringify([one.namespace, one.pod, one.container]);
  return currentRows(grants, name, snapshot)
    .filter((group) => group.lives === lives)
    .map(({ rows }) => [ofContainer(rows[0]), rows.reduce((sum, one) => sum + one.unknownEntryPoints, 0)] as const);
}

export const container: Family = {
  name: 'container',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string, labels: readonly string[] = []) =>
      set.gauge(
        `cotenant_container_${name}`,
        help,
        labels.length === 0 ? CONTAINER_LABELS : [...CONTAINER_LABELS, ...labels],
      );
    const counter = (name: string, help: string) => set.counter(`cotenant_container_${name}`, help, CONTAINER_LABELS);
    const info = gauge('info', 'A container with a grant or a GPU; always 1. fence: what holds its limit right now.', [
      'pod_uid',
      'container_id',
      'runtime',
      'fence',
    ]);
    const used = gauge(
      'memory_used_bytes',
      'Memory that the driver counts for its processes; managed memory is in no such count.',
    );
    const limit = gauge('memory_limit_bytes', 'Its grant on the GPU.');
    const peak = gauge(
      'memory_peak_bytes',
      'Most memory that its grant had to hold in any sample, managed memory included.',
    );
    const ledger = gauge('memory_ledger_bytes', 'Memory as its own processes account for it.', ['kind']);
    const bypass = gauge(
      'bypass_memory_bytes',
      'Memory held by processes that its ledger does not know: past the interposer.',
    );
    const sm = gauge('sm_utilization_ratio', "Share of the GPU's compute over the last window, sampled by the driver.");
    const smLimit = gauge('sm_limit_ratio', 'Compute granted; enforced says whether anything holds it to that.', [
      'enforced',
    ]);
    const processes = gauge('processes', 'Its processes on the GPU.');
    const active = gauge('last_active_timestamp_seconds', "Last sample in which it used the GPU's compute.");
    const over = gauge(
      'over_limit',
      '1 while it is above its grant and tolerance. Absent while the driver does not tell what it holds.',
    );
    const overShare = gauge(
      'over_share',
      '1 while it takes more compute than a share that is its limit. Only where the arbiter holds it to one.',
    );
    const mps = gauge(
      'mps_processes',
      'Its processes on the GPU that are clients of MPS; absent without any. judged: false where its share is a limit and its use cannot be told from that of other clients.',
      ['judged'],
    );
    const smSeconds = counter(
      'sm_seconds_total',
      "Compute time, integrated over the driver's samples; rate() is its mean share.",
    );
    const charged = counter(
      'sm_charged_seconds_total',
      'Time for which the arbiter kept the GPU for it, short gaps included.',
    );
    const contended = counter(
      'sm_contended_seconds_total',
      "Of the charged time, what passed while another container's work shared the GPU.",
    );
    const throttled = counter('sm_throttled_seconds_total', 'Time for which its launches waited, summed over threads.');
    const overruns = counter('sm_overruns_total', 'Turns that lasted too long for others to wait for their end.');
    const faults = counter(
      'compute_page_faults_total',
      'Words in its compute page that no process of ours would have written.',
    );
    const guaranteed = gauge('sm_guaranteed_ratio', 'Its part of the GPU when all others want theirs.');
    const policy = gauge('compute_policy', 'The policy that holds for it on the GPU now, and its priority; always 1.', [
      'policy',
      'priority',
    ]);
    const most = gauge('sm_most_ratio', 'Most of the GPU that it gets now; 1: nothing but others limits it.');
    const memorySeconds = counter(
      'memory_busy_seconds_total',
      'Time in which it used the memory bus, integrated likewise.',
    );
    const encoder = counter('encoder_seconds_total', 'Time of the video encoder, integrated likewise.');
    const decoder = counter('decoder_seconds_total', 'Time of the video decoder, integrated likewise.');
    const denied = counter('allocations_denied_total', 'Requests for memory that were refused because of the grant.');
    const whole = CONTAINER_LABELS.filter((label) => !DEVICE_LABELS.includes(label));
    const unknown = set.counter(
      'cotenant_container_unknown_entry_points_total',
      'Entry points of the driver that its processes looked up and the interposer does not know: they pass uncounted.',
      whole,
    );
    const engine = set.gauge(
      'cotenant_container_engine_processes',
      "Its living processes by the number of the interposer's engine that they run.",
      [...whole, 'engine'],
    );
    const fence = set.gauge(
      'cotenant_container_fence',
      'What holds its memory to the grant right now: 1 for one of them.',
      [...whole, 'fence'],
    );
    const enforcement = set.gauge(
      'cotenant_container_enforcement',
      'How far the agent goes when it is over (off, report, enforce), and who said so last: node, namespace, pod or administrator; always 1.',
      [...whole, 'enforcement', 'said_by'],
    );
    const refused = set.gauge(
      'cotenant_container_engine_refused_processes',
      'Its living processes that could not change to the engine that they were told to.',
      whole,
    );
    const behind = set.gauge(
      'cotenant_container_engine_behind',
      '1 while it is not told to run the engine that this agent wants; the log says why.',
      whole,
    );
    const withoutGpus = set.gauge(
      'cotenant_container_without_gpus',
      '1 while it has none of its GPUs: the container runtime made it without an answer from the agent. It gets them when it starts anew.',
      whole,
    );
    const observed = set.gauge(
      'cotenant_container_observed_processes',
      'Its living processes that a debugger or profiler watched when they began with CUDA.',
      [...whole, 'observer'],
    );
    const overSeconds = counter('over_limit_seconds_total', 'Time above its grant and tolerance.');
    const counted = (sum: Sum) => {
      const labels = containerLabels(sum);
      // Of what the driver does not tell, no total: one that stands still would say that nothing ran.
      if (sum.computeTold) {
        smSeconds(labels, sum.smSeconds);
        memorySeconds(labels, sum.memoryBusySeconds);
        encoder(labels, sum.encoderSeconds);
        decoder(labels, sum.decoderSeconds);
      }
      charged(labels, sum.chargedSeconds);
      contended(labels, sum.contendedSeconds);
      throttled(labels, sum.throttledSeconds);
      overruns(labels, sum.overruns);
      faults(labels, sum.faults);
      denied(labels, sum.denied);
      overSeconds(labels, sum.overLimitSeconds);
    };
    const countsOf = remembering((snapshot: Snapshot) =>
      sumsOf(
        [...snapshot.containerTotals.map((one) => ({ ...one, mode: 'shared' })), ...snapshot.assignedTotals],
        snapshot,
      ),
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const { gpuIndex, ...entry } of snapshot.containers) {
          // A GPU that nobody has seen has no number.
          if (gpuIndex === undefined) continue;
          const labels = containerLabels({ ...entry, gpuIndex });
          const ofPod = entry.podUid !== '';
          info(
            {
              ...labels,
              pod_uid: entry.podUid,
              container_id: ofPod ? entry.containerId : entry.grantId,
              runtime: ofPod ? 'container' : 'process',
              fence: entry.fence,
            },
            1,
          );
          used(labels, entry.bytesTold ? entry.usedBytes : undefined);
          limit(labels, entry.limitBytes);
          ledger({ ...labels, kind: 'context' }, entry.ledger.contextBytes);
          ledger({ ...labels, kind: 'managed' }, entry.ledger.managedBytes);
          ledger({ ...labels, kind: 'pool' }, entry.ledger.poolBytes);
          ledger({ ...labels, kind: 'buffer' }, entry.ledger.bufferBytes);
          bypass(labels, entry.bytesTold ? entry.bypassBytes : undefined);
          sm(labels, shareOf(entry.smPercent));
          if (entry.coresPercent > 0)
            smLimit({ ...labels, enforced: String(entry.compute !== undefined) }, entry.coresPercent / 100);
          if (entry.compute) {
            guaranteed(labels, entry.compute.guaranteeRatio);
            most(labels, entry.compute.limitRatio);
            overShare(labels, entry.overShare ? 1 : 0);
          }
          policy({ ...labels, policy: entry.computePolicy, priority: entry.priority }, 1);
          // Some in a list of which another one was not answered is no count.
          processes(labels, entry.usersTold ? entry.processes.length : undefined);
          if (entry.mps) mps({ ...labels, judged: String(entry.mps.judged) }, entry.mps.processes);
          active(labels, entry.lastActiveMs === undefined ? undefined : entry.lastActiveMs / 1000);
          // Who is over by what is told is over, however much is not told.
          over(labels, entry.over ? 1 : entry.bytesTold ? 0 : undefined);
        }
        const grantIds = new Set(snapshot.containers.map(({ grantId }) => grantId));
        for (const entry of snapshot.assigned) {
          const labels = containerLabels(entry);
          info(
            {
              ...labels,
              pod_uid: entry.podUid,
              container_id: entry.containerIds.findLast((id) => !grantIds.has(id)) ?? '',
              runtime: 'container',
              fence: 'none',
            },
            1,
          );
          used(labels, entry.usedBytes);
          sm(labels, shareOf(entry.smPercent));
          if (entry.usedBytes !== undefined || entry.processes.length > 0) processes(labels, entry.processes.length);
          active(labels, entry.lastActiveMs === undefined ? undefined : entry.lastActiveMs / 1000);
        }
        for (const entry of new Map(snapshot.containers.map((one) => [one.grantId, one])).values()) {
          const labels = ofContainer(entry);
          for (const one of FENCES) fence({ ...labels, fence: one }, entry.fence === one ? 1 : 0);
          for (const { engine: number, count } of entry.engines.processes) engine({ ...labels, engine: number }, count);
          enforcement({ ...labels, enforcement: entry.enforcement.mode, said_by: entry.enforcement.by }, 1);
          refused(labels, entry.engines.refused);
          behind(labels, entry.engines.behind ? 1 : 0);
          withoutGpus(labels, entry.withoutGpus ? 1 : 0);
          observed({ ...labels, observer: 'debugger' }, entry.observed.debugger);
          observed({ ...labels, observer: 'profiler' }, entry.observed.profiler);
        }
        for (const entry of new Map(
          snapshot.assigned.map((one) => [assignedKey({ ...one, gpuUuid: '' }), one]),
        ).values()) {
          for (const one of FENCES) fence({ ...ofContainer(entry), fence: one }, one === 'none' ? 1 : 0);
        }
        const present = new Set(snapshot.containers.map((entry) => `${entry.grantId} ${entry.gpuUuid}`));
        for (const totals of snapshot.containerTotals)
          if (present.has(`${totals.grantId} ${totals.gpuUuid}`)) peak(containerLabels(totals), totals.peakBytes);
        const held = new Set(snapshot.assigned.map((entry) => assignedKey(entry)));
        for (const totals of snapshot.assignedTotals)
          if (held.has(assignedKey(totals)) && totals.peakBytes > 0) peak(containerLabels(totals), totals.peakBytes);
        for (const sum of countsOf(snapshot)) if (sum.lives) counted(sum);
        for (const [labels, sum] of unknownOf(snapshot, true)) unknown(labels, sum);
      },
      fillEnded(snapshot) {
        for (const sum of countsOf(snapshot)) if (!sum.lives) counted(sum);
        for (const [labels, sum] of unknownOf(snapshot, false)) unknown(labels, sum);
      },
    };
  },
};
