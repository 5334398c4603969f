// A day with a trouble for each alert, on which each must fire once and not more often.

import type { InputSeries } from '../node-page.ts';
import { controlPlane } from './control-plane.ts';
import {
  about,
  always,
  container,
  createFleet,
  each,
  events,
  type Fleet,
  gpu,
  lasting,
  type Node,
  node,
  type Target,
  trouble,
} from './fleet.ts';

const GIB = 2 ** 30;
const HOUR = 60;

/** The alert, and what brings it about. */
const OF_NODES: readonly (readonly [alert: string, make: (fleet: Fleet, on: Node) => void])[] = [
  [
    'CotenantCollectorStale',
    (fleet, { of, labels }) => {
      const bad = trouble(fleet, 1, 0);
      const collector = { ...labels, collector: 'gpus' };
      fleet.gauge(
        of,
        'cotenant_exporter_collector_last_success_timestamp_seconds',
        collector,
        (minute) => minute * 60 - (bad(minute) ? 300 : 2),
      );
    },
  ],
  [
    'CotenantNvmlErrors',
    (fleet, { of, labels }) =>
      fleet.counter(
        of,
        'cotenant_exporter_nvml_errors_total',
        { ...labels, call: 'nvmlDeviceGetTemperature', code: '999' },
        trouble(fleet, 6, 0, 0.1),
      ),
  ],
  [
    'CotenantDriverHung',
    (fleet, { of, labels }) =>
      fleet.counter(of, 'cotenant_exporter_samplers_abandoned_total', labels, trouble(fleet, 1, 0, 0.3)),
  ],
  [
    'CotenantSeriesDropped',
    (fleet, { of, labels }) =>
      fleet.counter(
        of,
        'cotenant_exporter_series_dropped_total',
        { ...labels, collector: 'processes' },
        trouble(fleet, 3, 0, 0.3),
      ),
  ],
  [
    'CotenantVolumesNotPublished',
    (fleet, { of, labels }) =>
      fleet.counter(of, 'cotenant_volume_publishes_total', { ...labels, result: 'refused' }, trouble(fleet, 1, 0, 0.2)),
  ],
  [
    'CotenantStopsRefused',
    (fleet, { of, labels }) =>
      fleet.counter(
        of,
        'cotenant_enforcement_decisions_total',
        { ...labels, decision: 'refused', reason: 'stale' },
        trouble(fleet, 6, 0, 0.2),
      ),
  ],
  [
    'CotenantUtilizationGaps',
    (fleet, { of, labels }) => {
      const id = { ...labels, gpu: '0', gpu_uuid: 'GPU-0' };
      fleet.counter(of, 'cotenant_exporter_utilization_gaps_total', id, trouble(fleet, 1, 0, 0.3));
    },
  ],
  [
    'CotenantAgentDisconnected',
    (fleet, { of, labels }) =>
      fleet.gauge(of, 'cotenant_agent_connected', { ...labels, to: 'api' }, trouble(fleet, 0, 1)),
  ],
  [
    'CotenantNotEnforcing',
    (fleet, { of, labels }) =>
      fleet.gauge(of, 'cotenant_enforcement_mode', { ...labels, job: 'other', enforcement: 'report' }, always(1)),
  ],
  [
    'CotenantGpuMissing',
    (fleet, on) => {
      const id = gpu(fleet, on, 1);
      const gone = trouble(fleet, 1, 0);
      fleet.gauge(on.of, 'cotenant_device_info', { ...id, gpu: '2', model: 'H100', mig_mode: 'disabled' }, (minute) =>
        gone(minute) ? undefined : 1,
      );
    },
  ],
  [
    'CotenantMemoryFragmented',
    (fleet, on) => {
      const granted = trouble(fleet, 52 * GIB, 20 * GIB, 0.01);
      for (const index of [1, 2, 3, 4]) gpu(fleet, on, index, granted);
    },
  ],
];

type OfGpu = { readonly fleet: Fleet; readonly on: Node; readonly id: Readonly<Record<string, string>> };
const OF_GPUS: readonly (readonly [alert: string, make: (one: OfGpu) => void])[] = [
  [
    'CotenantGpuUnhealthy',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_unhealthy_reason', { ...id, reason: 'lost' }, lasting(1, 0)),
  ],
  [
    'CotenantIsolationFailed',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_fence_holds', { ...id, fence: 'driver' }, trouble(fleet, 0, 1)),
  ],
  [
    'CotenantMemoryOvercommitted',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_memory_allocated_bytes', id, trouble(fleet, 90 * GIB, 70 * GIB)),
  ],
  [
    'CotenantUnattributedMemory',
    ({ fleet, on, id }) => {
      fleet.gauge(on.of, 'cotenant_device_memory_allocated_bytes', id, always(76 * GIB));
      fleet.gauge(on.of, 'cotenant_device_memory_unattributed_bytes', id, trouble(fleet, 9 * GIB, GIB));
    },
  ],
  [
    'CotenantForeignUse',
    ({ fleet, on, id }) =>
      fleet.gauge(
        on.of,
        'cotenant_foreign_memory_used_bytes',
        { ...id, namespace: 'x', pod: 'p', container: 'c' },
        trouble(fleet, GIB, 0),
      ),
  ],
  [
    'CotenantXidCritical',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_xid_last_timestamp_seconds', { ...id, xid: '79' }, events(fleet)),
  ],
  [
    'CotenantXidContained',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_xid_last_timestamp_seconds', { ...id, xid: '94' }, events(fleet)),
  ],
  [
    'CotenantEccUncorrected',
    ({ fleet, on, id }) => {
      // The driver's own count: an agent that restarts does not begin it anew.
      const counts = events(fleet);
      const ecc = { ...id, severity: 'uncorrected' };
      fleet.gauge(on.of, 'cotenant_device_ecc_errors_total', ecc, (minute) => counts(minute) ?? 0);
    },
  ],
  [
    'CotenantRowRemapFailure',
    ({ fleet, on, id }) => fleet.gauge(on.of, 'cotenant_device_row_remap_failure', id, lasting(1, 0)),
  ],
  [
    'CotenantRowRemapPending',
    ({ fleet, on, id }) => fleet.gauge(on.of, 'cotenant_device_row_remap_pending', id, lasting(1, 0)),
  ],
  [
    'CotenantClocksThrottled',
    ({ fleet, on, id }) =>
      fleet.gauge(on.of, 'cotenant_device_throttle_reason', { ...id, reason: 'hw_thermal' }, trouble(fleet, 1, 0)),
  ],
];

type One = ReturnType<typeof container>;
/** The alert, the metrics that it is about, and what they do. */
const OF_CONTAINERS: readonly (readonly [alert: string, make: (one: One, fleet: Fleet) => void])[] = [
  [
    'CotenantContainerNearLimit',
    (one, fleet) => one.gauge('cotenant_container_memory_used_bytes', trouble(fleet, 9.8 * GIB, 9.2 * GIB)),
  ],
  [
    'CotenantContainerOverLimit',
    (one, fleet) => {
      one.gauge('cotenant_container_memory_used_bytes', trouble(fleet, 12 * GIB, 8 * GIB));
      one.gauge('cotenant_container_memory_over_limit', trouble(fleet, 1, 0));
    },
  ],
  [
    'CotenantUnlimitedOverGrant',
    (one, fleet) => {
      // On a GPU of its own, whose other containers were granted the rest.
      const gpu = { ...one.id, gpu_uuid: 'unlimited' };
      one.gauge('cotenant_device_memory_total_bytes', always(20 * GIB), gpu);
      one.gauge('cotenant_device_memory_allocated_bytes', always(18 * GIB), gpu);
      one.gauge('cotenant_container_info', always(1), { ...gpu, mode: 'shared', fence: 'none' });
      one.gauge('cotenant_container_memory_limit_bytes', always(10 * GIB), gpu);
      one.gauge('cotenant_container_memory_used_bytes', trouble(fleet, 13 * GIB, 11 * GIB), gpu);
    },
  ],
  [
    'CotenantContainerStopped',
    (one, fleet) =>
      one.gauge('cotenant_container_last_kill_timestamp_seconds', events(fleet), {
        reason: 'over-limit',
        action: 'kill',
      }),
  ],
  [
    'CotenantGrantOfGonePod',
    (one) => {
      const gone = lasting(1, 0);
      one.gauge('cotenant_container_pod_gone_timestamp_seconds', (minute) =>
        gone(minute) ? 8 * HOUR * 60 : undefined,
      );
    },
  ],
  [
    'CotenantStopFailed',
    (one, fleet) =>
      one.counter('cotenant_container_kills_total', trouble(fleet, 1, 0, 0.3), {
        reason: 'over-limit',
        action: 'kill',
        result: 'stuck',
      }),
  ],
  ['CotenantBypass', (one, fleet) => one.gauge('cotenant_container_memory_bypass_bytes', trouble(fleet, GIB, 0))],
  [
    'CotenantIsolationWeakened',
    (one) => {
      one.gauge('cotenant_container_memory_used_bytes', always(GIB));
      const strong = lasting(0, 1);
      one.gauge('cotenant_container_info', (minute) => (strong(minute) ? 1 : undefined), {
        mode: 'shared',
        fence: 'driver',
      });
      one.gauge('cotenant_container_info', (minute) => (strong(minute) ? undefined : 1), {
        mode: 'shared',
        fence: 'agent',
      });
    },
  ],
  [
    'CotenantLedgerMismatch',
    (one, fleet) => {
      one.gauge('cotenant_container_memory_used_bytes', trouble(fleet, 8 * GIB, 5 * GIB));
      one.gauge('cotenant_container_memory_bypass_bytes', always(0));
      one.gauge('cotenant_container_memory_ledger_bytes', always(5 * GIB), { kind: 'device' });
    },
  ],
  [
    'CotenantDenialStorm',
    (one, fleet) => one.counter('cotenant_container_allocations_denied_total', trouble(fleet, 12, 0, 0.1)),
  ],
  [
    'CotenantComputeOverLimit',
    (one, fleet) => {
      one.counter('cotenant_container_sm_seconds_total', trouble(fleet, 50, 28, 0.1));
      one.counter('cotenant_container_sm_charged_seconds_total', always(50));
      one.gauge('cotenant_container_sm_limit_effective_ratio', about(0.5, 0.05, fleet.next));
    },
  ],
  [
    'CotenantComputeDrift',
    (one, fleet) => {
      one.counter('cotenant_container_sm_seconds_total', trouble(fleet, 30, 24, 0.1));
      one.counter('cotenant_container_sm_charged_seconds_total', always(24));
    },
  ],
  [
    'CotenantComputeThrottled',
    (one, fleet) => {
      one.counter('cotenant_container_sm_throttled_seconds_total', trouble(fleet, 60, 10, 0.1));
      one.counter('cotenant_container_sm_charged_seconds_total', always(24));
    },
  ],
  [
    'CotenantContainerNotEnforced',
    (one) =>
      one.gauge('cotenant_container_enforcement', always(1), {
        mode: 'shared',
        enforcement: 'report',
        source: 'namespace',
      }),
  ],
  ['CotenantGrantIdle', (one) => one.counter('cotenant_container_sm_seconds_total', lasting(0, 10))],
  [
    'CotenantUnknownEntryPoints',
    (one) =>
      one.counter(
        'cotenant_container_unknown_entry_points_total',
        each((minute) => (minute === 400 ? 3 : 0)),
        { mode: 'shared' },
      ),
  ],
  [
    'CotenantEngineRefused',
    (one, fleet) => one.gauge('cotenant_container_engine_refused_processes', trouble(fleet, 2, 0), { mode: 'shared' }),
  ],
  [
    'CotenantEngineOutdated',
    (one) => one.gauge('cotenant_container_engine_outdated', lasting(1, 0), { mode: 'shared' }),
  ],
  [
    'CotenantContainerGpuMissing',
    (one) => one.gauge('cotenant_container_gpu_missing', lasting(1, 0), { mode: 'shared' }),
  ],
];

/** An agent that answers only now and then; one whose scrapes fail again and again. */
function badTargets(fleet: Fleet): void {
  const down = trouble(fleet, 1, 0);
  const of: Target = { answers: () => 'page', restarts: new Set() };
  const labels = { job: 'cotenant', instance: 'down' };
  fleet.gauge(of, 'up', labels, (minute) => (down(minute) ? 0 : 1));
  fleet.gauge(of, 'cotenant_up', labels, (minute) => (down(minute) ? undefined : 1));
  const gaps = trouble(fleet, 1, 0, 0.2);
  fleet.gauge(of, 'up', { ...labels, instance: 'gaps' }, (minute) =>
    gaps(minute) === 0 && minute >= 8 * HOUR && minute < 16 * HOUR ? 0 : 1,
  );
  fleet.gauge(of, 'cotenant_up', { ...labels, instance: 'gaps' }, always(1));
}

/** What must fire. */
export const TROUBLES: readonly string[] = [
  ...[...OF_NODES, ...OF_GPUS, ...OF_CONTAINERS].map(([alert]) => alert),
  ...['CotenantExporterDown', 'CotenantScrapeGaps', 'CotenantStopLoop', 'CotenantMemoryNearlyGranted'],
  ...['CotenantWebhookDown', 'CotenantWebhookFails', 'CotenantWebhookSlow', 'CotenantCertificateRefused'],
  ...['CotenantWebhookCertificateExpires', 'CotenantLiveRulesInvalid'],
  ...['CotenantSchedulerNotLeading', 'CotenantSchedulerBindFailures', 'CotenantSchedulerSlow'],
  ...['CotenantApiServerProblems', 'CotenantSchedulerInvalidObjects'],
];

export function badDay(seed: number): readonly InputSeries[] {
  const fleet = createFleet(seed);
  for (const [alert, make] of OF_NODES) make(fleet, node(fleet, alert.toLowerCase()));
  const gpus = node(fleet, 'gpus');
  for (const [index, [alert, make]] of OF_GPUS.entries()) {
    const id = { ...gpus.labels, gpu: String(index), gpu_uuid: alert };
    fleet.gauge(gpus.of, 'cotenant_device_memory_total_bytes', id, always(80 * GIB));
    make({ fleet, on: gpus, id });
  }
  const containers = node(fleet, 'containers');
  const id = { ...containers.labels, gpu: '0', gpu_uuid: 'GPU-0' };
  for (const [alert, make] of OF_CONTAINERS)
    make(container(fleet, { of: containers.of, gpu: id }, alert.toLowerCase()), fleet);
  badTargets(fleet);
  const slow = () => trouble(fleet, 4, 0, 0.1);
  controlPlane(fleet, [slow(), slow()], true);
  // A cluster of its own, which is nearly full.
  const full = node(fleet, 'full');
  for (const index of [0, 1])
    gpu(fleet, { ...full, labels: { ...full.labels, job: 'other' } }, index, trouble(fleet, 76 * GIB, 68 * GIB, 0.01));
  return fleet.series;
}
