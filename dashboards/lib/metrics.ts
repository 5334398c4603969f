// The metrics of the node agent by name, type and labels, as far as the board and the alert rules may use them.
// Owns the spelling for this folder, so that a name that nobody serves does not compile; serving them is the agent's part.

export type Metric = { readonly type: 'gauge' | 'counter'; readonly labels: readonly string[] };
export type MetricName = keyof typeof METRICS;

const DEVICE = ['gpu', 'gpu_uuid'] as const;
const CONTAINER = [...DEVICE, 'namespace', 'pod', 'container', 'mode'] as const;
const FOREIGN = [...DEVICE, 'namespace', 'pod', 'container'] as const;
/** A stop outlives the container's place on the GPU, so it carries less. */
const KILL = ['namespace', 'pod', 'container', 'gpu_uuid', 'reason', 'action'] as const;

const gauge = (...labels: readonly string[]): Metric => ({ type: 'gauge', labels });
const counter = (...labels: readonly string[]): Metric => ({ type: 'counter', labels });

/** Labels that Prometheus adds to everything it scrapes. */
export const TARGET_LABELS: readonly string[] = ['job', 'instance'];

export const METRICS = {
  /** Prometheus' own, of each target. */
  up: gauge(),
  scrape_samples_scraped: gauge(),
  /** Of the agent's process. */
  process_resident_memory_bytes: gauge(),
  nodejs_heap_size_used_bytes: gauge(),
  nodejs_eventloop_lag_max_seconds: gauge(),

  cotenant_up: gauge(),
  cotenant_driver_held: gauge(),

  cotenant_device_info: gauge(...DEVICE, 'model', 'pci_bus_id', 'minor', 'driver_version', 'cuda_version', 'mig_mode'),
  cotenant_device_memory_total_bytes: gauge(...DEVICE),
  cotenant_device_memory_used_bytes: gauge(...DEVICE),
  cotenant_device_memory_free_bytes: gauge(...DEVICE),
  cotenant_device_memory_reserved_bytes: gauge(...DEVICE),
  cotenant_device_memory_allocated_bytes: gauge(...DEVICE),
  cotenant_device_unattributed_memory_bytes: gauge(...DEVICE),
  cotenant_device_compute_policy: gauge(...DEVICE, 'policy', 'source'),
  cotenant_device_sm_allocated_ratio: gauge(...DEVICE),
  cotenant_device_utilization_ratio: gauge(...DEVICE),
  cotenant_device_memory_busy_ratio: gauge(...DEVICE),
  cotenant_device_encoder_utilization_ratio: gauge(...DEVICE),
  cotenant_device_decoder_utilization_ratio: gauge(...DEVICE),
  cotenant_device_temperature_celsius: gauge(...DEVICE, 'sensor'),
  cotenant_device_power_watts: gauge(...DEVICE),
  cotenant_device_power_limit_watts: gauge(...DEVICE),
  cotenant_device_clock_hertz: gauge(...DEVICE, 'domain'),
  cotenant_device_max_clock_hertz: gauge(...DEVICE, 'domain'),
  cotenant_device_healthy: gauge(...DEVICE),
  cotenant_device_unhealthy_reason: gauge(...DEVICE, 'reason'),
  cotenant_device_throttle_reason: gauge(...DEVICE, 'reason'),
  cotenant_device_xid_errors_total: counter(...DEVICE, 'xid'),
  cotenant_device_xid_last_timestamp_seconds: gauge(...DEVICE, 'xid'),
  cotenant_device_ecc_errors_total: counter(...DEVICE, 'severity'),
  cotenant_device_ecc_lifetime_errors_total: counter(...DEVICE, 'severity'),
  cotenant_device_remapped_rows: gauge(...DEVICE, 'cause'),
  cotenant_device_row_remap_pending: gauge(...DEVICE),
  cotenant_device_row_remap_failure: gauge(...DEVICE),
  cotenant_device_retired_pages: gauge(...DEVICE, 'cause'),
  cotenant_device_page_retirement_pending: gauge(...DEVICE),
  cotenant_device_pcie_receive_bytes_total: counter(...DEVICE),
  cotenant_device_pcie_transmit_bytes_total: counter(...DEVICE),
  cotenant_device_nvlink_receive_bytes_total: counter(...DEVICE),
  cotenant_device_nvlink_transmit_bytes_total: counter(...DEVICE),
  cotenant_device_graphics_active_ratio: gauge(...DEVICE),
  cotenant_device_sm_active_ratio: gauge(...DEVICE),
  cotenant_device_sm_occupancy_ratio: gauge(...DEVICE),
  cotenant_device_tensor_active_ratio: gauge(...DEVICE),
  cotenant_device_dram_active_ratio: gauge(...DEVICE),
  cotenant_device_fp32_active_ratio: gauge(...DEVICE),
  cotenant_device_fence_holds: gauge(...DEVICE, 'fence'),
  cotenant_device_containers: gauge(...DEVICE),
  cotenant_device_processes: gauge(...DEVICE, 'type'),
  cotenant_device_allocation_mode: gauge(...DEVICE, 'mode'),
  cotenant_device_energy_joules_total: counter(...DEVICE),

  cotenant_mig_info: gauge(...DEVICE, 'parent_gpu', 'parent_uuid', 'gpu_instance_id', 'compute_instance_id', 'profile'),

  cotenant_container_info: gauge(...CONTAINER, 'pod_uid', 'container_id', 'runtime', 'fence'),
  cotenant_container_memory_used_bytes: gauge(...CONTAINER),
  cotenant_container_memory_limit_bytes: gauge(...CONTAINER),
  cotenant_container_memory_peak_bytes: gauge(...CONTAINER),
  cotenant_container_memory_ledger_bytes: gauge(...CONTAINER, 'kind'),
  cotenant_container_bypass_memory_bytes: gauge(...CONTAINER),
  cotenant_container_sm_utilization_ratio: gauge(...CONTAINER),
  cotenant_container_sm_limit_ratio: gauge(...CONTAINER, 'enforced'),
  cotenant_container_processes: gauge(...CONTAINER),
  cotenant_container_last_active_timestamp_seconds: gauge(...CONTAINER),
  cotenant_container_over_limit: gauge(...CONTAINER),
  cotenant_container_over_share: gauge(...CONTAINER),
  cotenant_container_compute_policy: gauge(...CONTAINER, 'policy', 'priority'),
  cotenant_container_enforcement: gauge('namespace', 'pod', 'container', 'mode', 'enforcement', 'said_by'),
  cotenant_container_fence: gauge('namespace', 'pod', 'container', 'mode', 'fence'),
  cotenant_container_engine_processes: gauge('namespace', 'pod', 'container', 'mode', 'engine'),
  cotenant_container_engine_refused_processes: gauge('namespace', 'pod', 'container', 'mode'),
  cotenant_container_engine_behind: gauge('namespace', 'pod', 'container', 'mode'),
  cotenant_container_without_gpus: gauge('namespace', 'pod', 'container', 'mode'),
  cotenant_container_observed_processes: gauge('namespace', 'pod', 'container', 'mode', 'observer'),
  cotenant_container_mps_processes: gauge(...CONTAINER, 'judged'),
  cotenant_container_last_kill_timestamp_seconds: gauge(...KILL),
  cotenant_container_sm_guaranteed_ratio: gauge(...CONTAINER),
  cotenant_container_sm_most_ratio: gauge(...CONTAINER),
  cotenant_container_sm_seconds_total: counter(...CONTAINER),
  cotenant_container_sm_charged_seconds_total: counter(...CONTAINER),
  cotenant_container_sm_contended_seconds_total: counter(...CONTAINER),
  cotenant_container_sm_throttled_seconds_total: counter(...CONTAINER),
  cotenant_container_sm_overruns_total: counter(...CONTAINER),
  cotenant_container_compute_page_faults_total: counter(...CONTAINER),
  cotenant_container_memory_busy_seconds_total: counter(...CONTAINER),
  cotenant_container_encoder_seconds_total: counter(...CONTAINER),
  cotenant_container_decoder_seconds_total: counter(...CONTAINER),
  cotenant_container_allocations_denied_total: counter(...CONTAINER),
  cotenant_container_unknown_entry_points_total: counter('namespace', 'pod', 'container', 'mode'),
  cotenant_container_over_limit_seconds_total: counter(...CONTAINER),
  cotenant_container_kills_total: counter(...KILL, 'result'),

  cotenant_foreign_memory_used_bytes: gauge(...FOREIGN),
  cotenant_foreign_sm_seconds_total: counter(...FOREIGN),

  /** On request only. */
  cotenant_process_memory_used_bytes: gauge(...CONTAINER, 'pid', 'process'),
  cotenant_process_sm_utilization_ratio: gauge(...CONTAINER, 'pid', 'process'),

  cotenant_exporter_build_info: gauge('version', 'revision', 'node_version'),
  cotenant_exporter_collector_success: gauge('collector'),
  cotenant_exporter_collector_duration_seconds: gauge('collector'),
  cotenant_exporter_collector_last_success_timestamp_seconds: gauge('collector'),
  cotenant_exporter_nvml_errors_total: counter('call', 'code'),
  cotenant_exporter_attribution_failures_total: counter('reason'),
  cotenant_exporter_utilization_gaps_total: counter(...DEVICE),
  cotenant_exporter_series_dropped_total: counter('family'),
  cotenant_exporter_samplers_abandoned_total: counter(),
  cotenant_volume_publishes_total: counter('result'),
  cotenant_exporter_unknown_devices: gauge(),
  cotenant_exporter_render_duration_seconds: gauge(),
  cotenant_enforcement_decisions_total: counter('decision', 'reason'),
  cotenant_enforcement_refusals_total: counter('reason'),
  cotenant_enforcement_mode: gauge('mode'),
} as const satisfies Record<string, Metric>;

/** A selector of PromQL for one of the metrics; `matchers` are written as they stand between the braces. */
export function select(metric: MetricName, ...matchers: readonly string[]): string {
  return matchers.length === 0 ? metric : `${metric}{${matchers.join(', ')}}`;
}
