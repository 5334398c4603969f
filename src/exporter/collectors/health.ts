// Faults and wear of GPUs: Xids, ECC errors, row remapping, page retirement, throttle reasons; and PCIe and NVLink
// traffic. A reading that NVML lacks is absent.
import type { SampledGpu } from '../../agent/sampling/sample.ts';
import {
  counter,
  defineCollector,
  GPU_LABELS,
  gauge,
  gpuLabels,
  type Labels,
  reading,
  type Series,
  secondsOf,
  setReadings,
} from './collector.ts';

/** NVML's bits of the clocks' throttle reasons. Several may be set. */
const THROTTLE_REASONS: readonly (readonly [bit: number, reason: string])[] = [
  [0x1, 'idle'],
  [0x2, 'application_clocks'],
  [0x4, 'power_cap'],
  [0x8, 'hw_slowdown'],
  [0x10, 'sync_boost'],
  [0x20, 'sw_thermal'],
  [0x40, 'hw_thermal'],
  [0x80, 'power_brake'],
  [0x100, 'display_clocks'],
];

const gaugeOf = (help: string, ...labels: readonly string[]) => gauge(help, [...GPU_LABELS, ...labels]);
const counterOf = (help: string, ...labels: readonly string[]) => counter(help, [...GPU_LABELS, ...labels]);

const METRICS = {
  cotenant_device_xid_errors_total: counterOf('Xid errors of the GPU since the node booted.', 'xid'),
  cotenant_device_xid_last_timestamp_seconds: gaugeOf('Unix time of the last Xid error with this code.', 'xid'),
  cotenant_device_ecc_errors_total: counterOf('ECC memory errors since the driver was loaded.', 'severity'),
  cotenant_device_ecc_lifetime_errors_total: counterOf('ECC memory errors over the lifetime of the GPU.', 'severity'),
  cotenant_device_remapped_rows: gaugeOf('Memory rows replaced by spare rows, by the kind of error.', 'cause'),
  cotenant_device_row_remap_pending: reading('1 while a row remapping waits for a reset of the GPU.', 'rowsPending'),
  cotenant_device_row_remap_failure: reading('1 after a row could not be remapped.', 'rowsFailed'),
  cotenant_device_retired_pages: gaugeOf('Retired memory pages, by the kind of error.', 'cause'),
  cotenant_device_page_retirement_pending: reading(
    '1 while a page retirement waits for a reset of the GPU.',
    'pagesPending',
  ),
  cotenant_device_throttle_reason: gaugeOf('1 while this reason keeps the clocks below their maximum.', 'reason'),
  cotenant_device_pcie_receive_bytes_total: counter('Bytes received over PCIe.', GPU_LABELS, 'pcieReceivedBytes'),
  cotenant_device_pcie_transmit_bytes_total: counter('Bytes sent over PCIe.', GPU_LABELS, 'pcieSentBytes'),
  cotenant_device_nvlink_receive_bytes_total: counter(
    'Bytes received over all NVLinks.',
    GPU_LABELS,
    'nvlinkReceivedBytes',
  ),
  cotenant_device_nvlink_transmit_bytes_total: counter('Bytes sent over all NVLinks.', GPU_LABELS, 'nvlinkSentBytes'),
} as const;

type Put = Series<keyof typeof METRICS>['set'];

function setMemoryErrors(gpu: SampledGpu, labels: Labels, set: Put): void {
  set('cotenant_device_ecc_errors_total', { ...labels, severity: 'corrected' }, gpu.eccCorrectedVolatile);
  set('cotenant_device_ecc_errors_total', { ...labels, severity: 'uncorrected' }, gpu.eccUncorrectedVolatile);
  set('cotenant_device_ecc_lifetime_errors_total', { ...labels, severity: 'corrected' }, gpu.eccCorrectedAggregate);
  set('cotenant_device_ecc_lifetime_errors_total', { ...labels, severity: 'uncorrected' }, gpu.eccUncorrectedAggregate);
  set('cotenant_device_remapped_rows', { ...labels, cause: 'corrected' }, gpu.rowsCorrected);
  set('cotenant_device_remapped_rows', { ...labels, cause: 'uncorrected' }, gpu.rowsUncorrected);
  set('cotenant_device_retired_pages', { ...labels, cause: 'corrected' }, gpu.pagesCorrected);
  set('cotenant_device_retired_pages', { ...labels, cause: 'uncorrected' }, gpu.pagesUncorrected);
}

export const health = defineCollector({
  name: 'health',
  metrics: METRICS,
  collect(snapshot, { set }) {
    for (const { gpuIndex, gpuUuid, xid, count, lastMs } of snapshot.xids) {
      const labels = { ...gpuLabels({ index: gpuIndex, uuid: gpuUuid }), xid };
      set('cotenant_device_xid_errors_total', labels, count);
      set('cotenant_device_xid_last_timestamp_seconds', labels, secondsOf(lastMs));
    }
    for (const { gpu } of snapshot.devices) {
      const labels = gpuLabels(gpu);
      setReadings(METRICS, gpu, labels, set);
      setMemoryErrors(gpu, labels, set);
      const bits = gpu.throttleReasons;
      // Newer drivers set bits above the 32nd, which JavaScript's bit operators cannot read.
      for (const [bit, reason] of THROTTLE_REASONS)
        set('cotenant_device_throttle_reason', { ...labels, reason }, bits && Math.floor(bits / bit) % 2);
    }
  },
});
