// A day on which no alert may fire: what is near an alert and none.

import type { InputSeries } from '../node-page.ts';
import { controlPlane } from './control-plane.ts';
import {
  after,
  always,
  container,
  createFleet,
  each,
  type Fleet,
  gpu,
  MINUTES,
  type Node,
  node,
  ordinary,
} from './fleet.ts';

const GIB = 2 ** 30;

/** What is near an alert and none: for a minute, for less than the time of the rule, or of a harmless kind. */
function quietNode(fleet: Fleet, on: Node): void {
  const { of, labels } = on;
  const { next } = fleet;
  const rare = (value: number, often: number) => each(() => (next() < often ? value : 0));
  for (const collector of ['gpus', 'containers'])
    fleet.gauge(
      of,
      'cotenant_exporter_collector_last_success_timestamp_seconds',
      { ...labels, collector },
      (minute) => minute * 60 - 2,
    );
  const call = { ...labels, call: 'nvmlDeviceGetFanSpeed' };
  fleet.counter(of, 'cotenant_exporter_nvml_errors_total', { ...call, code: '3' }, always(10));
  fleet.counter(of, 'cotenant_exporter_nvml_errors_total', { ...call, code: '999' }, rare(2, 0.01));
  fleet.gauge(of, 'cotenant_agent_connected', { ...labels, to: 'api' }, after([200, 800], 3, 0, 1));
  fleet.counter(of, 'cotenant_exporter_samplers_abandoned_total', labels, always(0));
  fleet.counter(of, 'cotenant_exporter_series_dropped_total', { ...labels, collector: 'processes' }, always(0));
  fleet.counter(of, 'cotenant_volume_publishes_total', { ...labels, result: 'refused' }, after([400], 4, 1, 0));
  fleet.counter(
    of,
    'cotenant_enforcement_decisions_total',
    { ...labels, decision: 'refused', reason: 'stale' },
    after([500, 900], 1, 3, 0),
  );
  for (const index of [0, 1]) {
    const granted = each((minute) => (minute > 900 && minute < 940 ? 79 : 62) * GIB);
    const id = gpu(fleet, on, index, granted);
    fleet.counter(of, 'cotenant_exporter_utilization_gaps_total', id, (minute) =>
      of.restarts.has(minute - 2) ? 1 : 0,
    );
    fleet.gauge(
      of,
      'cotenant_device_memory_unattributed_bytes',
      id,
      each((minute) => (minute % 200 < 6 ? 8 : 1.5 * next()) * GIB),
    );
    fleet.gauge(
      of,
      'cotenant_foreign_memory_used_bytes',
      { ...id, namespace: 'x', pod: 'debug', container: 'sh' },
      after([300], 3, GIB, 0),
    );
    fleet.gauge(
      of,
      'cotenant_device_xid_last_timestamp_seconds',
      { ...id, xid: '31' },
      (minute) => Math.floor(minute / 90) * 5400,
    );
    fleet.gauge(of, 'cotenant_device_unhealthy_reason', { ...id, reason: 'lost' }, always(0));
    fleet.gauge(of, 'cotenant_device_fence_holds', { ...id, fence: 'interposer' }, always(1));
    fleet.counter(of, 'cotenant_device_ecc_errors_total', { ...id, severity: 'uncorrected' }, always(0));
    fleet.gauge(of, 'cotenant_device_throttle_reason', { ...id, reason: 'sw_thermal' }, rare(1, 0.1));
    for (const pod of ['train', 'serve', 'job-1', 'job-2', 'job-3']) {
      const [, count] = pod.split('-');
      const lives = count === undefined ? [0, MINUTES] : [Number(count) * 400 - 300, Number(count) * 400];
      const one = container(fleet, { of, gpu: id }, `${pod}-${index}`, lives);
      ordinary(fleet, one);
      one.gauge('cotenant_container_info', always(1), { mode: 'shared', fence: 'interposer' });
      one.gauge('cotenant_container_engine_outdated', after([600], 10, 1, 0), { mode: 'shared' });
    }
  }
}

export function quietDay(seed: number): readonly InputSeries[] {
  const fleet = createFleet(seed);
  quietNode(fleet, node(fleet, 'node-a'));
  const some = (most: number) => each(() => (fleet.next() < 0.02 ? most : fleet.next() < 0.2 ? 1 : 0));
  controlPlane(fleet, [some(4), some(4)], false);
  return fleet.series;
}
