// Counters of containers that have a GPU: compute time, time throttled, denied allocations. A container that ended
// keeps its series for some minutes, unless another one with the same labels replaced it.
import { currentRows, type Sum, sumsOf } from '../../agent/counters/series-sums.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import {
  CONTAINER_LABELS,
  containerLabels,
  counter,
  defineCollector,
  HOLDER_LABELS,
  holderLabels,
  type Labels,
  type Series,
} from './collector.ts';

const ofContainer = (help: string) => counter(help, CONTAINER_LABELS);

const METRICS = {
  cotenant_container_sm_seconds_total: ofContainer(
    "Compute time, integrated over the driver's samples; rate() is its mean fraction of the GPU.",
  ),
  cotenant_container_sm_charged_seconds_total: ofContainer(
    'Time for which the arbiter gave it the GPU, short gaps included.',
  ),
  cotenant_container_sm_contended_seconds_total: ofContainer(
    "The part of the charged time in which another container's work ran on the GPU as well.",
  ),
  cotenant_container_sm_throttled_seconds_total: ofContainer(
    'Time for which its kernel launches waited for the arbiter, summed over threads.',
  ),
  cotenant_container_sm_relieved_launches_total: ofContainer(
    'Kernel launches that were let go before their share allowed it, as work in flight might wait for them.',
  ),
  cotenant_container_sm_overruns_total: ofContainer(
    'Times it kept the GPU past the end of its lease for so long that the arbiter let others run beside it.',
  ),
  cotenant_container_lease_page_corruptions_total: ofContainer(
    'Values in its lease page that the interposer never writes.',
  ),
  cotenant_container_memory_busy_seconds_total: ofContainer(
    "Time in which it used the memory bus, integrated over the driver's samples.",
  ),
  cotenant_container_encoder_seconds_total: ofContainer(
    "Time of the video encoder, integrated over the driver's samples.",
  ),
  cotenant_container_decoder_seconds_total: ofContainer(
    "Time of the video decoder, integrated over the driver's samples.",
  ),
  cotenant_container_allocations_denied_total: ofContainer('Allocations refused because of the memory grant.'),
  cotenant_container_memory_over_limit_seconds_total: ofContainer('Time above its memory grant and tolerance.'),
  cotenant_container_unknown_entry_points_total: counter(
    'Driver entry points that its processes looked up and the interposer does not know: calls through them are not counted.',
    HOLDER_LABELS,
  ),
} as const;

type Put = Series<keyof typeof METRICS>['set'];

function setSum(sum: Sum, set: Put): void {
  const labels = containerLabels(sum);
  // Where the driver reports no use per process, a counter that stands still would say that nothing ran.
  if (sum.utilizationKnown) {
    set('cotenant_container_sm_seconds_total', labels, sum.smSeconds);
    set('cotenant_container_memory_busy_seconds_total', labels, sum.memoryBusySeconds);
    set('cotenant_container_encoder_seconds_total', labels, sum.encoderSeconds);
    set('cotenant_container_decoder_seconds_total', labels, sum.decoderSeconds);
  }
  set('cotenant_container_sm_charged_seconds_total', labels, sum.chargedSeconds);
  set('cotenant_container_sm_contended_seconds_total', labels, sum.contendedSeconds);
  set('cotenant_container_sm_throttled_seconds_total', labels, sum.throttledSeconds);
  set('cotenant_container_sm_relieved_launches_total', labels, sum.relieved);
  set('cotenant_container_sm_overruns_total', labels, sum.overruns);
  set('cotenant_container_lease_page_corruptions_total', labels, sum.faults);
  set('cotenant_container_allocations_denied_total', labels, sum.denied);
  set('cotenant_container_memory_over_limit_seconds_total', labels, sum.overLimitSeconds);
}

/** A grant counts them once, on however many GPUs it is. */
function unknownEntryPoints(snapshot: Snapshot, lives: boolean): readonly (readonly [Labels, number])[] {
  const grants = [...new Map(snapshot.containerTotals.map((one) => [one.grantId, one])).values()];
  const name = (one: (typeof grants)[number]) => JSON.stringify([one.namespace, one.pod, one.container]);
  return currentRows(grants, name)
    .filter((group) => group.lives === lives)
    .map(({ rows }) => [holderLabels(rows[0]), rows.reduce((sum, one) => sum + one.unknownEntryPoints, 0)] as const);
}

function setCounters(snapshot: Snapshot, set: Put, lives: boolean): void {
  const granted = snapshot.containerTotals.map((one) => ({ ...one, mode: 'shared' }));
  for (const sum of sumsOf([...granted, ...snapshot.assignedTotals])) if (sum.lives === lives) setSum(sum, set);
  for (const [labels, count] of unknownEntryPoints(snapshot, lives))
    set('cotenant_container_unknown_entry_points_total', labels, count);
}

export const containerCounters = defineCollector({
  name: 'container-counters',
  metrics: METRICS,
  collect(snapshot, { set }) {
    setCounters(snapshot, set, true);
  },
  collectEnded(snapshot, { set }) {
    setCounters(snapshot, set, false);
  },
});
