// The panels of the board "Node and GPU", from top to bottom: node, memory, compute, hardware, containers, stops.

import * as common from '@grafana/grafana-foundation-sdk/common';
import {
  among,
  color,
  GPU_LEGEND,
  GRANTABLE,
  graph,
  line,
  mapping,
  ofGpus,
  ofTarget,
  type Panel,
  property,
  rate,
  stat,
  steps,
  table,
  timeline,
  WHO,
  WHO_LEGEND,
} from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { type MetricName, select } from './lib/metrics.ts';

const OVER_CODE = 1;
const BYPASS_CODE = 2;
const GRANTED = `sum(${ofGpus('cotenant_device_memory_allocated_bytes')})`;
const TOTAL = ofGpus('cotenant_device_memory_total_bytes');
const USABLE_MEMORY = `(${TOTAL} - ${ofGpus('cotenant_device_memory_reserved_bytes')} or ${TOTAL})`;
const USED = ofGpus('cotenant_container_memory_used_bytes');
const LIMIT = `${ofGpus('cotenant_container_memory_limit_bytes')} > 0`;
const ON_GPUS = `and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`;
const increase = (counter: string): string => `increase(${counter}[$__rate_interval])`;
const byContainer = (expr: string): string => `sum by (${WHO}) (${expr})`;
const inRow = (expr: string, ...more: readonly string[]): string =>
  `max by (${['instance, gpu', WHO, ...more].join(', ')}) (${expr})`;

const NODE: readonly Panel[] = [
  stat(
    'Agent',
    'Whether the agent reads the GPUs. If it is down, nothing below is current, and no container is stopped.',
    8,
    `min(${ofTarget('cotenant_up')})`,
    'agent',
  ).mappings([mapping({ 0: { text: 'down', color: 'red' }, 1: { text: 'up', color: 'green' } })]),
  stat(
    'Enforcement',
    'Enforcement mode of the node: off, report or enforce.',
    8,
    `max by (enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)`,
    '{{enforcement}}',
  ).textMode(common.BigValueTextMode.Name),
  stat(
    'Memory granted',
    'Sum of the grants relative to the memory that can be granted on the chosen GPUs, without those divided by MIG.',
    8,
    `${GRANTED} / sum(${among(GRANTABLE, USABLE_MEMORY)})`,
    'granted',
  ).unit('percentunit'),
];

const USE: readonly Panel[] = [
  // All memory that the driver reports as used: of containers with and without a grant, and the unattributed rest.
  graph(
    'Memory by container',
    'Memory of each container as the driver reports it, stacked. "foreign" has no grant. "unattributed" is memory that the driver reports for no container, such as managed memory. Lines: sum of the grants, and memory of the GPUs.',
    { span: 24, unit: 'bytes', as: 'stack' },
    [byContainer(USED), WHO_LEGEND],
    [byContainer(ofGpus('cotenant_foreign_memory_used_bytes')), `foreign: ${WHO_LEGEND}`],
    [
      `sum(${ofGpus('cotenant_device_memory_unattributed_bytes')})`,
      'unattributed',
      [color('dark-yellow'), property('custom.fillOpacity', 60)],
    ],
    [GRANTED, 'granted', line('orange')],
    [`sum(${TOTAL})`, 'GPUs', line('red')],
  ),
  graph(
    'Memory relative to limit',
    'Used memory relative to the grant, by container and GPU.',
    { span: 24, unit: 'percentunit' },
    [`max by (${WHO}, instance, gpu) (${USED} / (${LIMIT}))`, `${WHO_LEGEND} GPU {{gpu}}`],
  )
    .thresholds(steps([null, 'green'], [CONFIGURATION.nearLimit.ratio, 'orange'], [1, 'red']))
    .thresholdsStyle(new common.GraphThresholdsStyleConfigBuilder().mode(common.GraphThresholdsStyleMode.LineAndArea)),
  graph(
    'Compute by container',
    'Fraction of one GPU that the kernels of each container used, stacked. Line: sum of the compute grants. The label "enforced" of cotenant_container_sm_limit_ratio says whether the arbiter enforces them.',
    { span: 12, unit: 'percentunit', as: 'stack' },
    [byContainer(rate('cotenant_container_sm_seconds_total')), WHO_LEGEND],
    [byContainer(rate('cotenant_foreign_sm_seconds_total')), `foreign: ${WHO_LEGEND}`],
    [`sum(${ofGpus('cotenant_device_sm_allocated_ratio')})`, 'granted', line('orange')],
  ),
  graph(
    'GPU utilization',
    'Fraction of time in which kernels, memory, encoder or decoder were active. It does not say how much of the GPU was used.',
    { span: 12, unit: 'percentunit' },
    [ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} kernels`],
    [ofGpus('cotenant_device_memory_busy_ratio'), `${GPU_LEGEND} memory`],
    [ofGpus('cotenant_device_encoder_utilization_ratio'), `${GPU_LEGEND} encoder`],
    [ofGpus('cotenant_device_decoder_utilization_ratio'), `${GPU_LEGEND} decoder`],
  ).max(1),
  // One block keeps a GPU busy; the hardware counters, where the GPU has them, say how much of it is active.
  graph(
    'GPU utilization and SM activity',
    'Utilization: a kernel ran. The others are hardware counters (GPM; Hopper and later, and if the agent may read them): SMs with a block, resident warps, tensor cores, memory, FP32. High utilization with low activity: the kernels are too small for the GPU.',
    { span: 24, unit: 'percentunit' },
    [ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} utilization`, line('text')],
    [ofGpus('cotenant_device_graphics_active_ratio'), `${GPU_LEGEND} graphics active`],
    [ofGpus('cotenant_device_sm_active_ratio'), `${GPU_LEGEND} SM active`],
    [ofGpus('cotenant_device_sm_occupancy_ratio'), `${GPU_LEGEND} SM occupancy`],
    [ofGpus('cotenant_device_tensor_active_ratio'), `${GPU_LEGEND} tensor cores`],
    [ofGpus('cotenant_device_dram_active_ratio'), `${GPU_LEGEND} memory`],
    [ofGpus('cotenant_device_fp32_active_ratio'), `${GPU_LEGEND} FP32`],
  ).max(1),
];

const HARDWARE: readonly Panel[] = [
  graph(
    'Power',
    'Power draw of each GPU, and its limit.',
    { span: 8, unit: 'watt' },
    [ofGpus('cotenant_device_power_watts'), GPU_LEGEND],
    [ofGpus('cotenant_device_power_limit_watts'), `${GPU_LEGEND} limit`, line('red')],
  ),
  graph('Temperature', 'Temperature of each GPU, by sensor.', { span: 8, unit: 'celsius', as: 'any range' }, [
    ofGpus('cotenant_device_temperature_celsius'),
    `${GPU_LEGEND} {{sensor}}`,
  ]),
  graph(
    'Clocks',
    'Clocks of each GPU by domain. If they are far below the maximum under load, the GPU is throttled.',
    { span: 8, unit: 'hertz' },
    [ofGpus('cotenant_device_clock_hertz'), `${GPU_LEGEND} {{domain}}`],
    [ofGpus('cotenant_device_max_clock_hertz'), `${GPU_LEGEND} {{domain}} maximum`, line('text')],
  ),
  // increase() misses the first event of a counter, so those with an alert are exported with 0 from the start.
  graph(
    'Xids',
    'Xid errors by code. The runbook says which of them require a reset of the GPU.',
    { span: 12, unit: 'short', as: 'bars' },
    [increase(ofGpus('cotenant_device_xid_errors_total')), `${GPU_LEGEND} Xid {{xid}}`],
  ).decimals(0),
  graph(
    'Memory errors',
    'ECC errors, and memory rows remapped or pages retired because of them.',
    { span: 12, unit: 'short' },
    [
      `max by (instance, gpu, severity) (${increase(ofGpus('cotenant_device_ecc_errors_total'))})`,
      `${GPU_LEGEND} {{severity}}`,
    ],
    [ofGpus('cotenant_device_remapped_rows'), `${GPU_LEGEND} rows: {{cause}}`],
    [ofGpus('cotenant_device_retired_pages'), `${GPU_LEGEND} pages: {{cause}}`],
  ).decimals(0),
  timeline(
    'Throttle reasons',
    'Reasons that keep the clocks below their maximum, while they apply.',
    { 0: { text: 'no', color: 'transparent' }, 1: { text: 'throttled', color: 'orange' } },
    [ofGpus('cotenant_device_throttle_reason'), `${GPU_LEGEND} {{reason}}`],
  ),
  graph(
    'Links',
    'Bytes per second over PCIe and NVLink, if the GPU counts them.',
    { span: 12, unit: 'Bps' },
    [rate('cotenant_device_pcie_receive_bytes_total'), `${GPU_LEGEND} PCIe received`],
    [rate('cotenant_device_pcie_transmit_bytes_total'), `${GPU_LEGEND} PCIe sent`],
    [rate('cotenant_device_nvlink_receive_bytes_total'), `${GPU_LEGEND} NVLink received`],
    [rate('cotenant_device_nvlink_transmit_bytes_total'), `${GPU_LEGEND} NVLink sent`],
  ),
  graph('Energy', 'Energy that each GPU used per step.', { span: 12, unit: 'joule', as: 'bars' }, [
    increase(ofGpus('cotenant_device_energy_joules_total')),
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
    { instance: 'Node', parent_gpu: 'GPU', gpu: 'GPU', profile: 'Profile', gpu_instance_id: 'Instance' },
  )
    .span(12)
    .height(8);
}

const OWN_LABELS = { instance: 'Node', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod' };

const CONTAINERS: readonly Panel[] = [
  table(
    'Containers',
    'Containers on the chosen GPUs. Isolation: what enforces the memory limit now (driver, interposer, agent, none). Bypass: memory of processes without an entry in the usage ledger. Without a limit the container has the whole GPU.',
    [
      ['Used', inRow(USED)],
      ['Limit', inRow(LIMIT)],
      ['Peak', inRow(ofGpus('cotenant_container_memory_peak_bytes'))],
      ['Over limit', inRow(ofGpus('cotenant_container_memory_over_limit'))],
      ['Bypass', inRow(ofGpus('cotenant_container_memory_bypass_bytes'))],
      // Only for its label.
      ['', inRow(ofGpus('cotenant_container_info'), 'fence')],
    ],
    { ...OWN_LABELS, container: 'Container', fence: 'Isolation' },
  )
    .height(8)
    .unit('bytes')
    .sortBy([new common.TableSortByFieldStateBuilder().displayName('Used').desc(true)])
    .overrideByName('Over limit', [
      property('unit', 'none'),
      property('mappings', [mapping({ 0: { text: 'no' }, 1: { text: 'over', color: 'red' } })]),
      property('custom.cellOptions', { type: 'color-text' }),
    ]),
  table(
    'Processes',
    'The processes with the most memory on the chosen GPUs. Empty unless the agent exports single processes (processMetrics).',
    [
      ['Used', inRow(ofGpus('cotenant_process_memory_used_bytes'), 'pid', 'process'), 'bytes'],
      ['Compute', inRow(ofGpus('cotenant_process_sm_utilization_ratio'), 'pid', 'process'), 'percentunit'],
    ],
    { ...OWN_LABELS, pid: 'PID', process: 'Process' },
  ),
  // Only containers over their limit or with bypass have a row, so the panel is normally empty.
  timeline(
    'Over limit and bypass',
    'When containers exceeded their limit, and when processes without an entry in the usage ledger used GPU memory.',
    { [OVER_CODE]: { text: 'over limit', color: 'red' }, [BYPASS_CODE]: { text: 'bypass', color: 'purple' } },
    [
      `max by (${WHO}) (${ofGpus('cotenant_container_memory_over_limit')} == 1) * 0 + ${OVER_CODE}`,
      `${WHO_LEGEND}: limit`,
    ],
    [
      `max by (${WHO}) (${ofGpus('cotenant_container_memory_bypass_bytes')} > ${CONFIGURATION.bypass.bytes}) * 0 + ${BYPASS_CODE}`,
      `${WHO_LEGEND}: bypass`,
    ],
  ).noValue('none'),
  // The counter of stops has only the UUID of its GPU.
  graph(
    'Stops and decisions',
    'Stops of containers by reason, action and result, and decisions of the agent on all GPUs of the node. A red line in every panel marks each stop, also the first one of a container, which its counter misses.',
    { span: 12, unit: 'short', as: 'bars' },
    [
      `sum by (reason, action, result) (${increase(ofTarget('cotenant_container_kills_total'))} ${ON_GPUS})`,
      '{{reason}}: {{action}}, {{result}}',
    ],
    [
      `sum by (decision, reason) (${increase(ofTarget('cotenant_enforcement_decisions_total'))})`,
      'decision {{decision}}: {{reason}}',
    ],
  ).decimals(0),
];

export const PANELS: readonly Panel[] = [...NODE, ...USE, ...HARDWARE, ...CONTAINERS];
