// Metrics of the agent itself: whether it samples, what failed, what it could not attribute.
import { counter, defineCollector, GPU_LABELS, gauge, gpuLabels } from './collector.ts';

export const agent = defineCollector({
  name: 'agent',
  metrics: {
    cotenant_up: gauge('1 while the driver answers and the last sample is fresh.'),
    cotenant_driver_attached: gauge(
      '0 after a command released the driver; until it is attached again the agent samples nothing.',
    ),
    cotenant_exporter_build_info: gauge('Versions of the agent; always 1.', ['version', 'revision', 'node_version']),
    cotenant_exporter_nvml_errors_total: counter('Failed NVML calls, by return code.', ['call', 'code']),
    cotenant_exporter_attribution_failures_total: counter(
      'GPU processes that the agent could not attribute to a container, counted in every sample.',
      ['reason'],
    ),
    cotenant_exporter_unknown_devices: gauge(
      'Devices that another device plugin allocated on this node under an id that names no GPU.',
    ),
    cotenant_exporter_utilization_gaps_total: counter(
      "Times the driver's buffer of utilization samples overflowed before the agent read it.",
      GPU_LABELS,
    ),
    cotenant_exporter_samplers_abandoned_total: counter('Sampler processes abandoned because they hung in the driver.'),
    cotenant_volume_publishes_total: counter(
      'First NodePublishVolume calls of the kubelet for the volume of a pod, by result.',
      ['result'],
    ),
    cotenant_agent_connected: gauge(
      '1 while the agent is connected to the API server (api), the kubelet (csi) or the container runtime (nri).',
      ['to'],
    ),
  },
  collect(snapshot, { set }) {
    const { self } = snapshot;
    set('cotenant_up', {}, self.up ? 1 : 0);
    set('cotenant_driver_attached', {}, self.driverHeld ? 1 : 0);
    const build = { version: self.version, revision: self.revision, node_version: self.nodeVersion };
    set('cotenant_exporter_build_info', build, 1);
    for (const { call, code, count } of snapshot.errors)
      set('cotenant_exporter_nvml_errors_total', { call, code: String(code) }, count);
    for (const [reason, count] of Object.entries(self.failures))
      set('cotenant_exporter_attribution_failures_total', { reason }, count);
    set('cotenant_exporter_unknown_devices', {}, snapshot.unknownDevices);
    for (const { gpu } of snapshot.devices)
      set('cotenant_exporter_utilization_gaps_total', gpuLabels(gpu), gpu.utilizationGaps);
    set('cotenant_exporter_samplers_abandoned_total', {}, self.samplersAbandoned);
    for (const [result, count] of Object.entries(self.publishes))
      set('cotenant_volume_publishes_total', { result }, count);
    for (const [to, connected] of Object.entries(self.connections))
      set('cotenant_agent_connected', { to }, connected ? 1 : 0);
  },
});
