// The panels of the board "Node and GPU", from top to bottom: state of the node, its containers, a part for each GPU,
// what waits, errors, hardware, processes.

import * as common from '@grafana/grafana-foundation-sdk/common';
import {
  among,
  answers,
  color,
  GPU_LEGEND,
  GPUS,
  GRANTABLE,
  graph,
  line,
  mapping,
  ORANGE_FROM_ONE,
  ofGpus,
  ofTarget,
  others,
  type Panel,
  property,
  RED_FROM_ONE,
  REST,
  rate,
  row,
  SLOWED,
  slowed,
  slowedByHeat,
  steps,
  table,
  timeline,
  top,
  topOfTwo,
  WHO,
} from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { type Sum, sumBy, usableMemory } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toContainer } from './links.ts';

const OVER_CODE = 1;
const BYPASS_CODE = 2;
const GRANTED = `sum(${ofGpus('cotenant_device_memory_allocated_bytes')})`;
const TOTAL = ofGpus('cotenant_device_memory_total_bytes');
const USABLE_MEMORY = usableMemory(ofGpus);
const USED = ofGpus('cotenant_container_memory_used_bytes');
const LIMIT = `${ofGpus('cotenant_container_memory_limit_bytes')} > 0`;
const ofSm = (metric: MetricName): string =>
  select(metric, 'job=~"$job"', 'instance=~"$instance"', 'gpu=~"$gpu"', 'domain="sm"');
const SM_CLOCK = `max by (instance, gpu) (${ofSm('cotenant_device_clock_hertz')})`;
const ON_GPUS = `and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`;
const increase = (counter: string): string => `increase(${counter}[$__rate_interval])`;
const byContainer = (expr: string): Sum => sumBy(WHO, expr);
/** Of a container; its node and GPU are in the title of the part. */
const SHORT_WHO = '{{pod}} {{container}}';
const inRow = (expr: string, ...more: readonly string[]): string =>
  `max by (${['instance, gpu', WHO, ...more].join(', ')}) (${expr})`;

const NODE = answers(
  {
    title: 'Agent',
    is: 'Whether the agent reads the GPUs. Down: nothing below is current, and no container is stopped. See the board "Cotenant itself" and the alert CotenantExporterDown.',
    expr: `min(${ofTarget('cotenant_up')})`,
    texts: { 0: { text: 'down', color: 'red' }, 1: { text: 'up', color: 'green' } },
  },
  {
    title: 'Enforcement',
    is: 'Enforcement mode of the node: off, report or enforce. Only with enforce are containers over their grants stopped.',
    expr: `max by (enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)`,
    named: '{{enforcement}}',
  },
  {
    title: 'Unhealthy GPUs',
    is: 'GPUs that are lost or need a reset, and are cordoned. Normal: 0. The runbook of CotenantGpuUnhealthy says what to do.',
    expr: `count(${among(GPUS, `${ofGpus('cotenant_device_healthy')} == 0`)}) or vector(0)`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Memory granted',
    is: 'Sum of the grants relative to the memory that can be granted on the chosen GPUs, without those divided by MIG.',
    expr: `${GRANTED} / sum(${among(GRANTABLE, USABLE_MEMORY)})`,
    unit: 'percentunit',
    steps: [
      [null, 'green'],
      [1.001, 'red'],
    ],
  },
  {
    title: 'Memory used',
    is: 'Used memory relative to the memory of the chosen GPUs, without what the driver reserves.',
    expr: `sum(${ofGpus('cotenant_device_memory_used_bytes')}) / sum(${USABLE_MEMORY})`,
    unit: 'percentunit',
    steps: [
      [null, 'green'],
      [0.95, 'orange'],
    ],
  },
  {
    title: 'Compute used',
    is: 'Fraction of the chosen GPUs that kernels of containers used. Low while containers wait: their limits hold them back.',
    expr: `sum(${rate('cotenant_container_sm_seconds_total')}) / count(${among(GPUS, ofGpus('cotenant_device_info'))})`,
    unit: 'percentunit',
  },
  {
    title: 'Over their grant',
    is: 'Containers that use more memory than their grant and the tolerance. Normal: 0. The agent stops them unless the mode says otherwise.',
    expr: `sum(${ofGpus('cotenant_container_memory_over_limit')}) or vector(0)`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Slowed by heat',
    is: 'GPUs whose clocks are lowered by heat or power hardware now. Normal: 0. Look at cooling and power supply.',
    expr: slowedByHeat('job=~"$job"', 'instance=~"$instance"', 'gpu=~"$gpu"'),
    steps: ORANGE_FROM_ONE,
  },
);

/** Legends of four pods and five sums fit. */
const EACH_HEIGHT = 11;

/** One part for each GPU, so that its containers have colors of their own. */
const EACH_GPU: readonly Panel[] = [
  row('Utilization: GPU $gpu', 'gpu'),
  // All memory that the driver reports as used: of containers with and without a grant, and the unattributed rest.
  graph(
    'Memory by container',
    'Memory of the largest containers as the driver reports it, and of all others together, stacked. "no grant": containers without a grant. "unattributed": memory that the driver reports for no container, such as managed memory. Lines: sum of the grants, and memory of the GPU. Normal: below the grants.',
    { span: 9, unit: 'bytes', as: 'stack', links: [toContainer] },
    [top(4, byContainer(USED)), SHORT_WHO],
    [others(4, byContainer(USED)), 'others', REST],
    [`sum(${ofGpus('cotenant_foreign_memory_used_bytes')})`, 'no grant', [color('red')]],
    [
      `sum(${ofGpus('cotenant_device_memory_unattributed_bytes')})`,
      'unattributed',
      [color('dark-yellow'), property('custom.fillOpacity', 60)],
    ],
    [GRANTED, 'granted', line('orange')],
    [`sum(${TOTAL})`, 'GPU', line('red')],
  ).height(EACH_HEIGHT),
  graph(
    'Compute by container',
    'Fraction of the GPU that the kernels of each container used, of those with the most and of all others together, stacked. Line: sum of the compute grants. A container above its grant borrows what others leave, or is not held by the arbiter.',
    { span: 9, unit: 'percentunit', as: 'stack', links: [toContainer] },
    [top(4, byContainer(rate('cotenant_container_sm_seconds_total'))), SHORT_WHO],
    [others(4, byContainer(rate('cotenant_container_sm_seconds_total'))), 'others', REST],
    [`sum(${rate('cotenant_foreign_sm_seconds_total')})`, 'no grant', [color('red')]],
    [`sum(${ofGpus('cotenant_device_sm_allocated_ratio')})`, 'granted', line('orange')],
  ).height(EACH_HEIGHT),
  // One block keeps a GPU busy; the hardware counters, where the GPU has them, say how much of it is active.
  graph(
    'Utilization and activity',
    'Utilization: a kernel ran, however small. The others are hardware counters (Hopper and later, if the agent may read them): SMs with a block, resident warps, tensor cores, memory, FP32. High utilization with low activity: the kernels are too small for the GPU.',
    { span: 6, unit: 'percentunit' },
    [`max(${ofGpus('cotenant_device_utilization_ratio')})`, 'utilization', line('text')],
    [`max(${ofGpus('cotenant_device_memory_busy_ratio')})`, 'memory busy'],
    [`max(${ofGpus('cotenant_device_encoder_utilization_ratio')})`, 'encoder'],
    [`max(${ofGpus('cotenant_device_decoder_utilization_ratio')})`, 'decoder'],
    [`max(${ofGpus('cotenant_device_graphics_active_ratio')})`, 'graphics'],
    [`max(${ofGpus('cotenant_device_sm_active_ratio')})`, 'SM'],
    [`max(${ofGpus('cotenant_device_sm_occupancy_ratio')})`, 'occupancy'],
    [`max(${ofGpus('cotenant_device_tensor_active_ratio')})`, 'tensor'],
    [`max(${ofGpus('cotenant_device_dram_active_ratio')})`, 'DRAM'],
    [`max(${ofGpus('cotenant_device_fp32_active_ratio')})`, 'FP32'],
  )
    .max(1)
    .height(EACH_HEIGHT),
];

const SATURATION: readonly Panel[] = [
  row('Saturation: what waits'),
  graph(
    'Memory relative to limit',
    'Used memory relative to the grant, of the containers closest to it. From 95 % allocations may be denied; above 100 % the agent stops the container.',
    { span: 12, unit: 'percentunit', links: [toContainer] },
    [topOfTwo(6, WHO, (some) => `max by (${WHO}) (${some(USED)} / (${LIMIT}))`), SHORT_WHO],
  )
    .thresholds(steps([null, 'green'], [CONFIGURATION.nearLimit.ratio, 'orange'], [1, 'red']))
    .thresholdsStyle(new common.GraphThresholdsStyleConfigBuilder().mode(common.GraphThresholdsStyleMode.Dashed)),
  graph(
    'Waiting for a GPU',
    'Time per second that launches of each container waited, summed over its threads, of those that waited the most. Normal: below 0.5 s. Compare with "Compute by container" to see which neighbor has the GPU.',
    { span: 12, unit: 's', links: [toContainer] },
    [top(6, byContainer(rate('cotenant_container_sm_throttled_seconds_total'))), SHORT_WHO],
  ),
];

const ERRORS: readonly Panel[] = [
  row('Errors: what is wrong'),
  // Beside a timeline, whose names take much of its width.
  timeline(
    'Throttle reasons',
    'Reasons that kept the clocks below their maximum, by GPU. Normal: none or power_cap.',
    SLOWED,
    [top(8, slowed(['job=~"$job"', 'instance=~"$instance"', 'gpu=~"$gpu"'])), `${GPU_LEGEND} {{reason}}`],
  ).span(16),
  graph(
    'Memory errors',
    'ECC errors per step, and memory rows remapped or pages retired because of them, summed over the chosen GPUs. Normal: no uncorrected ones. The runbook of CotenantEccUncorrected says what to do.',
    { span: 8, unit: 'short' },
    [`sum by (severity) (${increase(ofGpus('cotenant_device_ecc_errors_total'))})`, 'ECC {{severity}}'],
    [`sum by (cause) (${ofGpus('cotenant_device_remapped_rows')})`, 'rows: {{cause}}'],
    [`sum by (cause) (${ofGpus('cotenant_device_retired_pages')})`, 'pages: {{cause}}'],
  ).decimals(0),
  // Only containers over their limit or with bypass have a row, so the panel is normally empty.
  timeline(
    'Over limit and bypass',
    'When containers exceeded their limit, and when processes without an entry in the usage ledger used GPU memory.',
    { [OVER_CODE]: { text: 'over limit', color: 'red' }, [BYPASS_CODE]: { text: 'bypass', color: 'purple' } },
    [
      top(4, `max by (${WHO}) (${ofGpus('cotenant_container_memory_over_limit')} == 1) * 0 + ${OVER_CODE}`),
      `${SHORT_WHO}: limit`,
    ],
    [
      top(
        4,
        `max by (${WHO}) (${ofGpus('cotenant_container_memory_bypass_bytes')} > ${CONFIGURATION.bypass.bytes}) * 0 + ${BYPASS_CODE}`,
      ),
      `${SHORT_WHO}: bypass`,
    ],
  )
    .span(16)
    .noValue('none'),
  // increase() misses the first event of a counter, so those with an alert are exported with 0 from the start.
  graph(
    'Xids',
    'Xid errors per step, of the codes with the most. Normal: none. The runbook says which of them require a reset of the GPU.',
    { span: 8, unit: 'short', as: 'bars' },
    [
      top(4, `sum by (instance, gpu, xid) (${increase(ofGpus('cotenant_device_xid_errors_total'))}) > 0`),
      `${GPU_LEGEND} Xid {{xid}}`,
    ],
  )
    .decimals(0)
    .noValue('none'),
  // The counter of stops has only the UUID of its GPU.
  graph(
    'Stops and decisions',
    'Stops of containers by reason, action and result, and decisions of the agent on all GPUs of the node. A red line in every panel marks each stop, also the first one of a container, which its counter misses.',
    { span: 24, unit: 'short', as: 'bars' },
    [
      top(5, sumBy('reason, action, result', `${increase(ofTarget('cotenant_container_kills_total'))} ${ON_GPUS}`)),
      '{{reason}}: {{action}}, {{result}}',
    ],
    [
      top(5, sumBy('decision, reason', increase(ofTarget('cotenant_enforcement_decisions_total')))),
      'decision {{decision}}: {{reason}}',
    ],
  ).decimals(0),
];

const HARDWARE: readonly Panel[] = [
  row('Hardware'),
  graph(
    'Power',
    'Power draw of the GPUs with the most, and the largest limit. Normal: at the limit under load.',
    { span: 12, unit: 'watt' },
    [top(6, ofGpus('cotenant_device_power_watts')), GPU_LEGEND],
    [`max(${ofGpus('cotenant_device_power_limit_watts')})`, 'limit', line('red')],
  ),
  graph(
    'Temperature',
    'Temperature of the hottest sensors. Normal: below 85 °C. Above, "Throttle reasons" shows whether the clocks are lowered.',
    { span: 12, unit: 'celsius', as: 'any range' },
    [top(4, ofGpus('cotenant_device_temperature_celsius')), `${GPU_LEGEND} {{sensor}}`],
  ),
  graph(
    'Clocks',
    'SM clocks of the GPUs, the slowest, and the largest maximum. Far below the maximum under load: the GPU is throttled.',
    { span: 12, unit: 'hertz' },
    [`(${SM_CLOCK}) and bottomk(6, min_over_time((${SM_CLOCK})[$__range:$__rate_interval] @ end()))`, GPU_LEGEND],
    [`max(${ofSm('cotenant_device_max_clock_hertz')})`, 'maximum', line('text')],
  ),
  graph(
    'Links',
    'Bytes per second over PCIe and NVLink, summed over the chosen GPUs that count them. PCIe at its maximum: programs wait for copies, not for the GPU.',
    { span: 12, unit: 'Bps' },
    [`sum(${rate('cotenant_device_pcie_receive_bytes_total')})`, 'PCIe received'],
    [`sum(${rate('cotenant_device_pcie_transmit_bytes_total')})`, 'PCIe sent'],
    [`sum(${rate('cotenant_device_nvlink_receive_bytes_total')})`, 'NVLink received'],
    [`sum(${rate('cotenant_device_nvlink_transmit_bytes_total')})`, 'NVLink sent'],
  ),
  graph('Energy', 'Energy per step, of the GPUs that used the most.', { span: 24, unit: 'joule', as: 'bars' }, [
    top(6, increase(ofGpus('cotenant_device_energy_joules_total'))),
    GPU_LEGEND,
  ]),
  instances(),
];

function instances(): Panel {
  // The variable chooses the physical GPU; its instances have indexes of their own.
  const info = select('cotenant_mig_info', 'job=~"$job"', 'instance=~"$instance"', 'parent_gpu=~"$gpu"');
  const by = 'instance, gpu, parent_gpu, profile, gpu_instance_id';
  const ofInstance = (metric: MetricName) =>
    `max by (${by}) (${ofTarget(metric)} * on (job, instance, gpu_uuid) group_left (parent_gpu, profile, gpu_instance_id) ${info})`;
  return table(
    'MIG instances',
    'MIG instances of the chosen GPUs, their memory and containers. Empty without MIG.',
    [
      ['Memory', ofInstance('cotenant_device_memory_total_bytes'), 'bytes'],
      ['Used', ofInstance('cotenant_device_memory_used_bytes'), 'bytes'],
      ['Containers', ofInstance('cotenant_device_containers')],
    ],
    { instance: 'Node', parent_gpu: 'GPU', gpu: 'Index', profile: 'Profile', gpu_instance_id: 'Instance' },
  )
    .noValue('none')
    .height(6);
}

const OWN_LABELS = { instance: 'Node', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod' };

const CONTAINERS: readonly Panel[] = [
  table(
    'Containers',
    'Containers on the chosen GPUs. Isolation: what enforces the memory limit now (driver, interposer, agent, none). Bypass: memory of processes without an entry in the usage ledger. Without a limit the container has the whole GPU.',
    [
      ['Used', inRow(USED)],
      ['Limit', inRow(LIMIT)],
      ['State', inRow(ofGpus('cotenant_container_memory_over_limit'))],
      ['Bypass', inRow(ofGpus('cotenant_container_memory_bypass_bytes'))],
      // Only for its label.
      ['', inRow(ofGpus('cotenant_container_info'), 'fence')],
    ],
    { ...OWN_LABELS, container: 'Container', fence: 'Isolation' },
    toContainer,
  )
    .height(8)
    .unit('bytes')
    // Those over their grants are on the first screen.
    .sortBy(['State', 'Used'].map((name) => new common.TableSortByFieldStateBuilder().displayName(name).desc(true)))
    .overrideByName('Isolation', [property('custom.width', 84)])
    .overrideByName('State', [
      property('unit', 'none'),
      property('mappings', [mapping({ 0: { text: 'within' }, 1: { text: 'over', color: 'red' } })]),
      property('custom.cellOptions', { type: 'color-text' }),
    ]),
];

const PROCESSES: readonly Panel[] = [
  row('Processes'),
  table(
    'Processes',
    'The processes with the most memory on the chosen GPUs. Empty unless the agent exports single processes (processMetrics).',
    [
      ['Used', inRow(ofGpus('cotenant_process_memory_used_bytes'), 'pid', 'process'), 'bytes'],
      ['Compute', inRow(ofGpus('cotenant_process_sm_utilization_ratio'), 'pid', 'process'), 'percentunit'],
    ],
    { ...OWN_LABELS, container: 'Container', pid: 'PID', process: 'Process' },
    toContainer,
  ),
];

export const PANELS: readonly Panel[] = [
  ...NODE,
  ...CONTAINERS,
  ...EACH_GPU,
  ...SATURATION,
  ...ERRORS,
  ...HARDWARE,
  ...PROCESSES,
];
