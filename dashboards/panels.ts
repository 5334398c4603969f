// The panels of the board "Node and GPU", from top to bottom: node, memory, compute, hardware, containers, stops.

import * as common from '@grafana/grafana-foundation-sdk/common';
import { BigValueTextMode, GraphDrawStyle } from '@grafana/grafana-foundation-sdk/common';
import { PromQueryFormat } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as TableBuilder } from '@grafana/grafana-foundation-sdk/table';
import {
  among,
  color,
  DATASOURCE,
  GPU_LEGEND,
  GRANTABLE,
  line,
  mapping,
  ofGpus,
  ofTarget,
  type Panel,
  property,
  rate,
  series,
  stacked,
  stat,
  steps,
  table,
  target,
  timeline,
  WHO,
  WHO_LEGEND,
} from './builders.ts';
import type { Configuration } from './lib/configuration.ts';
import { type MetricName, select } from './lib/metrics.ts';

const OVER_CODE = 1;
const BYPASS_CODE = 2;

export function panels(configuration: Configuration): readonly Panel[] {
  return [
    exporter(),
    enforcement(),
    granted(),
    memory(),
    ratioOfLimit(configuration),
    compute(),
    utilization(),
    activity(),
    power(),
    temperature(),
    clocks(),
    xids(),
    memoryErrors(),
    throttleReasons(),
    links(),
    energy(),
    instances(),
    containers(),
    processes(),
    overLimit(configuration),
    stops(),
  ];
}

function exporter(): Panel {
  const states = [mapping({ 0: { text: 'down', color: 'red' }, 1: { text: 'up', color: 'green' } })];
  return stat(
    'Agent',
    'Whether the agent reads the GPUs. If it is down, nothing below is current, and no container is stopped.',
  )
    .mappings(states)
    .withTarget(target('A', `min(${ofTarget('cotenant_up')})`, 'agent').instant());
}

function enforcement(): Panel {
  return stat('Enforcement', 'Enforcement mode of the node: off, report or enforce.')
    .textMode(BigValueTextMode.Name)
    .withTarget(
      target('A', `max by (enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)`, '{{enforcement}}').instant(),
    );
}

function granted(): Panel {
  const allocated = ofGpus('cotenant_device_memory_allocated_bytes');
  const total = ofGpus('cotenant_device_memory_total_bytes');
  const usable = `(${total} - ${ofGpus('cotenant_device_memory_reserved_bytes')} or ${total})`;
  return stat(
    'Memory granted',
    'Sum of the grants relative to the memory that can be granted on the chosen GPUs, without those divided by MIG.',
  )
    .unit('percentunit')
    .withTarget(target('A', `sum(${allocated}) / sum(${among(GRANTABLE, usable)})`, 'granted').instant());
}

/** All memory that the driver reports as used: of containers with and without a grant, and the unattributed rest. */
function memory(): Panel {
  const own = `sum by (${WHO}) (${ofGpus('cotenant_container_memory_used_bytes')})`;
  const foreign = `sum by (${WHO}) (${ofGpus('cotenant_foreign_memory_used_bytes')})`;
  const panel = series(
    'Memory by container',
    'Memory of each container as the driver reports it, stacked. "foreign" has no grant. "unattributed" is memory that the driver reports for no container, such as managed memory. Lines: sum of the grants, and memory of the GPUs.',
    24,
  );
  return stacked(panel.unit('bytes'))
    .withTarget(target('A', own, WHO_LEGEND))
    .withTarget(target('B', foreign, `foreign: ${WHO_LEGEND}`))
    .withTarget(target('C', `sum(${ofGpus('cotenant_device_memory_unattributed_bytes')})`, 'unattributed'))
    .withTarget(target('D', `sum(${ofGpus('cotenant_device_memory_allocated_bytes')})`, 'granted'))
    .withTarget(target('E', `sum(${ofGpus('cotenant_device_memory_total_bytes')})`, 'GPUs'))
    .overrideByQuery('C', [color('dark-yellow'), property('custom.fillOpacity', 60)])
    .overrideByQuery('D', line('orange'))
    .overrideByQuery('E', line('red'));
}

function ratioOfLimit({ nearLimit }: Configuration): Panel {
  const used = ofGpus('cotenant_container_memory_used_bytes');
  const limit = `(${ofGpus('cotenant_container_memory_limit_bytes')} > 0)`;
  return series('Memory relative to limit', 'Used memory relative to the grant, by container and GPU.', 24)
    .unit('percentunit')
    .min(0)
    .thresholds(steps([null, 'green'], [nearLimit.ratio, 'orange'], [1, 'red']))
    .thresholdsStyle(new common.GraphThresholdsStyleConfigBuilder().mode(common.GraphThresholdsStyleMode.LineAndArea))
    .withTarget(target('A', `max by (${WHO}, instance, gpu) (${used} / ${limit})`, `${WHO_LEGEND} GPU {{gpu}}`));
}

function compute(): Panel {
  const panel = series(
    'Compute by container',
    'Fraction of one GPU that the kernels of each container used, stacked. Line: sum of the compute grants. The label "enforced" of cotenant_container_sm_limit_ratio says whether the arbiter enforces them.',
    12,
  );
  return stacked(panel.unit('percentunit'))
    .withTarget(target('A', `sum by (${WHO}) (${rate('cotenant_container_sm_seconds_total')})`, WHO_LEGEND))
    .withTarget(target('B', `sum by (${WHO}) (${rate('cotenant_foreign_sm_seconds_total')})`, `foreign: ${WHO_LEGEND}`))
    .withTarget(target('C', `sum(${ofGpus('cotenant_device_sm_allocated_ratio')})`, 'granted'))
    .overrideByQuery('C', line('orange'));
}

function utilization(): Panel {
  const description =
    'Fraction of time in which kernels, memory, encoder or decoder were active. It does not say how much of the GPU was used.';
  return series('GPU utilization', description, 12)
    .unit('percentunit')
    .min(0)
    .max(1)
    .withTarget(target('A', ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} kernels`))
    .withTarget(target('B', ofGpus('cotenant_device_memory_busy_ratio'), `${GPU_LEGEND} memory`))
    .withTarget(target('C', ofGpus('cotenant_device_encoder_utilization_ratio'), `${GPU_LEGEND} encoder`))
    .withTarget(target('D', ofGpus('cotenant_device_decoder_utilization_ratio'), `${GPU_LEGEND} decoder`));
}

/** One block keeps a GPU busy; the hardware counters, where the GPU has them, say how much of it is active. */
function activity(): Panel {
  const description =
    'Utilization: a kernel ran. The others are hardware counters (GPM; Hopper and later, and if the agent may read them): SMs with a block, resident warps, tensor cores, memory, FP32. High utilization with low activity: the kernels are too small for the GPU.';
  return series('GPU utilization and SM activity', description, 24)
    .unit('percentunit')
    .min(0)
    .max(1)
    .withTarget(target('A', ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} utilization`))
    .withTarget(target('B', ofGpus('cotenant_device_graphics_active_ratio'), `${GPU_LEGEND} graphics active`))
    .withTarget(target('C', ofGpus('cotenant_device_sm_active_ratio'), `${GPU_LEGEND} SM active`))
    .withTarget(target('D', ofGpus('cotenant_device_sm_occupancy_ratio'), `${GPU_LEGEND} SM occupancy`))
    .withTarget(target('E', ofGpus('cotenant_device_tensor_active_ratio'), `${GPU_LEGEND} tensor cores`))
    .withTarget(target('F', ofGpus('cotenant_device_dram_active_ratio'), `${GPU_LEGEND} memory`))
    .withTarget(target('G', ofGpus('cotenant_device_fp32_active_ratio'), `${GPU_LEGEND} FP32`))
    .overrideByQuery('A', line('text'));
}

function power(): Panel {
  return series('Power', 'Power draw of each GPU, and its limit.', 8)
    .unit('watt')
    .min(0)
    .withTarget(target('A', ofGpus('cotenant_device_power_watts'), GPU_LEGEND))
    .withTarget(target('B', ofGpus('cotenant_device_power_limit_watts'), `${GPU_LEGEND} limit`))
    .overrideByQuery('B', line('red'));
}

function temperature(): Panel {
  return series('Temperature', 'Temperature of each GPU, by sensor.', 8)
    .unit('celsius')
    .withTarget(target('A', ofGpus('cotenant_device_temperature_celsius'), `${GPU_LEGEND} {{sensor}}`));
}

function clocks(): Panel {
  return series(
    'Clocks',
    'Clocks of each GPU by domain. If they are far below the maximum under load, the GPU is throttled.',
    8,
  )
    .unit('hertz')
    .min(0)
    .withTarget(target('A', ofGpus('cotenant_device_clock_hertz'), `${GPU_LEGEND} {{domain}}`))
    .withTarget(target('B', ofGpus('cotenant_device_max_clock_hertz'), `${GPU_LEGEND} {{domain}} maximum`))
    .overrideByQuery('B', line('text'));
}

/** increase() misses the first event of a counter, so those with an alert are exported with 0 from the start. */
function xids(): Panel {
  return series('Xids', 'Xid errors by code. The runbook says which of them require a reset of the GPU.', 12)
    .unit('short')
    .decimals(0)
    .min(0)
    .drawStyle(GraphDrawStyle.Bars)
    .fillOpacity(80)
    .withTarget(
      target(
        'A',
        `increase(${ofGpus('cotenant_device_xid_errors_total')}[$__rate_interval])`,
        `${GPU_LEGEND} Xid {{xid}}`,
      ),
    );
}

function memoryErrors(): Panel {
  const description = 'ECC errors, and memory rows remapped or pages retired because of them.';
  const errors = `max by (instance, gpu, severity) (increase(${ofGpus('cotenant_device_ecc_errors_total')}[$__rate_interval]))`;
  return series('Memory errors', description, 12)
    .unit('short')
    .decimals(0)
    .min(0)
    .withTarget(target('A', errors, `${GPU_LEGEND} {{severity}}`))
    .withTarget(target('B', ofGpus('cotenant_device_remapped_rows'), `${GPU_LEGEND} rows: {{cause}}`))
    .withTarget(target('C', ofGpus('cotenant_device_retired_pages'), `${GPU_LEGEND} pages: {{cause}}`));
}

function throttleReasons(): Panel {
  return timeline('Throttle reasons', 'Reasons that keep the clocks below their maximum, while they apply.', {
    0: { text: 'no', color: 'transparent' },
    1: { text: 'throttled', color: 'orange' },
  }).withTarget(target('A', ofGpus('cotenant_device_throttle_reason'), `${GPU_LEGEND} {{reason}}`));
}

function links(): Panel {
  return series('Links', 'Bytes per second over PCIe and NVLink, if the GPU counts them.', 12)
    .unit('Bps')
    .min(0)
    .withTarget(target('A', rate('cotenant_device_pcie_receive_bytes_total'), `${GPU_LEGEND} PCIe received`))
    .withTarget(target('B', rate('cotenant_device_pcie_transmit_bytes_total'), `${GPU_LEGEND} PCIe sent`))
    .withTarget(target('C', rate('cotenant_device_nvlink_receive_bytes_total'), `${GPU_LEGEND} NVLink received`))
    .withTarget(target('D', rate('cotenant_device_nvlink_transmit_bytes_total'), `${GPU_LEGEND} NVLink sent`));
}

function energy(): Panel {
  return series('Energy', 'Energy that each GPU used per step.', 12)
    .unit('joule')
    .min(0)
    .drawStyle(GraphDrawStyle.Bars)
    .fillOpacity(80)
    .withTarget(
      target('A', `increase(${ofGpus('cotenant_device_energy_joules_total')}[$__rate_interval])`, GPU_LEGEND),
    );
}

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
      { title: 'Memory', expr: ofInstance('cotenant_device_memory_total_bytes'), unit: 'bytes' },
      { title: 'Used', expr: ofInstance('cotenant_device_memory_used_bytes'), unit: 'bytes' },
      { title: 'Containers', expr: ofInstance('cotenant_device_containers') },
    ],
    { instance: 'Node', parent_gpu: 'GPU', gpu: 'GPU', profile: 'Profile', gpu_instance_id: 'Instance' },
  )
    .span(12)
    .height(8);
}

function processes(): Panel {
  const by = `instance, gpu, ${WHO}, pid, process`;
  return table(
    'Processes',
    'The processes with the most memory on the chosen GPUs. Empty unless the agent exports single processes (processMetrics).',
    [
      { title: 'Used', expr: `max by (${by}) (${ofGpus('cotenant_process_memory_used_bytes')})`, unit: 'bytes' },
      {
        title: 'Compute',
        expr: `max by (${by}) (${ofGpus('cotenant_process_sm_utilization_ratio')})`,
        unit: 'percentunit',
      },
    ],
    { instance: 'Node', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod', pid: 'PID', process: 'Process' },
  );
}

/** One row per container and GPU: instant values whose label columns are the same, merged by Grafana on those. */
function containers(): Panel {
  const by = `instance, gpu, ${WHO}`;
  const columns: readonly (readonly [refId: string, title: string, expr: string])[] = [
    ['A', 'Used', `max by (${by}) (${ofGpus('cotenant_container_memory_used_bytes')})`],
    ['B', 'Limit', `max by (${by}) (${ofGpus('cotenant_container_memory_limit_bytes')} > 0)`],
    ['C', 'Peak', `max by (${by}) (${ofGpus('cotenant_container_memory_peak_bytes')})`],
    ['D', 'Over limit', `max by (${by}) (${ofGpus('cotenant_container_memory_over_limit')})`],
    ['E', 'Bypass', `max by (${by}) (${ofGpus('cotenant_container_memory_bypass_bytes')})`],
    ['F', 'Isolation value', `max by (${by}, fence) (${ofGpus('cotenant_container_info')})`],
  ];
  const names = Object.fromEntries(columns.map(([refId, title]) => [`Value #${refId}`, title]));
  const rows = new TableBuilder()
    .title('Containers')
    .description(
      'Containers on the chosen GPUs. Isolation: what enforces the memory limit now (driver, interposer, agent, none). Bypass: memory of processes without an entry in the usage ledger. Without a limit the container has the whole GPU.',
    )
    .datasource(DATASOURCE)
    .span(24)
    .height(8)
    .unit('bytes')
    .noValue('-')
    .filterable(true)
    .sortBy([new common.TableSortByFieldStateBuilder().displayName('Used').desc(true)]);
  for (const [refId, , expr] of columns) {
    rows.withTarget(target(refId, expr, '').instant().format(PromQueryFormat.Table));
  }
  const indexByName = Object.fromEntries(
    ['instance', 'gpu', 'namespace', 'pod', 'container', 'fence'].map((name, index) => [name, index]),
  );
  return rows
    .withTransformation({ id: 'merge', options: {} })
    .withTransformation({
      id: 'organize',
      options: {
        excludeByName: { Time: true, 'Value #F': true },
        indexByName,
        renameByName: {
          ...names,
          instance: 'Node',
          gpu: 'GPU',
          namespace: 'Namespace',
          pod: 'Pod',
          fence: 'Isolation',
        },
      },
    })
    .overrideByName('Over limit', [
      property('unit', 'none'),
      property('mappings', [mapping({ 0: { text: 'no' }, 1: { text: 'over', color: 'red' } })]),
      property('custom.cellOptions', { type: 'color-text' }),
    ]);
}

/** Only containers over their limit or with bypass have a row, so the panel is normally empty. */
function overLimit({ bypass }: Configuration): Panel {
  const over = `${ofGpus('cotenant_container_memory_over_limit')} == 1`;
  const bypassing = `${ofGpus('cotenant_container_memory_bypass_bytes')} > ${bypass.bytes}`;
  return timeline(
    'Over limit and bypass',
    'When containers exceeded their limit, and when processes without an entry in the usage ledger used GPU memory.',
    { [OVER_CODE]: { text: 'over limit', color: 'red' }, [BYPASS_CODE]: { text: 'bypass', color: 'purple' } },
  )
    .noValue('none')
    .withTarget(target('A', `max by (${WHO}) (${over}) * 0 + ${OVER_CODE}`, `${WHO_LEGEND}: limit`))
    .withTarget(target('B', `max by (${WHO}) (${bypassing}) * 0 + ${BYPASS_CODE}`, `${WHO_LEGEND}: bypass`));
}

function stops(): Panel {
  // The counter has only the UUID of its GPU.
  const onGpus = `and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`;
  const kills = `increase(${ofTarget('cotenant_container_kills_total')}[$__rate_interval]) ${onGpus}`;
  const decisions = `increase(${ofTarget('cotenant_enforcement_decisions_total')}[$__rate_interval])`;
  return series(
    'Stops and decisions',
    'Stops of containers by reason, action and result, and decisions of the agent on all GPUs of the node. A red line in every panel marks each stop, also the first one of a container, which its counter misses.',
    12,
  )
    .unit('short')
    .decimals(0)
    .min(0)
    .drawStyle(GraphDrawStyle.Bars)
    .fillOpacity(80)
    .withTarget(target('A', `sum by (reason, action, result) (${kills})`, '{{reason}}: {{action}}, {{result}}'))
    .withTarget(target('B', `sum by (decision, reason) (${decisions})`, 'decision {{decision}}: {{reason}}'));
}
