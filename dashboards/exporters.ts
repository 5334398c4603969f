// The board "GPUs, as other exporters show them": one page for people who know the boards of dcgm-exporter and HAMi. It
// has their panels, under their titles, from the metrics of Cotenant; each description names the metric there.
import { boardOf, stopMarks, variable } from './board.ts';
import {
  among,
  answers,
  GPU_LEGEND,
  GRANTABLE,
  graph,
  ofGpus,
  ofTarget,
  type Panel,
  rate,
  row,
  table,
  top,
  WHO,
  WHO_LEGEND,
} from './builders.ts';
import { maxBy, sumBy } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toContainer, toNamespace, toNode } from './links.ts';

const ofSensor = (metric: MetricName, matcher: string): string =>
  select(metric, 'job=~"$job"', 'instance=~"$instance"', 'gpu=~"$gpu"', matcher);
const TEMPERATURE = ofSensor('cotenant_device_temperature_celsius', 'sensor="gpu"');
const perGpu = (expr: string): string => top(8, maxBy('instance, gpu', expr));
const USED = ofGpus('cotenant_container_memory_used_bytes');
const LIMIT = ofGpus('cotenant_container_memory_limit_bytes');
const GRANTED = ofGpus('cotenant_device_memory_allocated_bytes');
const line = (title: string, unit: string, expr: string, is: string): Panel =>
  graph(title, is, { span: 24, unit, links: [toNode] }, [perGpu(expr), GPU_LEGEND]).height(7);

const STATE = answers(
  {
    title: 'GPU avg. temp',
    is: 'Mean temperature (avg of DCGM_FI_DEV_GPU_TEMP there). Normal: below 85 °C.',
    expr: `avg(${TEMPERATURE})`,
    unit: 'celsius',
    steps: [
      [null, 'green'],
      [83, 'orange'],
      [87, 'red'],
    ],
  },
  {
    title: 'GPU power total',
    is: 'Power of all chosen GPUs (sum of DCGM_FI_DEV_POWER_USAGE there).',
    expr: `sum(${ofGpus('cotenant_device_power_watts')})`,
    unit: 'watt',
  },
  {
    title: 'vGPUs',
    is: 'Containers with a grant, once for each GPU (sum of hami_gpu_shared_count there).',
    expr: `count(${LIMIT})`,
  },
  {
    title: 'Memory allocated',
    is: 'Sum of the grants relative to the memory of the GPUs (hami_node_gpu_memory_allocated_ratio there). Near 100 % new pods wait.',
    expr: `sum(${GRANTED}) / sum(${among(GRANTABLE, ofGpus('cotenant_device_memory_total_bytes'))})`,
    unit: 'percentunit',
  },
  {
    title: 'Cores allocated',
    is: 'Sum of the compute grants, in GPUs (hami_gpu_core_allocated_ratio there, in percent). Above the number of GPUs: overcommitted.',
    expr: `sum(${ofGpus('cotenant_device_sm_allocated_ratio')})`,
    unit: 'short',
  },
  {
    title: 'XID errors',
    is: 'Xids in the last interval (DCGM_FI_DEV_XID_ERRORS is the last code there, here it is a counter). Normal: 0.',
    expr: `sum(increase(${ofGpus('cotenant_device_xid_errors_total')}[$__rate_interval]))`,
    steps: [
      [null, 'green'],
      [1, 'red'],
    ],
  },
);

const GPU: readonly Panel[] = [
  row('GPUs'),
  line('GPU temperature', 'celsius', TEMPERATURE, 'DCGM_FI_DEV_GPU_TEMP there. Normal: below 85 °C.'),
  line(
    'GPU power usage',
    'watt',
    ofGpus('cotenant_device_power_watts'),
    'DCGM_FI_DEV_POWER_USAGE there. Normal: up to the power limit.',
  ),
  line(
    'GPU SM clocks',
    'hertz',
    ofSensor('cotenant_device_clock_hertz', 'domain="sm"'),
    'DCGM_FI_DEV_SM_CLOCK there. Low under load: the GPU is throttled, see the board of the node.',
  ),
  line(
    'GPU utilization',
    'percentunit',
    ofGpus('cotenant_device_utilization_ratio'),
    'DCGM_FI_DEV_GPU_UTIL there: a kernel ran, however small. For how much of the GPU it used see "SM activity".',
  ),
  line(
    'SM activity',
    'percentunit',
    ofGpus('cotenant_device_sm_active_ratio'),
    'DCGM_FI_PROF_SM_ACTIVE there. From Hopper on, and if the agent may read hardware counters.',
  ),
  line(
    'Tensor core utilization',
    'percentunit',
    ofGpus('cotenant_device_tensor_active_ratio'),
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE there. From Hopper on, and if the agent may read hardware counters.',
  ),
  line(
    'GPU framebuffer memory used',
    'bytes',
    ofGpus('cotenant_device_memory_used_bytes'),
    'DCGM_FI_DEV_FB_USED there, in MiB.',
  ),
  line(
    'GPU memory allocated',
    'bytes',
    GRANTED,
    'hami_gpu_memory_allocated_bytes there: the sum of the grants of each GPU.',
  ),
  graph(
    'vGPUs per GPU',
    'hami_gpu_shared_count there: containers on each GPU. Containers without a grant are included.',
    { span: 24, unit: 'none', links: [toNode] },
    [perGpu(ofGpus('cotenant_device_containers')), GPU_LEGEND],
  ),
];

const CONTAINERS: readonly Panel[] = [
  row('Containers (vGPUs)'),
  graph(
    'vGPU memory used',
    'hami_vgpu_memory_used_bytes there; here it is what the driver reports, not the ledger of the library.',
    { span: 12, unit: 'bytes', links: [toContainer] },
    [top(4, sumBy(WHO, USED)), WHO_LEGEND],
  ),
  graph(
    'vGPU utilization',
    'hami_container_device_utilization_ratio there, in percent; here the fraction of a GPU over the rate interval.',
    { span: 12, unit: 'percentunit', links: [toContainer] },
    [top(4, sumBy(WHO, rate('cotenant_container_sm_seconds_total'))), WHO_LEGEND],
  ),
  table(
    'vGPUs',
    'Memory used and granted of each container and GPU (hami_vgpu_memory_used_bytes and hami_vgpu_memory_limit_bytes there).',
    [
      ['Used', `max by (instance, gpu, ${WHO}) (${USED})`, 'bytes'],
      ['Granted', `max by (instance, gpu, ${WHO}) (${LIMIT})`, 'bytes'],
    ],
    { instance: 'Node', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod', container: 'Container' },
    toNode,
    toNamespace,
    toContainer,
  ),
];

export const exporters = boardOf({
  board: 'exporters',
  description:
    'One page for people who know the boards of dcgm-exporter and HAMi: their panels under their titles, with the metrics of Cotenant. Lines and rows lead to the other boards.',
  variables: [variable('gpu', ofTarget('cotenant_device_info')).label('GPU')],
  annotations: [stopMarks(`${ofTarget('cotenant_container_last_kill_timestamp_seconds')} * 1000`)],
  panels: [...STATE, ...GPU, ...CONTAINERS],
});
