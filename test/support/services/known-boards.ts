// Queries of public dashboards for other exporters: only the expressions, and where each set is from. Variables are
// left as they are in the dashboard. A query that cannot have a result here says why.

export type KnownBoard = {
  /** The value of `compatibilityMetrics` that the query needs. */
  readonly set: 'dcgm' | 'hami' | 'hami-legacy' | 'metagpu' | 'ack';
  readonly from: string;
  readonly queries: readonly string[];
  /** Source of its variables: a selector, and the label whose values are offered. */
  readonly variables: readonly (readonly [selector: string, label: string])[];
};

/** Labels that no exporter sets and only the author's scrape configuration adds. */
export const LABELS_OF_THE_SCRAPE: readonly string[] = ['node_name'];

export const KNOWN_BOARDS: readonly KnownBoard[] = [
  {
    set: 'dcgm',
    from: 'NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json at 068798b (Grafana 12239, schema 37)',
    queries: [
      'max(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, uuid)',
      'avg(DCGM_FI_DEV_GPU_TEMP{Hostname=~"$Hostname", gpu=~"$gpu"})',
      'max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, uuid)',
      'sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (gpu))',
      'max(DCGM_FI_DEV_SM_CLOCK{Hostname=~"$Hostname", gpu=~"$gpu"} * 1000000) by (Hostname, UUID, gpu)',
      'max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
      'max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
      'max(DCGM_FI_DEV_FB_USED{Hostname=~"$Hostname", gpu=~"$gpu"}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)',
    ],
    variables: [
      ['DCGM_FI_DEV_FB_FREE', 'Hostname'],
      ['DCGM_FI_DEV_FB_FREE{Hostname=~"$Hostname"}', 'gpu'],
    ],
  },
  {
    set: 'dcgm',
    from: 'NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json at 1f7abdb (Grafana 12239, schema 22)',
    queries: [
      'DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"}',
      'avg(DCGM_FI_DEV_GPU_TEMP{instance=~"$instance", gpu=~"$gpu"})',
      'DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"}',
      'sum(DCGM_FI_DEV_POWER_USAGE{instance=~"$instance", gpu=~"$gpu"})',
      'DCGM_FI_DEV_SM_CLOCK{instance=~"$instance", gpu=~"$gpu"} * 1000000',
      'DCGM_FI_DEV_GPU_UTIL{instance=~"$instance", gpu=~"$gpu"}',
      'DCGM_FI_DEV_FB_USED{instance=~"$instance", gpu=~"$gpu"}',
      'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$instance", gpu=~"$gpu"}',
    ],
    variables: [['DCGM_FI_DEV_GPU_TEMP', 'instance']],
  },
  {
    set: 'hami',
    from: 'Project-HAMi/HAMi, dashboards/hami-vgpu-dashboard.json at 173bddd',
    queries: [
      'count(hami_gpu_memory_limit_bytes{node=~"$node"})',
      'sum(hami_gpu_memory_limit_bytes{node=~"$node"})',
      'sum(hami_gpu_memory_allocated_bytes{node=~"$node"})',
      '100 * sum(hami_gpu_memory_allocated_bytes{node=~"$node"}) / sum(hami_gpu_memory_limit_bytes{node=~"$node"})',
      'sum(hami_gpu_shared_count{node=~"$node"})',
      'hami_host_gpu_memory_used_bytes and on (device_uuid) hami_gpu_memory_limit_bytes{node=~"$node"}',
      'hami_host_gpu_utilization_ratio and on (device_uuid) hami_gpu_memory_limit_bytes{node=~"$node"}',
      'sum by (node) (hami_gpu_memory_allocated_bytes{node=~"$node"})',
      'sum by (node) (hami_gpu_memory_limit_bytes{node=~"$node"})',
      'hami_node_gpu_memory_allocated_ratio{node=~"$node"}',
      'hami_gpu_core_allocated_ratio{node=~"$node"}',
      'hami_gpu_shared_count{node=~"$node"}',
      'hami_vgpu_memory_used_bytes{namespace=~"$namespace"}',
      'hami_vgpu_memory_limit_bytes{namespace=~"$namespace"}',
      'hami_container_device_utilization_ratio{namespace=~"$namespace"}',
      '100 * hami_vgpu_memory_used_bytes{namespace=~"$namespace"} / hami_vgpu_memory_limit_bytes{namespace=~"$namespace"}',
      'topk(10, hami_vgpu_memory_used_bytes{namespace=~"$namespace"})',
    ],
    variables: [
      ['hami_gpu_memory_limit_bytes', 'node'],
      ['hami_vgpu_memory_used_bytes', 'namespace'],
    ],
  },
  {
    // It also has the queries of Grafana 12239 with node_name in place of instance.
    set: 'hami-legacy',
    from: 'Project-HAMi/HAMi, docs/gpu-dashboard.json at 19c74bc',
    queries: [
      'Device_memory_desc_of_container{node_name=~"$node_name"}',
      'HostGPUMemoryUsage{node_name=~"$node_name"}',
      'HostCoreUtilization{node_name=~"$node_name"}',
    ],
    variables: [['{__name__=~"DCGM_FI_DEV_FB_FREE|vGPU_device_memory_limit_in_bytes"}', 'node_name']],
  },
  {
    // It has no dashboard: names and labels are from its documentation.
    set: 'metagpu',
    from: 'cnvrg/metagpu: no board; names and labels of its exporter',
    queries: [
      'metagpu_device_memory_used{device_uuid=~".+", resource_name="cnvrg.io/metagpu"} / metagpu_device_memory_total',
      'metagpu_device_memory_free{node_name=~".+"}',
      'metagpu_device_shares{device_index=~".+"}',
      'metagpu_device_memory_share_size',
      'sum(metagpu_process_metagpu_requests) by (pod_namespace, pod_name)',
      'metagpu_process_memory_usage{pid!="-"} / metagpu_process_max_allowed_metagpu_memory',
      'metagpu_process_absolute_gpu_utilization{uuid=~".+", pod_namespace=~".+"}',
      'metagpu_process_metagpu_relative_gpu_utilization',
      'metagpu_process_metagpu_relative_memory_utilization',
      'metagpu_process_max_allowed_metagpu_gpu_utilization',
    ],
    variables: [['metagpu_device_shares', 'node_name']],
  },
  {
    // Its dashboards are in the provider's console: names and labels are from its documentation on metrics.
    set: 'ack',
    from: 'Alibaba Cloud, ACK, "Introduction to metrics" of GPU monitoring 2.0: no public board; names and labels',
    queries: [
      'DCGM_CUSTOM_ALLOCATE_MODE{NodeName=~".+"}',
      'sum by (NodeName) (DCGM_CUSTOM_DEV_FB_TOTAL)',
      'DCGM_CUSTOM_DEV_FB_ALLOCATED{UUID=~".+", device=~"nvidia.+", gpu=~".+", modelName=~".+", DriverVersion=~".+"}',
      'DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED{NamespaceName=~".+", PodName=~".+", ContainerName=~".+"}',
      'DCGM_CUSTOM_CONTAINER_CP_ALLOCATED{AllocateMode="shared"}',
      'sum by (NamespaceName, PodName) (DCGM_CUSTOM_PROCESS_MEM_USED{ProcessType=~"C.*"})',
      'sum by (NamespaceName, PodName) (DCGM_CUSTOM_PROCESS_SM_UTIL{ProcessId=~".+", ProcessName=~".+"})',
      'DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL',
      'DCGM_CUSTOM_PROCESS_ENCODE_UTIL',
      'DCGM_CUSTOM_PROCESS_DECODE_UTIL',
      'DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_USED > 0',
      'DCGM_CUSTOM_ILLEGAL_PROCESS_SM_UTIL',
      'DCGM_CUSTOM_ILLEGAL_PROCESS_MEM_COPY_UTIL',
      'DCGM_CUSTOM_ILLEGAL_PROCESS_ENCODE_UTIL',
      'DCGM_CUSTOM_ILLEGAL_PROCESS_DECODE_UTIL',
    ],
    variables: [['DCGM_CUSTOM_DEV_FB_TOTAL', 'NodeName']],
  },
];
