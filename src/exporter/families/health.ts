// What wears out or breaks on GPUs: Xids, errors of memory and their repairs, why clocks are low; and bytes over links.
// Absent where the driver does not tell.
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

/** NVML's bits. A GPU may have several reasons, or none. */
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

export const health: Family = {
  name: 'health',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string, labels: readonly string[] = []) =>
      set.gauge(`cotenant_device_${name}`, help, [...DEVICE_LABELS, ...labels]);
    const counter = (name: string, help: string, labels: readonly string[] = []) =>
      set.counter(`cotenant_device_${name}`, help, [...DEVICE_LABELS, ...labels]);
    const xids = counter('xid_errors_total', "Xids that the driver raised, since the machine's start.", ['xid']);
    const lastXid = gauge('xid_last_timestamp_seconds', 'When the driver last raised this Xid.', ['xid']);
    const ecc = counter('ecc_errors_total', 'Errors of memory that ECC found since the driver was loaded.', [
      'severity',
    ]);
    const eccEver = counter('ecc_lifetime_errors_total', 'Errors of memory that ECC found since the GPU was made.', [
      'severity',
    ]);
    const rows = gauge('remapped_rows', 'Rows of memory that were replaced by spare ones, by cause.', ['cause']);
    const rowsPending = gauge('row_remap_pending', '1 while rows wait for a reset to be replaced.');
    const rowsFailed = gauge('row_remap_failure', '1 once a row could not be replaced.');
    const pages = gauge('retired_pages', 'Pages of memory that are not used any more, by cause.', ['cause']);
    const pagesPending = gauge('page_retirement_pending', '1 while pages wait for a reset to be retired.');
    const throttle = gauge('throttle_reason', 'Why clocks are lower than they could be.', ['reason']);
    const pcieReceived = counter('pcie_receive_bytes_total', 'Received over PCIe.');
    const pcieSent = counter('pcie_transmit_bytes_total', 'Sent over PCIe.');
    const nvlinkReceived = counter('nvlink_receive_bytes_total', 'Received over all NVLinks.');
    const nvlinkSent = counter('nvlink_transmit_bytes_total', 'Sent over all NVLinks.');
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const { gpuIndex, gpuUuid, xid, count, lastMs } of snapshot.xids) {
          const labels = { ...deviceLabels(gpuIndex, gpuUuid), xid };
          xids(labels, count);
          lastXid(labels, lastMs === undefined ? undefined : lastMs / 1000);
        }
        for (const { gpu } of snapshot.devices) {
          const labels = deviceLabels(gpu.index, gpu.uuid);
          ecc({ ...labels, severity: 'corrected' }, gpu.eccCorrectedVolatile);
          ecc({ ...labels, severity: 'uncorrected' }, gpu.eccUncorrectedVolatile);
          eccEver({ ...labels, severity: 'corrected' }, gpu.eccCorrectedAggregate);
          eccEver({ ...labels, severity: 'uncorrected' }, gpu.eccUncorrectedAggregate);
          rows({ ...labels, cause: 'corrected' }, gpu.rowsCorrected);
          rows({ ...labels, cause: 'uncorrected' }, gpu.rowsUncorrected);
          rowsPending(labels, gpu.rowsPending);
          rowsFailed(labels, gpu.rowsFailed);
          pages({ ...labels, cause: 'corrected' }, gpu.pagesCorrected);
          pages({ ...labels, cause: 'uncorrected' }, gpu.pagesUncorrected);
          pagesPending(labels, gpu.pagesPending);
          for (const [bit, reason] of THROTTLE_REASONS) {
            const now = gpu.throttleReasons;
            // Newer drivers have reasons beyond 32 bits of a number: not by the operators of bits.
            throttle({ ...labels, reason }, now === undefined ? undefined : Math.floor(now / bit) % 2);
          }
          pcieReceived(labels, gpu.pcieReceivedBytes);
          pcieSent(labels, gpu.pcieSentBytes);
          nvlinkReceived(labels, gpu.nvlinkReceivedBytes);
          nvlinkSent(labels, gpu.nvlinkSentBytes);
        }
      },
    };
  },
};
