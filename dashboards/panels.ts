// The panels of the board "Node and GPU", in reading order: the node in a line, memory, compute, hardware, containers, what was
// done. Owns queries, units and the words under each title; the board around them is in node-gpu.ts.

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
    held(),
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
  const states = [mapping({ 0: { text: 'blind', color: 'red' }, 1: { text: 'watching', color: 'green' } })];
  return stat('Agent', 'Whether the agent reads the GPUs. Blind: nothing below is current, and nobody is stopped.')
    .mappings(states)
    .withTarget(target('A', `min(${ofTarget('cotenant_up')})`, 'agent').instant());
}

function enforcement(): Panel {
  return stat('Enforcement', 'What the agent does about containers over their limit: off, report or enforce.')
    .textMode(BigValueTextMode.Name)
    .withTarget(target('A', `max by (mode) (${ofTarget('cotenant_enforcement_mode')} == 1)`, '{{mode}}').instant());
}

function granted(): Panel {
  const allocated = ofGpus('cotenant_device_memory_allocated_bytes');
  const total = ofGpus('cotenant_device_memory_total_bytes');
  const usable = `(${total} - ${ofGpus('cotenant_device_memory_reserved_bytes')} or ${total})`;
  return stat(
    'Memory granted',
    'Grants over what can be granted of the chosen GPUs: the memory of those that are not divided.',
  )
    .unit('percentunit')
    .withTarget(target('A', `sum(${allocated}) / sum(${among(GRANTABLE, usable)})`, 'granted').instant());
}

/** Everything that the driver says is used: containers, foreign use, and the rest that no process accounts for. */
function memory(): Panel {
  const own = `sum by (${WHO}) (${ofGpus('cotenant_container_memory_used_bytes')})`;
  const foreign = `sum by (${WHO}) (${ofGpus('cotenant_foreign_memory_used_bytes')})`;
  const panel = series(
    'Memory by container',
    'Memory that the driver counts for each container, stacked. "foreign" has no grant. "unattributed" is used by no process that the driver names (managed memory, ghosts). Lines: sum of grants, and of the GPUs.',
    24,
  );
  return stacked(panel.unit('bytes'))
    .withTarget(target('A', own, WHO_LEGEND))
    .withTarget(target('B', foreign, `foreign: ${WHO_LEGEND}`))
    .withTarget(target('C', `sum(${ofGpus('cotenant_device_memory_unattributed_bytes')})`, 'unattributed'))
    .withTarget(target('D', `sum(${ofGpus('cotenant_device_memory_allocated_bytes')})`, 'granted'))
    .withTarget(target('E', `sum(${ofGpus('cotenant_device_memory_total_bytes')})`, 'gpus'))
    .overrideByQuery('C', [color('dark-yellow'), property('custom.fillOpacity', 60)])
    .overrideByQuery('D', line('orange'))
    .overrideByQuery('E', line('red'));
}

function ratioOfLimit({ nearLimit }: Configuration): Panel {
  const used = ofGpus('cotenant_container_memory_used_bytes');
  const limit = `(${ofGpus('cotenant_container_memory_limit_bytes')} > 0)`;
  return series('Memory against the limit', 'Memory over the limit of its grant, per container and GPU.', 24)
    .unit('percentunit')
    .min(0)
    .thresholds(steps([null, 'green'], [nearLimit.ratio, 'orange'], [1, 'red']))
    .thresholdsStyle(new common.GraphThresholdsStyleConfigBuilder().mode(common.GraphThresholdsStyleMode.LineAndArea))
    .withTarget(target('A', `max by (${WHO}, instance, gpu) (${used} / ${limit})`, `${WHO_LEGEND} GPU {{gpu}}`));
}

function compute(): Panel {
  const panel = series(
    'Compute by container',
    'Time in which kernels of the container ran, as a share of one GPU (SM time), stacked. Line: sum of the granted shares; see the label "enforced" of cotenant_container_sm_limit_ratio for whether they are held.',
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
    'Share of the time in which the GPU did something at all: kernels, memory, encoder, decoder. Says nothing of how full it was.';
  return series('Device busy', description, 12)
    .unit('percentunit')
    .min(0)
    .max(1)
    .withTarget(target('A', ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} kernels`))
    .withTarget(target('B', ofGpus('cotenant_device_memory_busy_ratio'), `${GPU_LEGEND} memory`))
    .withTarget(target('C', ofGpus('cotenant_device_encoder_utilization_ratio'), `${GPU_LEGEND} encoder`))
    .withTarget(target('D', ofGpus('cotenant_device_decoder_utilization_ratio'), `${GPU_LEGEND} decoder`));
}

/** Busy beside active: one block keeps a GPU busy. Queries of GPUs without such counters answer nothing. */
function activity(): Panel {
  const description =
    'Busy: a kernel ran. The rest is how much of the GPU that was, by its own counters (GPM; Hopper and later, and where the agent may read them): SMs with a block, the warps on them, tensor cores, memory, single precision. Busy and hardly active: kernels too small for the GPU.';
  return series('Device utilization and SM active', description, 24)
    .unit('percentunit')
    .min(0)
    .max(1)
    .withTarget(target('A', ofGpus('cotenant_device_utilization_ratio'), `${GPU_LEGEND} busy`))
    .withTarget(target('B', ofGpus('cotenant_device_graphics_active_ratio'), `${GPU_LEGEND} busy, counted`))
    .withTarget(target('C', ofGpus('cotenant_device_sm_active_ratio'), `${GPU_LEGEND} SM active`))
    .withTarget(target('D', ofGpus('cotenant_device_sm_occupancy_ratio'), `${GPU_LEGEND} SM occupancy`))
    .withTarget(target('E', ofGpus('cotenant_device_tensor_active_ratio'), `${GPU_LEGEND} tensor cores`))
    .withTarget(target('F', ofGpus('cotenant_device_dram_active_ratio'), `${GPU_LEGEND} memory`))
    .withTarget(target('G', ofGpus('cotenant_device_fp32_active_ratio'), `${GPU_LEGEND} FP32`))
    .overrideByQuery('A', line('text'));
}

function power(): Panel {
  return series('Power', 'Power drawn by each GPU, and its limit.', 8)
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
  return series('Clocks', 'Clocks of each GPU by domain. Far below their maximum under load: the GPU throttles.', 8)
    .unit('hertz')
    .min(0)
    .withTarget(target('A', ofGpus('cotenant_device_clock_hertz'), `${GPU_LEGEND} {{domain}}`))
    .withTarget(target('B', ofGpus('cotenant_device_max_clock_hertz'), `${GPU_LEGEND} {{domain}} maximum`))
    .overrideByQuery('B', line('text'));
}

/** Its first event would be missed by an increase, so the counters stand there from the start. */
function xids(): Panel {
  return series('Xids', 'What the driver raised, by its number. The runbook says which of them reset the GPU.', 12)
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
  const description =
    'Errors that ECC found, and the rows or pages of memory that have been put aside because of such.';
  const errors = `max by (instance, gpu, severity) (increase(${ofGpus('cotenant_device_ecc_errors_total')}[$__rate_interval]))`;
  return series('Errors of memory', description, 12)
    .unit('short')
    .decimals(0)
    .min(0)
    .withTarget(target('A', errors, `${GPU_LEGEND} {{severity}}`))
    .withTarget(target('B', ofGpus('cotenant_device_remapped_rows'), `${GPU_LEGEND} rows: {{cause}}`))
    .withTarget(target('C', ofGpus('cotenant_device_retired_pages'), `${GPU_LEGEND} pages: {{cause}}`));
}

function held(): Panel {
  return timeline(
    'Why clocks are low',
    'Reasons that the driver gives for clocks below what they could be, while they hold.',
    { 0: { text: 'no', color: 'transparent' }, 1: { text: 'held', color: 'orange' } },
  ).withTarget(target('A', ofGpus('cotenant_device_throttle_reason'), `${GPU_LEGEND} {{reason}}`));
}

function links(): Panel {
  return series('Links', 'Bytes per second over PCIe and NVLink, where the GPU counts them.', 12)
    .unit('Bps')
    .min(0)
    .withTarget(target('A', rate('cotenant_device_pcie_receive_bytes_total'), `${GPU_LEGEND} PCIe received`))
    .withTarget(target('B', rate('cotenant_device_pcie_transmit_bytes_total'), `${GPU_LEGEND} PCIe sent`))
    .withTarget(target('C', rate('cotenant_device_nvlink_receive_bytes_total'), `${GPU_LEGEND} NVLink received`))
    .withTarget(target('D', rate('cotenant_device_nvlink_transmit_bytes_total'), `${GPU_LEGEND} NVLink sent`));
}

function energy(): Panel {
  return series('Energy', "What each GPU used in each step, by the driver's own count.", 12)
    .unit('joule')
    .min(0)
    .drawStyle(GraphDrawStyle.Bars)
    .fillOpacity(80)
    .withTarget(
      target('A', `increase(${ofGpus('cotenant_device_energy_joules_total')}[$__rate_interval])`, GPU_LEGEND),
    );
}

function instances(): Panel {
  // The GPU that is chosen is the GPU; its instances have indexes of their own.
  const info = select('cotenant_mig_info', 'job=~"$job"', 'instance=~"$instance"', 'parent_gpu=~"$gpu"');
  const by = 'instance, gpu, parent_gpu, profile, gpu_instance_id';
  const its = (metric: MetricName) =>
    `max by (${by}) (${ofTarget(metric)} * on (job, instance, gpu_uuid) group_left (parent_gpu, profile, gpu_instance_id) ${info})`;
  return table(
    'Layout of divided GPUs',
    'Instances by MIG of the chosen GPUs, and who holds memory of them. Empty where no GPU is divided.',
    [
      { title: 'Memory', expr: its('cotenant_device_memory_total_bytes'), unit: 'bytes' },
      { title: 'Used', expr: its('cotenant_device_memory_used_bytes'), unit: 'bytes' },
      { title: 'Containers', expr: its('cotenant_device_containers') },
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
    'The largest processes of containers on the chosen GPUs. Empty unless the agent shows single processes (processMetrics).',
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
    ['F', 'Fence value', `max by (${by}, fence) (${ofGpus('cotenant_container_info')})`],
  ];
  const names = Object.fromEntries(columns.map(([refId, title]) => [`Value #${refId}`, title]));
  const rows = new TableBuilder()
    .title('Containers')
    .description(
      'Containers on the chosen GPUs. Fence: what holds the limit right now (driver, interposer, agent, none). Bypass: memory of processes that the ledger does not know. No limit: the container has the GPU to itself.',
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
        renameByName: { ...names, instance: 'Node', gpu: 'GPU', namespace: 'Namespace', pod: 'Pod', fence: 'Fence' },
      },
    })
    .overrideByName('Over limit', [
      property('unit', 'none'),
      property('mappings', [mapping({ 0: { text: 'no' }, 1: { text: 'over', color: 'red' } })]),
      property('custom.cellOptions', { type: 'color-text' }),
    ]);
}

/** Rows appear for containers with something to tell, so that an empty panel is the good news. */
function overLimit({ bypass }: Configuration): Panel {
  const over = `${ofGpus('cotenant_container_memory_over_limit')} == 1`;
  const past = `${ofGpus('cotenant_container_memory_bypass_bytes')} > ${bypass.bytes}`;
  return timeline(
    'Over limit and bypass',
    'When containers were over their limit, and when processes in them held memory that the ledger did not know.',
    { [OVER_CODE]: { text: 'over limit', color: 'red' }, [BYPASS_CODE]: { text: 'bypass', color: 'purple' } },
  )
    .noValue('nobody')
    .withTarget(target('A', `max by (${WHO}) (${over}) * 0 + ${OVER_CODE}`, `${WHO_LEGEND}: limit`))
    .withTarget(target('B', `max by (${WHO}) (${past}) * 0 + ${BYPASS_CODE}`, `${WHO_LEGEND}: bypass`));
}

function stops(): Panel {
  // The counter knows its GPU by UUID alone.
  const onGpus = `and on (job, instance, gpu_uuid) ${ofGpus('cotenant_device_info')}`;
  const kills = `increase(${ofTarget('cotenant_container_kills_total')}[$__rate_interval]) ${onGpus}`;
  const decisions = `increase(${ofTarget('cotenant_enforcement_decisions_total')}[$__rate_interval])`;
  return series(
    'Stops and decisions',
    'Containers that were stopped, by reason, action and result; and what the agent decided, on all GPUs of the node. Each stop is also marked by a red line in every panel.',
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
