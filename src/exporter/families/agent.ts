// The agent about its own sampling: is it up, what failed, what could not be told.
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

export const exporter: Family = {
  name: 'exporter',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const up = set.gauge('cotenant_up', '1 while the driver answers and the last sample is fresh.');
    const held = set.gauge('cotenant_driver_held', '0 while the driver is given up on command: nobody is watched.');
    const build = set.gauge('cotenant_exporter_build_info', 'What runs here; always 1.', [
      'version',
      'revision',
      'node_version',
    ]);
    const errors = set.counter('cotenant_exporter_nvml_errors_total', 'Calls of the driver that failed, by code.', [
      'call',
      'code',
    ]);
    const failures = set.counter(
      'cotenant_exporter_attribution_failures_total',
      'Processes on a GPU that could not be attributed, per sample.',
      ['reason'],
    );
    const unknownDevices = set.gauge(
      'cotenant_exporter_unknown_devices',
      'Devices of GPUs that others gave to containers here, and whose GPU their names do not tell.',
    );
    const gaps = set.counter(
      'cotenant_exporter_utilization_gaps_total',
      "Times that the driver's samples overran before they were read.",
      DEVICE_LABELS,
    );
    const abandoned = set.counter(
      'cotenant_exporter_samplers_abandoned_total',
      'Samplers left behind because the driver hung.',
    );
    const publishes = set.counter(
      'cotenant_volume_publishes_total',
      'Volumes of pods that the kubelet asked for, until each was given once, by what it was told.',
      ['result'],
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        up({}, snapshot.self.up ? 1 : 0);
        held({}, snapshot.self.driverHeld ? 1 : 0);
        build(
          { version: snapshot.self.version, revision: snapshot.self.revision, node_version: snapshot.self.nodeVersion },
          1,
        );
        for (const { call, code, count } of snapshot.errors) errors({ call, code: String(code) }, count);
        for (const [reason, count] of Object.entries(snapshot.self.failures)) failures({ reason }, count);
        for (const { gpu } of snapshot.devices) gaps(deviceLabels(gpu.index, gpu.uuid), gpu.utilizationGaps);
        unknownDevices({}, snapshot.unknownDevices);
        abandoned({}, snapshot.self.samplersAbandoned);
        for (const [result, count] of Object.entries(snapshot.self.publishes)) publishes({ result }, count);
      },
    };
  },
};
